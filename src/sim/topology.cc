#include "sim/topology.h"

#include <utility>

#include "base/check.h"

namespace mlt::sim {

namespace {

Topology empty(std::uint16_t hosts, std::uint32_t switches, const Fabric& fabric) {
  Topology topology;
  topology.hosts = hosts;
  topology.nodes = hosts + switches;
  topology.buffer_bytes.assign(topology.nodes, fabric.switch_buffer_bytes);
  for (std::uint16_t host = 0; host < hosts; ++host) topology.buffer_bytes[host] = kUnlimited;
  return topology;
}

// A NIC: one queue, no limit, no marks.
PortConfig nic() { return {}; }

void add_host(Topology& topology, std::uint32_t host, std::uint32_t leaf, const Fabric& fabric) {
  topology.add_cable(host, leaf, fabric.host_link, nic(), fabric.port);
}

}  // namespace

std::uint32_t Topology::add_cable(std::uint32_t a, std::uint32_t b, const Link& link, const PortConfig& port_a,
                                  const PortConfig& port_b) {
  MLT_CHECK(a < nodes && b < nodes && a != b);
  const auto index = static_cast<std::uint32_t>(edges.size());
  edges.push_back({a, b, link, port_a});
  edges.push_back({b, a, link, port_b});
  return index;
}

std::uint32_t Topology::edge(std::uint32_t a, std::uint32_t b) const {
  std::uint32_t index = 0;
  while (index < edges.size() && (edges[index].from != a || edges[index].to != b)) ++index;
  MLT_CHECK(index < edges.size());
  return index;
}

Topology star(std::uint16_t hosts, const Fabric& fabric) {
  Topology topology = empty(hosts, 1, fabric);
  for (std::uint16_t host = 0; host < hosts; ++host) add_host(topology, host, hosts, fabric);
  return topology;
}

Topology dumbbell(std::uint16_t left, std::uint16_t right, const Fabric& fabric) {
  const auto hosts = static_cast<std::uint16_t>(left + right);
  Topology topology = empty(hosts, 2, fabric);
  for (std::uint16_t host = 0; host < hosts; ++host) add_host(topology, host, hosts + (host < left ? 0U : 1U), fabric);
  topology.add_cable(hosts, hosts + 1U, fabric.core_link, fabric.port, fabric.port);
  return topology;
}

Topology leaf_spine(std::uint32_t leaves, std::uint32_t spines, std::uint16_t hosts_per_leaf, const Fabric& fabric) {
  const auto hosts = static_cast<std::uint16_t>(leaves * hosts_per_leaf);
  Topology topology = empty(hosts, leaves + spines, fabric);
  for (std::uint16_t host = 0; host < hosts; ++host) {
    add_host(topology, host, hosts + static_cast<std::uint32_t>(host / hosts_per_leaf), fabric);
  }
  for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
    for (std::uint32_t spine = 0; spine < spines; ++spine) {
      topology.add_cable(hosts + leaf, hosts + leaves + spine, fabric.core_link, fabric.port, fabric.port);
    }
  }
  return topology;
}

Topology fat_tree(std::uint32_t k, const Fabric& fabric) {
  MLT_CHECK(k >= 2 && k % 2 == 0);
  const std::uint32_t half = k / 2;
  const auto hosts = static_cast<std::uint16_t>(k * half * half);
  Topology topology = empty(hosts, k * k + half * half, fabric);
  const std::uint32_t edges = hosts;  // k * half of them, by pod
  const std::uint32_t aggregations = edges + k * half;
  const std::uint32_t cores = aggregations + k * half;
  for (std::uint32_t host = 0; host < hosts; ++host) add_host(topology, host, edges + host / half, fabric);
  for (std::uint32_t pod = 0; pod < k; ++pod) {
    for (std::uint32_t a = 0; a < half; ++a) {
      const std::uint32_t aggregation = aggregations + pod * half + a;
      for (std::uint32_t e = 0; e < half; ++e) {
        topology.add_cable(edges + pod * half + e, aggregation, fabric.core_link, fabric.port, fabric.port);
      }
      for (std::uint32_t c = 0; c < half; ++c) {
        topology.add_cable(aggregation, cores + a * half + c, fabric.core_link, fabric.port, fabric.port);
      }
    }
  }
  return topology;
}

Topology from_cables(std::uint16_t hosts, std::uint32_t switches,
                     std::span<const std::pair<std::uint32_t, std::uint32_t>> cables, const Fabric& fabric) {
  Topology topology = empty(hosts, switches, fabric);
  for (const auto& [a, b] : cables) {
    const bool to_host = a < hosts || b < hosts;
    topology.add_cable(a, b, to_host ? fabric.host_link : fabric.core_link, a < hosts ? nic() : fabric.port,
                       b < hosts ? nic() : fabric.port);
  }
  return topology;
}

Routes::Routes(const Topology& topology)
    : hosts_(topology.hosts), distance_(std::size_t{topology.nodes} * topology.hosts, kUnreachable) {
  std::vector<std::vector<std::uint32_t>> into(topology.nodes);
  std::vector<std::vector<std::uint32_t>> out_of(topology.nodes);
  for (std::uint32_t index = 0; index < topology.edges.size(); ++index) {
    into[topology.edges[index].to].push_back(index);
    out_of[topology.edges[index].from].push_back(index);
  }
  const auto at = [&](std::uint32_t node, std::uint32_t host) -> std::uint32_t& {
    return distance_[std::size_t{node} * hosts_ + host];
  };
  std::vector<std::uint32_t> frontier;
  for (std::uint32_t host = 0; host < hosts_; ++host) {  // breadth first, backwards from each destination
    frontier.assign(1, host);
    at(host, host) = 0;
    for (std::size_t next = 0; next < frontier.size(); ++next) {
      const std::uint32_t node = frontier[next];
      if (node < hosts_ && node != host) continue;  // hosts forward nothing
      for (const std::uint32_t index : into[node]) {
        const std::uint32_t before = topology.edges[index].from;
        if (at(before, host) != kUnreachable) continue;
        at(before, host) = at(node, host) + 1;
        frontier.push_back(before);
      }
    }
  }
  first_.reserve(distance_.size() + 1);
  for (std::uint32_t node = 0; node < topology.nodes; ++node) {
    for (std::uint32_t host = 0; host < hosts_; ++host) {
      first_.push_back(static_cast<std::uint32_t>(edges_.size()));
      const std::uint32_t distance = at(node, host);
      if (distance == kUnreachable || distance == 0) continue;
      for (const std::uint32_t index : out_of[node]) {
        const std::uint32_t to = topology.edges[index].to;
        if (to < hosts_ && to != host) continue;
        if (at(to, host) == distance - 1) edges_.push_back(index);
      }
    }
  }
  first_.push_back(static_cast<std::uint32_t>(edges_.size()));
}

}  // namespace mlt::sim
