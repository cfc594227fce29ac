// Planned routes in a form ready for forwarding: the edges that a packet crosses if its route is not left to the
// shortest ones.
//
// A packet in flight carries an index into the table: the entry is its next edge, the following entry the edge after.
// Absent on purpose: planning (the planners), names and error texts for users (sim/transfers.h). Owned by the network.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/packet.h"
#include "sim/topology.h"

namespace mlt::sim {

class RouteTable {
 public:
  // MLT_CHECKs that every route leads from its host to the other over switches, edge by edge, and that a pair is
  // planned at most once.
  explicit RouteTable(const Topology& topology);

  // Where the route of a packet from one host to another on `path` starts in the table; kNoRoute if none is planned.
  std::uint32_t first(std::uint16_t from, std::uint16_t to, std::uint8_t path) const {
    if (pair_.empty()) return kNoRoute;
    const std::uint32_t pair = pair_[std::size_t{from} * hosts_ + to];
    if (pair == kNoRoute) return kNoRoute;
    return starts_[pair + 1 + path % starts_[pair]];
  }
  std::uint32_t edge(std::uint32_t at) const { return edges_[at]; }

 private:
  std::uint16_t hosts_;
  std::vector<std::uint32_t> pair_;    // per pair of hosts: index into starts_; empty if nothing is planned
  std::vector<std::uint32_t> starts_;  // of a pair: the number of its routes, then where each begins in edges_
  std::vector<std::uint32_t> edges_;
};

}  // namespace mlt::sim
