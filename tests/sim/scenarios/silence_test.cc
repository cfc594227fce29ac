// Silence is no proof of loss where more urgent data goes to another host (PROTOCOL 7.4.7).
#include <doctest/doctest.h>

#include <vector>

#include "sim/simulator.h"
#include "support/small_tables.h"

namespace {

using namespace mlt;
using base::kMillisecond;
using base::kSecond;

}  // namespace

// Hosts 0 and 1 share a trunk to hosts 2 and 3. What 0 sends to 2 is urgent, what 1 sends to 3 is not: it waits in the
// trunk's queue, and host 3 hears nothing from anybody. Nothing is lost.
TEST_CASE("patient__loses_nothing_behind_what_is_urgent_for_another_host") {
  sim::Fabric fabric;
  fabric.port = sim::uniform_port({}, sim::kUnlimited, sim::kUnlimited);
  const sim::Topology topology = sim::dumbbell(2, 2, fabric);
  sim::SimulatorConfig config;
  config.host.endpoint = test::small_tables(config.host.endpoint);
  config.host.endpoint.timely.line_rate_bytes_per_second = fabric.host_link.rate_bytes_per_second;
  sim::Simulator simulator(config, topology);
  simulator.connect_all();
  simulator.run_for(10 * kMillisecond);

  std::vector<float> urgent_in(25'000'000), urgent_out(25'000'000), calm_in(25'000, 1.0F), calm_out(25'000);
  int over = 0;
  core::CompletionStatus status{};
  std::uint64_t missing = 0;
  base::TimeNs at = 0;
  simulator.on_completion = [&](std::uint16_t rank, const core::Completion& completion) {
    ++over;
    if (rank == 3) {
      status = completion.status;
      missing = completion.missing_bytes;
      at = simulator.now();
    }
  };
  const auto post = [&](std::uint16_t from, std::uint16_t to, std::vector<float>& in, std::vector<float>& out,
                        std::uint8_t traffic_class) {
    core::ReceiveRequest receive;
    receive.operation = receive.tag = 1;
    receive.peer = from;
    receive.element = wire::ElementType::kFloat32;
    receive.loss_bound = 0.5;
    receive.data = std::as_writable_bytes(std::span(out));
    core::SendRequest send;
    send.operation = send.tag = 1;
    send.peer = to;
    send.element = wire::ElementType::kFloat32;
    send.uniform_priority = core::SegmentPriority::important(traffic_class);
    send.data = std::as_bytes(std::span(in));
    REQUIRE(simulator.receive(to, receive) == core::PostStatus::kPosted);
    REQUIRE(simulator.send(from, send) == core::PostStatus::kPosted);
  };
  post(0, 2, urgent_in, urgent_out, 0);
  simulator.run_for(2 * kMillisecond);
  const base::TimeNs start = simulator.now();
  post(1, 3, calm_in, calm_out, 6);
  REQUIRE(simulator.run_until([&] { return over == 4; }, 5 * kSecond));
  REQUIRE(simulator.fault() == "");
  MESSAGE("ended after " << (at - start) / 1'000 << " us, " << missing << " bytes missing");
  CHECK(status == core::CompletionStatus::kComplete);
  CHECK(missing == 0);
}
