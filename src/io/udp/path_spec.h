// What one path to all peers is, as the caller asks for it: an address and a port of its own, so that the switches'
// hashes send it another way than its siblings, or a flow label, or the switches by name (SRv6).
//
// Absent on purpose: which path a run takes (core/path_spray.h), and names of interfaces (the caller resolves them).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/net/socket_address.h"

namespace mlt::io {

using SegmentList = std::vector<SocketAddress>;  // IPv6, in order of travel, without the destination; ports are ignored

struct PathSpec {
  SocketAddress bind;            // port 0: the system chooses
  std::string device;            // leave by this interface whatever the routes say; empty: by the routes
  std::uint32_t flow_label = 0;  // 20 bits, IPv6; 0: as the system chooses
  SegmentList segments;          // to all ranks that segments_to does not name; empty: none
  std::vector<std::pair<std::uint16_t, SegmentList>> segments_to;  // to these ranks; each once
};

}  // namespace mlt::io
