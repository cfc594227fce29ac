// Sizes and defaults of one endpoint. Each limit is set here once; no queue or table grows afterwards.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "core/priority.h"
#include "core/timely.h"

namespace mlt::core {

// Rate to a peer whose path has flow control of its own: faster than memory, so that the pacer never waits.
inline constexpr double kUncontrolledBytesPerSecond = 1e12;

// PROTOCOL 17.1.1: Every queue and table MUST have a limit that is set before the first datagram, and its address space
//     with it.
struct EndpointConfig {
  std::uint16_t rank = 0;
  std::uint16_t peers = 2;  // ranks in the job, this one included
  std::uint8_t paths = 1;   // to each peer, up to MLT_MAX_PATHS
  // Memory of the tables is touched as it is used: an unused limit costs almost nothing.
  std::uint32_t max_sends = 65'536;     // in progress, complete and not polled, or failed with ABORT unacknowledged
  std::uint32_t max_receives = 65'536;  // in progress, or complete and not yet polled
  std::uint32_t max_tags = 262'144;     // max tags remembered of one peer, of sends and of receives each
  // After this many new tags of sends to one peer, tags not in use are forgotten; 0: never.
  std::uint32_t retire_after = 16'384;
  // Max tags of one peer, before their receives are posted, that only that peer asked to keep. Equal on all ranks.
  std::uint32_t unknown_tags = 2'048;
  // Bitmaps of all transfers in progress: 2^23 words = 537 M segments = 768 GB of tensors at 1,432 bytes each.
  std::uint32_t bitmap_words = 1U << 23;
  std::uint32_t max_segment_bytes = 8'960;  // payload of a jumbo frame
  // Buffered for receives that are not posted yet, over all peers: 23 MB of segments of 1,432 bytes.
  std::uint32_t early_segments = 16'384;
  std::uint32_t early_transfers = 2'048;  // max transfers with buffered segments
  std::uint32_t finished_log = 4'096;     // outcomes remembered for senders whose STOP was lost
  std::uint32_t reply_queue = 4'096;  // replies waiting to be sent; a full queue drops one, and the sender probes again
  // Max bytes in flight to a peer whose path needs more than the window that it offered; 0: never more than that.
  std::uint64_t max_window_bytes = std::uint64_t{512} << 20;
  // Parity packets behind the first round of exact sends, where loss is known and a repair round would cost more time.
  bool erasure_correction = false;
  base::DurationNs min_parity_round_trip_ns = 500 * base::kMicrosecond;  // sends over shorter paths get none
  std::uint32_t parity_packets = 1'024;                      // kept until they restore segments, over all receives
  std::uint64_t parity_sum_bytes = std::uint64_t{16} << 20;  // of the one send whose sums are made while it sends
  std::uint32_t packets_per_ack = 10;                        // paper section 4.2.3
  bool pairs = true;                 // batches of two packets to slow peers, which save half of the system calls
  std::uint32_t first_sequence = 1;  // of the first packet to a peer on each path; not 0. Tests start before the wrap
  base::DurationNs operation_timeout_ns = 300 * base::kSecond;
  TimelyConfig timely;
  DscpMap dscp;

  // Each peer's share of the early buffer, announced in hello.
  std::uint32_t early_segments_per_peer() const { return share_of(early_segments); }
  std::uint32_t early_transfers_per_peer() const { return share_of(early_transfers); }
  // Each peer's share of half of the tags. All peers share the rest.
  std::uint32_t own_tags_per_peer() const { return share_of((max_tags + 1) / 2); }
  std::uint32_t common_tags() const { return max_tags - own_tags_per_peer(); }
  // Bounded by the peer's own share, so that the receiver's table fills no faster if all ranks have the same options.
  std::uint32_t retire_after_per_peer() const { return std::min(retire_after, own_tags_per_peer()); }

 private:
  std::uint32_t share_of(std::uint32_t all) const {
    const std::uint32_t others = peers > 1 ? peers - 1U : 1U;
    return all > others ? all / others : 1;
  }
};

}  // namespace mlt::core
