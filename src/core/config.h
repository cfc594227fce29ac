// Sizes and defaults of one endpoint. Every queue and table gets its limit here, once; nothing grows afterwards.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "core/priority.h"
#include "core/timely.h"

namespace mlt::core {

// To a peer whose way holds back by itself: more than memory moves, so that the pacer never waits.
inline constexpr double kUncontrolledBytesPerSecond = 1e12;

// PROTOCOL 17.1.1: Every queue and table MUST have a limit that is set before the first datagram, and its address space
//     with it.
struct EndpointConfig {
  std::uint16_t rank = 0;
  std::uint16_t peers = 2;  // ranks in the job, this one included
  std::uint8_t paths = 1;   // to each peer, up to MLT_MAX_PATHS
  // Memory of the tables is touched as it is used: a limit that is not reached costs next to nothing.
  std::uint32_t max_sends = 65'536;     // under way, or completed and not yet polled, or given up and not yet answered
  std::uint32_t max_receives = 65'536;  // under way, or completed and not yet polled
  std::uint32_t max_tags = 262'144;     // tags remembered of one peer at most, of sends and of receives each
  // New tags of sends to one peer after which those not in use are forgotten; 0: never.
  std::uint32_t retire_after = 16'384;
  // Tags of one peer that may be kept by its word alone, before a receive of them is posted. The same everywhere.
  std::uint32_t unknown_tags = 2'048;
  // Bitmaps of everything under way: 2^23 words = 537 M segments = 768 GB of tensors at 1,432 bytes each.
  std::uint32_t bitmap_words = 1U << 23;
  std::uint32_t max_segment_bytes = 8'960;  // payload; a jumbo frame's worth
  std::uint32_t early_segments = 2'048;     // kept for receives that are not posted yet, over all peers
  std::uint32_t early_transfers = 2'048;    // that these may belong to
  std::uint32_t finished_log = 4'096;       // outcomes remembered for senders whose STOP was lost
  std::uint32_t reply_queue = 4'096;  // replies waiting to be sent; a full queue drops one, and the sender probes again
  std::uint32_t packets_per_ack = 10;  // paper section 4.2.3
  std::uint32_t first_sequence = 1;    // of the first packet to a peer on each path; tests begin before the wrap. Not 0
  base::DurationNs operation_timeout_ns = 300 * base::kSecond;
  TimelyConfig timely;
  DscpMap dscp;

  // Each peer's share of the early buffer, announced in hello.
  std::uint32_t early_segments_per_peer() const { return share_of(early_segments); }
  std::uint32_t early_transfers_per_peer() const { return share_of(early_transfers); }
  // Each peer's share of half of the tags; the rest is for whoever needs more.
  std::uint32_t own_tags_per_peer() const { return share_of((max_tags + 1) / 2); }
  std::uint32_t common_tags() const { return max_tags - own_tags_per_peer(); }
  // The receiver's table fills no faster, where all are configured alike.
  std::uint32_t retire_after_per_peer() const { return std::min(retire_after, own_tags_per_peer()); }

 private:
  std::uint32_t share_of(std::uint32_t all) const {
    const std::uint32_t others = peers > 1 ? peers - 1U : 1U;
    return all > others ? all / others : 1;
  }
};

}  // namespace mlt::core
