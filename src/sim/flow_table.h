// What a watch knows of each pair of a host and a peer of it, by PeerUp and the host's crashes. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/event.h"

namespace mlt::sim {

// `Flow` has `bool up` and `core::PeerUp peer`.
template <typename Flow>
class FlowTable {
 public:
  explicit FlowTable(std::uint16_t hosts) : hosts_(hosts), flows_(std::size_t{hosts} * hosts) {}

  std::uint16_t hosts() const { return hosts_; }
  Flow& at(std::uint16_t rank, std::uint16_t peer) { return flows_[std::size_t{rank} * hosts_ + peer]; }
  const Flow& at(std::uint16_t rank, std::uint16_t peer) const { return flows_[std::size_t{rank} * hosts_ + peer]; }
  void came_up(std::uint16_t rank, const core::PeerUp& up) {
    Flow& flow = at(rank, up.peer);
    flow = Flow{};
    flow.up = true;
    flow.peer = up;
  }
  void crashed(std::uint16_t rank) {
    for (std::uint16_t peer = 0; peer < hosts_; ++peer) at(rank, peer) = Flow{};
  }

 private:
  std::uint16_t hosts_;
  std::vector<Flow> flows_;
};

}  // namespace mlt::sim
