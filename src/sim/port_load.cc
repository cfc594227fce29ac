#include "sim/port_load.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "sim/network.h"
#include "sim/packet.h"

namespace mlt::sim {

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

void check(const PortLoad& load) {
  require(!load.classes.empty() && load.classes.size() <= kQueues, "classes: 1 to " + std::to_string(kQueues));
  double total = 0;
  for (const LoadClass& entry : load.classes) {
    require(entry.load >= 0 && std::isfinite(entry.load), "load of a class: a number that is not negative");
    require(entry.small_ratio >= 0 && entry.small_ratio <= 1, "small_ratio: from 0 to 1");
    total += entry.load;
  }
  require(total > 0, "the loads must add up to more than 0");
  require(load.burst_packets > 0, "burst_packets: at least 1");
  require(load.senders > 0 && load.senders <= kMaxSenders, "senders: 1 to " + std::to_string(kMaxSenders));
  require(load.packet_bytes > kOverheadBytes && load.packet_bytes <= 65'535, "packet_bytes: 67 to 65,535");
  for (const double rate : {load.port_bytes_per_second, load.nic_bytes_per_second}) {
    require(rate > 0 && std::isfinite(rate), "a rate is positive");
  }
}

// Class i is code point i and queue i.
Topology topology_of(const PortLoad& load) {
  Fabric fabric;
  fabric.host_link.rate_bytes_per_second = load.nic_bytes_per_second;
  const auto receiver = static_cast<std::uint16_t>(load.senders);
  Topology topology = star(static_cast<std::uint16_t>(receiver + 1), fabric);
  Edge& last = topology.edges[topology.edge(receiver + 1U, receiver)];
  last.link.rate_bytes_per_second = load.port_bytes_per_second;
  for (std::uint32_t i = 0; i < load.classes.size(); ++i) {
    Queue& queue = last.port.queues[i];
    queue.limit_bytes = load.classes[i].limit_bytes;
    queue.red_min_bytes = queue.red_max_bytes = load.classes[i].threshold_bytes;
    last.port.queue_of[i] = static_cast<std::uint8_t>(i);
  }
  return topology;
}

class PortLoadRun {
 public:
  explicit PortLoadRun(const PortLoad& load)
      : load_(load), network_(topology_of(load), load.seed, load.packet_bytes, events_), prng_(load.seed) {
    for (const LoadClass& entry : load.classes) total_ += entry.load;
  }

  std::vector<QueueCounters> run() {
    // Time in packets of the port, so that a load is a rate; then in nanoseconds.
    const double packet_ns = load_.packet_bytes * 1e9 / load_.port_bytes_per_second;
    double at = 0;
    for (std::uint64_t sent = 0; sent < load_.packets; sent += load_.burst_packets) {
      at -= std::log(1.0 - prng_.uniform()) * load_.burst_packets / total_ * packet_ns;
      const auto now = static_cast<base::TimeNs>(at);
      drain(now);
      burst(now, pick());
    }
    drain(base::kNever);
    const std::uint32_t edge = network_.topology().edge(load_.senders + 1, load_.senders);
    std::vector<QueueCounters> found;
    for (std::uint32_t i = 0; i < load_.classes.size(); ++i) found.push_back(network_.port(edge).counters(i));
    return found;
  }

 private:
  std::uint32_t pick() {
    double left = prng_.uniform() * total_;
    std::uint32_t i = 0;
    while (i + 1 < load_.classes.size() && left >= load_.classes[i].load) left -= load_.classes[i++].load;
    return i;
  }

  void burst(base::TimeNs now, std::uint32_t number) {
    for (std::uint32_t i = 0; i < load_.burst_packets; ++i) {
      const std::uint32_t index = network_.new_packet();
      Packet& packet = network_.packet(index);
      std::byte* const bytes = packet.bytes;
      packet = Packet{};
      packet.bytes = bytes;
      packet.from = static_cast<std::uint16_t>(i % load_.senders);
      packet.to = static_cast<std::uint16_t>(load_.senders);
      packet.dscp = static_cast<std::uint8_t>(number);
      packet.ecn = prng_.chance(load_.classes[number].small_ratio) ? base::Ecn::kNotEct : base::Ecn::kEct0;
      packet.size = load_.packet_bytes - kOverheadBytes;
      network_.send(now, index);
    }
  }

  void drain(base::TimeNs until) {
    while (!events_.empty() && events_.next_at() <= until) {
      const Event event = events_.pop();
      if (event.kind == EventKind::kPort) {
        network_.serve(event.at, event.target);
      } else if (network_.arrive(event.at, event.target, event.argument)) {
        network_.finish(event.argument, Fate::k_delivered);
      }
    }
  }

  const PortLoad& load_;
  EventHeap events_;
  Network network_;
  base::Prng prng_;
  double total_ = 0;
};

}  // namespace

std::vector<QueueCounters> run_port_load(const PortLoad& load) {
  check(load);
  return PortLoadRun(load).run();
}

}  // namespace mlt::sim
