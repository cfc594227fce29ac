// The same seed gives the same events, to the nanosecond: what a failure prints can be run again.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <vector>

#include "support/transfer.h"

using namespace mlt;

namespace {

struct Outcome {
  std::array<std::uint64_t, static_cast<std::size_t>(core::Counter::kCount)> counters{};
  std::vector<base::TimeNs> ends;
  std::uint64_t digest = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome run(std::uint64_t seed) {
  test::SimulationConfig config;
  config.seed = seed;
  config.endpoint.paths = 3;
  config.link.data = {.drop = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0};
  config.link.control = config.link.data;
  test::Simulation network(config);
  std::vector<std::unique_ptr<test::Transfer>> transfers;
  for (std::uint64_t i = 0; i < 10; ++i) {
    test::TransferOptions options;
    options.tag = options.operation = i;
    options.loss_bound = 0.05 * static_cast<double>(i % 3);
    transfers.push_back(std::make_unique<test::Transfer>(network, 50'000, options));
    transfers.back()->post();
  }
  REQUIRE(network.run_until_completed(0, 10));
  Outcome outcome;
  outcome.counters = network.endpoint(0).counters().values();
  for (const auto& done : network.completed(0)) outcome.ends.push_back(done.at_ns);
  for (const auto& done : network.completed(1)) outcome.ends.push_back(done.at_ns);
  outcome.digest = network.simulator().digest();
  return outcome;
}

}  // namespace

TEST_CASE("simulator__same_seed_same_events") {
  const Outcome first = run(5);
  CHECK(first == run(5));
  CHECK_FALSE(first == run(6));
}
