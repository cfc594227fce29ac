// A core endpoint with small tables, and peers that came up without a network.
#pragma once

#include "core/endpoint.h"

namespace mlt::engine_test {

inline core::EndpointConfig small_config(std::uint32_t max_segment_bytes = 8'960) {
  core::EndpointConfig config;
  config.rank = 0;
  config.peers = 3;
  config.max_sends = config.max_receives = 8;
  config.max_tags = 64;
  config.bitmap_words = 1U << 12;
  config.early_segments = config.early_transfers = 16;
  config.max_segment_bytes = max_segment_bytes;
  return config;
}

inline core::PeerUp peer_up(std::uint16_t peer, std::uint32_t segment_bytes = 1'432) {
  core::PeerUp up;
  up.peer = peer;
  up.local_cookie = (std::uint64_t{1} << 20) | peer;
  up.remote_cookie = std::uint64_t{1} << 20;  // of rank 0
  up.segment_bytes = segment_bytes;
  up.window_bytes = 1U << 20;
  up.early_segments = up.early_transfers = 16;
  return up;
}

}  // namespace mlt::engine_test
