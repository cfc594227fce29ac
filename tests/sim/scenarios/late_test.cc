// A network that loses nothing takes nothing away, however late it is: section 1.2 of PROTOCOL.md. The oracle's
// rule 8 checks each run; what is asked here beside it is how long the receives took.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "sim/swarm.h"

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;

// Two hosts on two leaves, a path over each of two spines, 1 Gbit/s: edges 4 and 6 lead up from the first leaf.
sim::Scenario two_spines() {
  sim::Scenario scenario;
  scenario.seed = scenario.simulator.seed = 1;
  scenario.faultless = true;
  scenario.shape = sim::Shape::kLeafSpine;
  scenario.spines = 2;
  sim::Link& link = scenario.fabric.host_link;
  link.rate_bytes_per_second = 1.25e8;
  link.propagation_ns = 20 * kMicrosecond;
  scenario.fabric.core_link = link;
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  endpoint.paths = 2;
  endpoint.operation_timeout_ns = 8 * kSecond;
  endpoint.timely.line_rate_bytes_per_second = link.rate_bytes_per_second;
  scenario.simulator.host.socket_buffer_bytes = 64U << 20;
  scenario.simulator.window_bytes = 4U << 20;
  scenario.fabric.port = sim::uniform_port(endpoint.dscp, sim::kUnlimited, sim::kUnlimited);
  scenario.quiet_ns = kSecond;
  scenario.limit_ns = scenario.quiet_ns + 12 * kSecond;
  return scenario;
}

sim::Exchange exchange(std::uint64_t tag, std::uint32_t bytes, double loss_bound, base::DurationNs at_ns) {
  sim::Exchange made;
  made.send.peer = made.receive.host = 1;
  made.send.tag = made.receive.tag = tag;
  made.send.bytes = made.receive.bytes = bytes;
  made.receive.loss_bound = loss_bound;
  made.send_at_ns = made.receive_at_ns = at_ns;
  return made;
}

sim::Accident pause_of(sim::Accident::Kind kind, std::uint32_t link, double amount, base::DurationNs start_ns,
                       base::DurationNs length_ns) {
  sim::Accident pause;
  pause.kind = kind;
  pause.a = link;
  pause.amount = amount;
  pause.start_ns = start_ns;
  pause.length_ns = length_ns;
  return pause;
}

std::string fault_of(const sim::Scenario& scenario) { return sim::run_scenario(scenario).fault; }

}  // namespace

// Half of the transfer stands in the slow spine when the sender, which saw the other half arrive, gives that path up.
TEST_CASE("late__a_slow_path_that_was_suspended_loses_nothing") {
  for (const double slow_ms : {2.0, 15.0, 200.0}) {
    for (const double bound : {0.1, 0.75, 0.9375}) {
      CAPTURE(slow_ms);
      CAPTURE(bound);
      sim::Scenario scenario = two_spines();
      scenario.fabric.host_link.propagation_ns = scenario.fabric.core_link.propagation_ns = 100 * kMicrosecond;
      scenario.spine_delay = {1.0, slow_ms * 1e6 / 2 / 1e5};
      scenario.exchanges = {exchange(1, 1'600'000, bound, 0)};
      CHECK(fault_of(scenario) == "");
    }
  }
}

// A link that PFC pauses lets a packet through now and then, and then continues.
TEST_CASE("late__a_paused_link_loses_nothing") {
  for (const double share : {0.002, 0.02}) {
    for (const base::DurationNs paused_ns : {80 * kMillisecond, 600 * kMillisecond}) {
      CAPTURE(share);
      CAPTURE(paused_ns);
      sim::Scenario scenario = two_spines();
      for (std::uint64_t i = 0; i < 30; ++i) {
        scenario.exchanges.push_back(
            exchange(100 + i, 800'000, 0.75, static_cast<base::DurationNs>(i) * 7 * kMillisecond));
      }
      scenario.accidents = {pause_of(sim::Accident::Kind::kSlowLink, 4, share, 60 * kMillisecond, paused_ns)};
      CHECK(fault_of(scenario) == "");
    }
  }
}

// Segments of a transfer whose classes differ overtake each other in the switches.
TEST_CASE("late__segments_of_many_classes_lose_nothing_behind_urgent_ones") {
  sim::Scenario scenario = two_spines();
  for (std::uint64_t i = 0; i < 12; ++i) {
    sim::Exchange mixed = exchange(i, 400'000, 0.75, 0);
    const std::uint32_t segments = core::SegmentGrid(mixed.send.bytes, scenario.simulator.segment_bytes).count();
    for (std::uint32_t segment = 0; segment < segments; ++segment) {
      mixed.send.priorities.push_back({static_cast<std::uint8_t>((segment * 5 + i) % 7)});
    }
    scenario.exchanges.push_back(mixed);
  }
  for (std::uint8_t paths = 1; paths <= 2; ++paths) {
    CAPTURE(paths);
    scenario.simulator.host.endpoint.paths = paths;
    for (const double share : {1.0, 0.1}) {
      CAPTURE(share);
      scenario.fabric.core_link.rate_bytes_per_second = 1.25e8 * share;
      CHECK(fault_of(scenario) == "");
    }
  }
}

// The only link there is paused for longer than any silence that would end a receive, when little is missing.
TEST_CASE("late__a_pause_of_seconds_loses_nothing") {
  for (const double everything : {0.0, 1.0}) {
    for (const base::DurationNs paused_ns : {100 * kMillisecond, 1'500 * kMillisecond, 5 * kSecond}) {
      CAPTURE(everything);
      CAPTURE(paused_ns);
      sim::Scenario scenario = two_spines();
      scenario.shape = sim::Shape::kStar;
      scenario.simulator.host.endpoint.paths = 1;
      scenario.exchanges = {exchange(1, 800'000, 0.75, 0)};
      scenario.accidents = {pause_of(sim::Accident::Kind::kPausedLink, 0, everything, 5 * kMillisecond, paused_ns)};
      scenario.quiet_ns = 6 * kSecond;
      scenario.limit_ns = 18 * kSecond;
      CHECK(fault_of(scenario) == "");
    }
  }
}
