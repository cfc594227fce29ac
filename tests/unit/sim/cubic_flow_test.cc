#include "sim/cubic_flow.h"

#include <doctest/doctest.h>

#include "sim/simulator.h"
#include "support/small_tables.h"

namespace {

using namespace mlt;
using base::kSecond;

constexpr double kRate = 12.5e6;  // 100 Mbit/s
constexpr std::uint64_t kBuffer = 128U << 10;

struct Port {
  explicit Port(double loss = 0) : simulator(config(), star(loss)) {}

  static sim::SimulatorConfig config() {
    sim::SimulatorConfig made;
    made.host.endpoint = test::small_tables(made.host.endpoint);
    return made;
  }
  static sim::Topology star(double loss) {
    sim::Fabric fabric;
    fabric.host_link.rate_bytes_per_second = 1.25e9;
    fabric.host_link.propagation_ns = base::kMillisecond;
    fabric.port = sim::uniform_port({}, kBuffer, sim::kUnlimited);
    fabric.port.queue_of.fill(1);
    sim::Topology made = sim::star(3, fabric);
    sim::Link& down = made.edges[made.edge(3, 0)].link;
    down.rate_bytes_per_second = kRate;
    down.data.drop = loss;
    return made;
  }
  // Of the port's rate, between two moments.
  double share(sim::CubicFlow& flow, base::DurationNs duration) {
    const std::uint64_t before = flow.delivered_bytes();
    simulator.run_for(duration);
    return static_cast<double>(flow.delivered_bytes() - before) * 1e9 / static_cast<double>(duration) / kRate;
  }

  sim::Simulator simulator;
};

}  // namespace

TEST_CASE("cubic_flow__fills_the_port_and_its_buffer") {
  Port port;
  sim::CubicFlow flow(port.simulator, 1, 0);
  flow.start();
  port.simulator.run_for(2 * kSecond);
  CHECK(port.share(flow, 10 * kSecond) > 0.92);  // headers take 5.5 % of a full packet's time
  sim::Network& network = port.simulator.network();
  CHECK(network.port(network.topology().edge(3, 0)).counters(1).max_queued_bytes > kBuffer - 2'000);
  CHECK(flow.packets_lost() > 0);
}

TEST_CASE("cubic_flow__two_share_a_port") {
  Port port;
  sim::CubicFlow first(port.simulator, 1, 0), second(port.simulator, 2, 0);
  first.start();
  port.simulator.run_for(5 * kSecond);
  second.start();
  port.simulator.run_for(20 * kSecond);
  const std::uint64_t before = first.delivered_bytes();
  const double share = port.share(second, 20 * kSecond);
  CHECK(share > 0.35);
  CHECK(share < 0.6);
  CHECK(first.delivered_bytes() > before);
}

// RFC 9438, 5.2: at short round trips and frequent losses it is as fast as Reno, sqrt(3 / 2) / sqrt(p) packets in a
// round trip, the queue's time included.
TEST_CASE("cubic_flow__random_loss_keeps_its_window_small") {
  Port port(0.01);
  sim::CubicFlow flow(port.simulator, 1, 0);
  flow.start();
  port.simulator.run_for(2 * kSecond);
  const double share = port.share(flow, 20 * kSecond);
  const double window_bytes = share * kRate * 4e-3;  // in a round trip of 4 ms
  CHECK(window_bytes / sim::CubicFlow::kPayloadBytes > 8);
  CHECK(window_bytes / sim::CubicFlow::kPayloadBytes < 20);
}
