// State of the paths to a peer, for the public API.
//
// Locking: udp_port() and addresses() run on any thread, also after the datapath is gone; fill() requires the
// loop's lock. Invariant: the addresses do not change after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/endpoint.h"
#include "engine/datapath_opening.h"
#include "io/net/socket_address.h"
#include "mlt.h"

namespace mlt::engine {

class PathReport {
 public:
  // The references, and the datapath, must outlive the last fill().
  PathReport(const core::Endpoint& endpoint, const OpenedDatapath& datapath);

  // UDP port of path 0.
  std::uint16_t udp_port() const { return addresses_.front().port(); }
  // One entry per path with its own address; all else is zero.
  std::vector<PathStatus> addresses() const;
  // Sets the rest of such entries, for one peer.
  void fill(std::uint16_t peer, std::span<PathStatus> paths) const;

 private:
  const core::Endpoint& endpoint_;
  const OpenedDatapath& datapath_;
  std::vector<io::SocketAddress> addresses_;  // of this rank, per path
};

}  // namespace mlt::engine
