// Graphs of hosts and switches, and their shortest routes.
//
// Nodes 0 .. hosts-1 are hosts, the rest are switches; hosts forward nothing. Every cable is two directed edges, each
// with its own link and output port. Absent on purpose: queues and packets (sim/network.h); how graphs are chosen
// (the planners).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/link.h"
#include "sim/switch_port.h"

namespace mlt::sim {

struct Edge {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Link link;
  PortConfig port;
};

// Routes of the packets from one host to another that replace the shortest ones: path p takes route p modulo their
// number. The routes back are planned separately, or are the shortest.
struct PlannedRoutes {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::vector<std::vector<std::uint32_t>> ways;  // edges, in order of travel
};

struct Topology {
  std::uint16_t hosts = 0;
  std::uint32_t nodes = 0;
  std::vector<Edge> edges;
  std::vector<std::uint64_t> buffer_bytes;  // per node: memory its ports share
  std::vector<PlannedRoutes> planned;       // at most one entry for a pair

  // Adds two edges, a to b and back; returns the first one's index, to which the other is next.
  std::uint32_t add_cable(std::uint32_t a, std::uint32_t b, const Link& link, const PortConfig& port_a,
                          const PortConfig& port_b);
  // The edge from a to b; MLT_CHECKs that it exists.
  std::uint32_t edge(std::uint32_t a, std::uint32_t b) const;
};

// Parameters of all cables and switches in the builders below.
struct Fabric {
  Link host_link;   // hosts to their switch
  Link core_link;   // between switches
  PortConfig port;  // of switches
  std::uint64_t switch_buffer_bytes = kUnlimited;
};

// All hosts on one switch.
Topology star(std::uint16_t hosts, const Fabric& fabric);
// Hosts 0 .. left-1 on one switch, the others on a second, one cable between.
Topology dumbbell(std::uint16_t left, std::uint16_t right, const Fabric& fabric);
// Every leaf to every spine; host h on leaf h / hosts_per_leaf. Between leaves there are `spines` paths.
Topology leaf_spine(std::uint32_t leaves, std::uint32_t spines, std::uint16_t hosts_per_leaf, const Fabric& fabric);
// Three-tier fat-tree of k-port switches: k*k*k/4 hosts, k*k/4 paths between pods. k is even. Al-Fares et al.,
// SIGCOMM 2008, section 3.
Topology fat_tree(std::uint32_t k, const Fabric& fabric);
// Any graph: `cables` name nodes, hosts first.
Topology from_cables(std::uint16_t hosts, std::uint32_t switches,
                     std::span<const std::pair<std::uint32_t, std::uint32_t>> cables, const Fabric& fabric);

// Equal-cost next edges, for every node and destination.
class Routes {
 public:
  explicit Routes(const Topology& topology);
  std::span<const std::uint32_t> next_edges(std::uint32_t node, std::uint16_t destination) const {
    const std::size_t cell = std::size_t{node} * hosts_ + destination;
    return std::span(edges_).subspan(first_[cell], first_[cell + 1] - first_[cell]);
  }
  // Number of links between the two; 0 if there is no route.
  std::uint32_t hops(std::uint32_t node, std::uint16_t destination) const {
    const std::uint32_t distance = distance_[std::size_t{node} * hosts_ + destination];
    return distance == kUnreachable ? 0 : distance;
  }

 private:
  static constexpr std::uint32_t kUnreachable = ~std::uint32_t{0};
  std::uint16_t hosts_;
  std::vector<std::uint32_t> distance_;
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> edges_;
};

}  // namespace mlt::sim
