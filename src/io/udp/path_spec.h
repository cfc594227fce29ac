// The caller's specification of one path to all peers: an address and a port of its own, so that ECMP hashing in
// switches routes it differently from the other paths; or a flow label; or an explicit list of switches (SRv6).
//
// Absent on purpose: path selection for a run (core/path_spray.h), and names of interfaces (the caller resolves them).
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
  std::string device;            // leave by this interface regardless of routes; empty: by the routes
  std::uint32_t flow_label = 0;  // 20 bits, IPv6; 0: chosen by the system
  SegmentList segments;          // to all ranks not in segments_to; empty: none
  std::vector<std::pair<std::uint16_t, SegmentList>> segments_to;  // to these ranks; each once
};

}  // namespace mlt::io
