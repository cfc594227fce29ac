// The path MTU checks of all peers (mtu_search.h): when they start, what they send, and which limit follows.
//
// Invariants: a peer's timer is set to the earliest timeout of its searches; no path of a peer that holds data back is
// checked. Absent on purpose: the search for one path's limit (MtuSearch), and what a limit does to sends (Sender).
// Owned by the endpoint's Sender, used by one thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bitmap.h"
#include "base/datagram.h"
#include "base/packed_rows.h"
#include "core/mtu_search.h"
#include "core/peer.h"
#include "wire/control.h"

namespace mlt::core {

class MtuChecks {
 public:
  explicit MtuChecks(Shared& shared);

  // A connection came up, with datagrams of up to `full_bytes`.
  void on_peer_up(std::uint16_t peer, std::uint32_t full_bytes);
  void on_peer_down(std::uint16_t peer);

  // A batch of data is about to leave.
  void on_data_sent(TimeNs now, const base::DatagramRun& run);
  // A trailing probe left on the path.
  void on_trailing_probe_sent(std::uint16_t peer, std::uint8_t path) { searches_of(peer)[path].on_short_packets(1); }
  // Packets were lost on these paths (bit mask).
  void on_loss(std::uint16_t peer, std::uint32_t paths) {
    for (; paths != 0; paths &= paths - 1)
      searches_of(peer)[static_cast<std::size_t>(std::countr_zero(paths))].on_loss();
  }

  // Builds the next MTU_PROBE; false if none is due.
  bool fill_probe(TimeNs now, base::DatagramRun& run);
  // Both call `on_limit(payload_bytes)` whenever every path to the peer turns out to carry no longer payload.
  template <typename OnLimit>
  void on_reply(TimeNs now, std::uint16_t from, const wire::MtuReply& reply, OnLimit&& on_limit) {
    MtuSearch& search = searches_of(from)[reply.prefix.path];
    // RECOVERY R2.6.8: A sender MUST ignore an MTU_REPLY of a path that is not being checked (stale_control).
    if (!search.is_running()) return shared_.counters.add(Counter::k_stale_control);
    take_outcome(from, reply.prefix.path, search.on_reply(now, reply.timestamp_ns, reply.bytes), on_limit);
  }
  // `is_sending`: whether a send to the peer is in progress.
  template <typename OnLimit>
  void on_timer(TimeNs now, std::uint16_t peer, bool is_sending, OnLimit&& on_limit) {
    // RECOVERY R2.6.4: The check ends without a result when no send to the peer is in progress.
    if (!is_sending) {
      for (std::uint8_t path = 0; path < shared_.config.paths; ++path) searches_of(peer)[path].postpone(now);
      return arm(peer);
    }
    for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
      const std::uint64_t reported = shared_.peers[peer].spray.view(path).packets_reported;
      take_outcome(peer, path, searches_of(peer)[path].on_timeout(now, reported), on_limit);
    }
  }

  // Max datagram size that some path to the peer carries; 0: no limit is known.
  std::uint32_t limit_bytes(std::uint16_t peer) const;

 private:
  // By path.
  std::span<MtuSearch> searches_of(std::size_t peer) { return searches_.row(peer); }
  std::span<const MtuSearch> searches_of(std::size_t peer) const { return searches_.row(peer); }
  void start(std::uint16_t peer, std::uint8_t path);
  // True if the path has a limit now.
  bool apply(std::uint16_t peer, std::uint8_t path, MtuSearch::Outcome outcome);
  template <typename OnLimit>
  void take_outcome(std::uint16_t peer, std::uint8_t path, MtuSearch::Outcome outcome, OnLimit& on_limit) {
    if (!apply(peer, path, outcome)) return;
    if (const std::uint32_t limit = limit_bytes(peer); limit != 0) on_limit(limit - MLT_DATA_HEADER_BYTES);
  }
  void arm(std::uint16_t peer);

  Shared& shared_;
  base::PackedRows<MtuSearch> searches_;  // by peer and path
  std::vector<std::uint64_t> due_words_;
  base::BitmapView probes_due_;  // peers
};

}  // namespace mlt::core
