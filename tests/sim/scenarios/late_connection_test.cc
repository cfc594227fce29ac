// The two sides of a connection are never up at the same moment: what one sends before the other is up is refused
// there, and is no loss (PROTOCOL 4.4.6, 7.5.10).
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "sim/scenarios/stream.h"

using namespace mlt;
using base::kMicrosecond;
using base::kSecond;

namespace {

struct Outcome {
  std::uint64_t missing = 0;
  std::uint64_t refused = 0;
};

// Both sides post as soon as they may; the connection comes up at each of them within 200 us. `returns`: the sender was
// there before, and its peer may learn only by the new connection that the old one is gone.
Outcome first_transfer(std::uint64_t seed, std::uint8_t paths, bool returns) {
  sim::SimulatorConfig config = test::configured(1.25e9, paths);
  config.seed = seed;
  sim::Simulator simulator(config, sim::leaf_spine(2, paths, 1, test::fabric(1.25e9)));
  if (returns) {
    simulator.connect_all(0);
    simulator.run_for(kMicrosecond);
    simulator.leave(0);
    simulator.restart(0);
  }
  simulator.connect_all(200 * kMicrosecond);
  std::vector<float> in(50'000, 1.0F), out(50'000);
  Outcome outcome;
  int over = 0;
  simulator.on_completion = [&](std::uint16_t, const core::Completion& completion) {
    ++over;
    outcome.missing = std::max(outcome.missing, completion.missing_bytes);
  };
  core::SendRequest send;
  send.operation = send.tag = 1;
  send.peer = 1;
  send.element = wire::ElementType::kFloat32;
  send.data = std::as_bytes(std::span(in));
  core::ReceiveRequest receive;
  receive.operation = receive.tag = 1;
  receive.element = wire::ElementType::kFloat32;
  receive.loss_bound = 0.875;
  receive.data = std::as_writable_bytes(std::span(out));
  bool sent = false, posted = false;
  while (!(sent && posted)) {
    sent = sent || simulator.send(0, send) == core::PostStatus::kPosted;
    const bool is_new = simulator.endpoint_connection(1, 0) == simulator.connection(1, 0);
    posted = posted || (is_new && simulator.receive(1, receive) == core::PostStatus::kPosted);
    simulator.run_for(kMicrosecond);
  }
  REQUIRE(simulator.run_until([&] { return over == 2; }, kSecond));
  REQUIRE(simulator.fault() == "");
  REQUIRE(simulator.network().ledger().dropped(true).packets == 0);
  outcome.refused = simulator.endpoint(1).counters().value(core::Counter::k_drop_bad_cookie);
  return outcome;
}

}  // namespace

TEST_CASE("late_connection__the_first_transfer_loses_nothing_where_the_network_loses_nothing") {
  bool returns = false;
  SUBCASE("of a first connection") {}
  SUBCASE("of a rank that left and came back") { returns = true; }
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const int paths : {1, 2}) {
      CAPTURE(seed);
      CAPTURE(paths);
      const Outcome outcome = first_transfer(seed, static_cast<std::uint8_t>(paths), returns);
      CHECK(outcome.missing == 0);
      refused += outcome.refused;
    }
  }
  CHECK(refused > 100);  // or nothing was tried
}
