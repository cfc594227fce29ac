#include "sim/scenario_window.h"

#include <algorithm>
#include <map>
#include <utility>

namespace mlt::sim {

namespace {

using base::DurationNs;

// Windows are not always full, and lost packets are retransmitted: a quarter of the timeout leaves time for both.
constexpr DurationNs kPartOfTimeout = 4;

// The longest round trip of any two hosts over the slowest path, with the delays that occur without faults.
DurationNs longest_round_trip_ns(const Scenario& scenario) {
  const Fabric& fabric = scenario.fabric;
  const DurationNs core_links = scenario.shape == Shape::kStar ? 0 : scenario.shape == Shape::kDumbbell ? 1 : 2;
  double slowest = 1;
  for (const double delay : scenario.spine_delay) slowest = std::max(slowest, delay);
  const auto core_ns = static_cast<DurationNs>(static_cast<double>(fabric.core_link.propagation_ns) * slowest);
  const DurationNs one_way_ns = 2 * (fabric.host_link.propagation_ns + fabric.host_link.jitter_ns) +
                                core_links * (core_ns + fabric.core_link.jitter_ns) + scenario.wake_up_most_ns;
  return 2 * one_way_ns;
}

// The maximum that one host sends to another, as the sender counts it against its window (clause 6.3.1).
std::uint64_t max_sent_bytes(const Scenario& scenario) {
  const std::uint32_t segment = scenario.simulator.segment_bytes;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::uint64_t> sent;
  std::uint64_t max_bytes = 0;
  for (const Exchange& exchange : scenario.exchanges) {
    std::uint64_t& bytes = sent[{exchange.send.host, exchange.send.peer}];
    bytes += std::uint64_t{core::SegmentGrid(exchange.send.bytes, segment).count()} * (segment + MLT_DATA_HEADER_BYTES);
    max_bytes = std::max(max_bytes, bytes);
  }
  return max_bytes;
}

// Whether some link drops control datagrams for longer than any operation may take: replies arrive over TCP alone.
bool answers_come_by_control_only(const Scenario& scenario) {
  const DurationNs max_ns = scenario.simulator.host.endpoint.operation_timeout_ns;
  return std::any_of(scenario.accidents.begin(), scenario.accidents.end(), [max_ns](const Accident& accident) {
    return accident.kind == Accident::Kind::kBlackHole && accident.amount > 0 && accident.length_ns > max_ns;
  });
}

}  // namespace

// A window is sent once per round trip. Transfers of one class leave in the order of their posts, so a short one whose
// receive is posted early waits for all before it, and must not time out by then.
void widen_window(Scenario& scenario) {
  const DurationNs time_ns = scenario.simulator.host.endpoint.operation_timeout_ns / kPartOfTimeout;
  const double round_trips = static_cast<double>(time_ns) / static_cast<double>(longest_round_trip_ns(scenario));
  const auto bytes = static_cast<double>(max_sent_bytes(scenario));
  while (static_cast<double>(scenario.simulator.window_bytes) * round_trips < bytes) {
    scenario.simulator.window_bytes *= 2;
  }
}

// A reply over TCP finds the trailing probes of the replied probe in the queue, one for each path and transfer. A port
// that holds fewer drops the retransmissions behind them, all of them in every round (seed 11221658).
void widen_ports(Scenario& scenario) {
  if (!answers_come_by_control_only(scenario)) return;
  const std::uint64_t paths = scenario.simulator.host.endpoint.paths;
  const std::uint64_t probe = 44 + 4 * paths + kOverheadBytes;  // clause 4.7.1
  const std::uint64_t packet = scenario.simulator.segment_bytes + MLT_DATA_HEADER_BYTES + kOverheadBytes;
  const std::uint64_t min_bytes = scenario.exchanges.size() * paths * probe + packet;
  Fabric& fabric = scenario.fabric;
  for (Queue& queue : fabric.port.queues) {
    queue.limit_bytes = std::max(queue.limit_bytes, min_bytes);
    queue.red_min_bytes = std::max(queue.red_min_bytes, min_bytes);
    queue.red_max_bytes = std::max(queue.red_max_bytes, min_bytes);
  }
  fabric.switch_buffer_bytes = std::max(fabric.switch_buffer_bytes, min_bytes);
}

}  // namespace mlt::sim
