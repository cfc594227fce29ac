#include "sim/network.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "sim/damage.h"

namespace mlt::sim {

namespace {

// Distributes pairs of hosts over routes, so that path 0 of all pairs does not share one spine.
std::uint32_t spread(std::uint16_t from, std::uint16_t to, std::uint32_t node) {
  base::Prng mix((std::uint64_t{from} << 48) ^ (std::uint64_t{to} << 32) ^ node);
  return static_cast<std::uint32_t>(mix.next() >> 40);
}

}  // namespace

Network::Network(const Topology& topology, std::uint64_t seed, std::uint32_t max_datagram_bytes, EventHeap& events)
    : topology_(topology),
      routes_(topology),
      planned_routes_(topology),
      hosts_(topology.hosts),
      pool_(max_datagram_bytes),
      events_(events),
      prng_(seed),
      buffers_(topology.nodes),
      nics_(topology.hosts, kNoPacket) {
  for (std::uint32_t node = 0; node < topology.nodes; ++node) buffers_[node].limit_bytes = topology.buffer_bytes[node];
  edges_.reserve(topology.edges.size());
  for (const Edge& edge : topology.edges) {
    if (edge.from < hosts_ && nics_[edge.from] == kNoPacket) {
      nics_[edge.from] = static_cast<std::uint32_t>(edges_.size());
    }
    edges_.push_back({edge.to, edge.from, edge.link, SwitchPort(edge.port)});
  }
}

void Network::send(base::TimeNs now, std::uint32_t index) {
  Packet& packet = pool_[index];
  ledger_.add(Fate::k_sent, packet.is_data(), packet.size);
  packet.fan_out = packet.path;
  packet.planned_hop = planned_routes_.first(packet.from, packet.to, packet.path);
  if (is_blocked(packet.from, packet.to)) return drop(index, Fate::k_dropped_partition);
  if (drop_if && drop_if(packet)) return drop(index, Fate::k_dropped_filter);
  forward(now, packet.from, index);
}

void Network::forward(base::TimeNs now, std::uint32_t node, std::uint32_t index) {
  Packet& packet = pool_[index];
  if (packet.planned_hop != kNoRoute) return enqueue(now, planned_routes_.edge(packet.planned_hop++), index);
  const std::span<const std::uint32_t> ways = routes_.next_edges(node, packet.to);
  if (ways.empty()) return drop(index, Fate::k_dropped_no_route);
  std::uint32_t way = 0;
  if (ways.size() > 1) {
    const auto count = static_cast<std::uint32_t>(ways.size());
    way = (packet.fan_out + spread(packet.from, packet.to, node)) % count;
    packet.fan_out /= count;
  }
  enqueue(now, ways[way], index);
}

void Network::enqueue(base::TimeNs now, std::uint32_t edge, std::uint32_t index) {
  EdgeState& state = edges_[edge];
  Fate fate = Fate::k_delivered;
  if (!state.port.enqueue(now, pool_, index, buffers_[state.buffer], prng_, fate)) return drop(index, fate);
  serve(now, edge);
}

void Network::serve(base::TimeNs now, std::uint32_t edge) {
  EdgeState& state = edges_[edge];
  SwitchPort& port = state.port;
  if (now >= port.busy_until_ns) {
    const std::uint32_t index = port.dequeue(pool_, buffers_[state.buffer]);
    port.service_scheduled = false;
    if (index == kNoPacket) return;
    port.busy_until_ns = now + base::serialisation_ns(pool_[index].wire_bytes(), state.link.rate_bytes_per_second);
    cross(edge, index, port.busy_until_ns);
  }
  if (port.empty() || port.service_scheduled) return;
  port.service_scheduled = true;
  events_.push(port.busy_until_ns, EventKind::kPort, edge, 0);
}

void Network::cross(std::uint32_t edge, std::uint32_t index, base::TimeNs leaves) {
  EdgeState& state = edges_[edge];
  const Link& link = state.link;
  Packet& packet = pool_[index];
  if (!link.up) return drop(index, Fate::k_dropped_link_down);
  if (link.mtu_bytes != 0 && packet.size > link.mtu_bytes) return drop(index, Fate::k_dropped_too_long);
  base::TimeNs arrival = leaves + link.propagation_ns;
  if (link.jitter_ns > 0) {
    arrival += static_cast<base::DurationNs>(prng_.below(static_cast<std::uint64_t>(link.jitter_ns) + 1));
    arrival = std::max(arrival, state.port.last_arrival_ns);
    state.port.last_arrival_ns = arrival;
  }
  const Impairments& faults = packet.is_data() ? link.data : link.control;
  if (faults.any()) {
    if (prng_.chance(faults.drop)) return drop(index, Fate::k_dropped_loss);
    const auto late = [&] {
      return static_cast<base::DurationNs>(prng_.below(static_cast<std::uint64_t>(link.reorder_ns) + 1));
    };
    if (prng_.chance(faults.duplicate)) {
      const std::uint32_t copy = pool_.take();
      Packet& second = pool_[copy];
      std::byte* const bytes = second.bytes;
      second = packet;
      second.bytes = bytes;
      std::memcpy(bytes, packet.bytes, packet.size);
      ledger_.add(Fate::k_duplicated, packet.is_data(), packet.size);
      events_.push(arrival + late(), EventKind::kArrival, edge, copy);
    }
    if (prng_.chance(faults.reorder)) {
      arrival += late();
      if (on_fault) on_fault();
    }
    if (prng_.chance(faults.corrupt)) {
      if (on_fault) on_fault();
      if (!corrupt(edge, index)) return;
    }
  }
  events_.push(arrival, EventKind::kArrival, edge, index);
}

// UDP's checksum covers the payload, so the kernel drops what was damaged there. Headers and control packets have a
// check of their own (wire/packet.h), which the endpoint must verify. That check misses a few damages of three bits,
// and the kernel drops those too.
bool Network::corrupt(std::uint32_t edge, std::uint32_t index) {
  Packet& packet = pool_[index];
  if (!edges_[edge].link.udp_checksum) {
    for (std::uint64_t flips = 1 + prng_.below(3); flips > 0; --flips) {
      packet.bytes[prng_.below(packet.size)] ^= static_cast<std::byte>(1U << prng_.below(8));
    }
    return true;
  }
  const std::uint32_t checked = packet.is_data() ? std::uint32_t{MLT_DATA_HEADER_BYTES} : packet.size;
  const std::vector<std::byte> before(packet.bytes, packet.bytes + checked);
  for (std::uint64_t flips = 1 + prng_.below(3); flips > 0; --flips) {
    const auto at = static_cast<std::uint32_t>(prng_.below(packet.size));
    if (at >= checked) {
      drop(index, Fate::k_dropped_checksum);
      return false;
    }
    packet.bytes[at] ^= static_cast<std::byte>(1U << prng_.below(8));
  }
  if (!only_udp_notices(before, {packet.bytes, checked})) return true;
  drop(index, Fate::k_dropped_checksum);
  return false;
}

bool Network::arrive(base::TimeNs now, std::uint32_t edge, std::uint32_t index) {
  ++hops_;
  const std::uint32_t node = edges_[edge].to;
  if (node < hosts_) {
    MLT_CHECK(node == pool_[index].to);
    return true;
  }
  forward(now, node, index);
  return false;
}

void Network::finish(std::uint32_t index, Fate fate) {
  if (fate != Fate::k_delivered) return drop(index, fate);
  ledger_.add(fate, pool_[index].is_data(), pool_[index].size);
  pool_.give(index);
}

void Network::drop(std::uint32_t index, Fate fate) {
  const Packet& packet = pool_[index];
  ledger_.add(fate, packet.is_data(), packet.size);
  if (on_drop) on_drop(packet, fate);
  if (on_fault) on_fault();
  pool_.give(index);
}

std::uint64_t Network::nic_backlog_bytes(std::uint16_t host) const { return edges_[nics_[host]].port.queued_bytes(); }

base::TimeNs Network::nic_drained_ns(base::TimeNs now, std::uint16_t host, std::uint64_t bytes) const {
  const EdgeState& nic = edges_[nics_[host]];
  if (nic.port.queued_bytes() <= bytes) return now;
  const std::uint64_t excess = nic.port.queued_bytes() - bytes;
  return std::max(now, nic.port.busy_until_ns) + base::serialisation_ns(excess, nic.link.rate_bytes_per_second);
}

void Network::pause(base::TimeNs now, std::uint32_t edge, std::uint32_t queues) {
  edges_[edge].port.pause(queues);
  serve(now, edge);
}

void Network::block(std::uint16_t from, std::uint16_t to, bool blocked) { blocked_[pair_of(from, to)] = blocked; }

}  // namespace mlt::sim
