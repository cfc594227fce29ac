// The event that a peer is up, for an endpoint that a test drives by hand.
#pragma once

#include <cstdint>

#include "core/event.h"

namespace mlt::test {

// As the endpoint of `own` is told of `peer`: datagrams carry 0xAAAA'0000 | peer to it and 0xBBBB'0000 | own from it.
inline core::PeerUp peer_up(std::uint16_t own, std::uint16_t peer) {
  core::PeerUp up;
  up.peer = peer;
  up.segment_bytes = 1'432;
  up.window_bytes = 1 << 20;
  up.early_segments = 64;
  up.local_cookie = 0xAAAA'0000U | peer;
  up.remote_cookie = 0xBBBB'0000U | own;
  return up;
}

}  // namespace mlt::test
