// Planned ways, ready for packets: which edges a packet crosses one after the other when its way is not left to the
// shortest ones.
//
// A packet that carries an index into the table is on its way: the index tells its next edge, one more the edge after.
// Absent on purpose: who plans (the planners), names and messages for people (sim/transfers.h). Owned by the network.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/packet.h"
#include "sim/topology.h"

namespace mlt::sim {

class WayTable {
 public:
  // MLT_CHECKs that every way leads from its host to the other over switches, edge by edge, and that a pair is planned
  // once at most.
  explicit WayTable(const Topology& topology);

  // Where the way of a packet from one host to another on `path` starts in the table; kNoWay if none is planned.
  std::uint32_t first(std::uint16_t from, std::uint16_t to, std::uint8_t path) const {
    if (pair_.empty()) return kNoWay;
    const std::uint32_t pair = pair_[std::size_t{from} * hosts_ + to];
    if (pair == kNoWay) return kNoWay;
    return starts_[pair + 1 + path % starts_[pair]];
  }
  std::uint32_t edge(std::uint32_t at) const { return edges_[at]; }

 private:
  std::uint16_t hosts_;
  std::vector<std::uint32_t> pair_;    // per pair of hosts: where in starts_; empty if nothing is planned
  std::vector<std::uint32_t> starts_;  // of a pair: the number of its ways, then where each begins in edges_
  std::vector<std::uint32_t> edges_;
};

}  // namespace mlt::sim
