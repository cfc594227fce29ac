// How much early data (of sends whose receive may not be posted) may stand in each peer's early buffer, and the sends
// that wait until there is space again. PROTOCOL.md names it the early data limit.
//
// Invariants, per peer: the segments counted are those of its sends that have early data there, and of abandoned ones;
// a send waits here or is in SendOrder, never both; a send with early data counts as one transfer until release() or,
// for as long as the connection lasts, abandon(). Absent on purpose: probes and timers of the sends that wait (Sender).
// Owned by the endpoint's Sender, used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/packed_rows.h"
#include "core/send_queue.h"
#include "core/send_state.h"
#include "core/transfer_slots.h"
#include "core/usage.h"

namespace mlt::core {

class EarlyDataLimit {
 public:
  // Segments of an offer that are used whatever the path: many small transfers need no report in between.
  static constexpr std::uint32_t kMinSegments = 256;
  // Part of an offer that is likewise.
  static constexpr std::uint32_t kMinPart = 8;

  EarlyDataLimit(std::uint16_t peers, TransferSlots<SendState>& sends) : peers_(peers), sends_(sends) {}

  // A connection came up; the peer offered this much, and the limit is one where it offered nothing.
  void reset(std::uint16_t peer, std::uint32_t segments, std::uint32_t transfers);

  // A path that carries `window_segments` at a time brings no report before them. True if that makes space: then call
  // wake().
  bool follow_window(std::uint16_t peer, std::uint64_t window_segments);

  // How many segments the send may send as early data now.
  std::uint32_t allowed(const SendState& state) const;
  void count_sent(SendState& state, std::uint32_t segments);
  // The early data of the send has left the peer's early buffer. True if that makes space: then call wake().
  bool release(SendState& state);
  // No report of that will come: it counts as long as the connection lasts.
  void abandon(const SendState& state);

  // The send waits for space. Returns how many sends to the peer do.
  std::uint32_t wait(SendState& state);
  // No effect on a send that does not wait.
  void stop_waiting(SendState& state);
  // Calls `visit(state)` for the first sends that wait, as many as there is space for; they no longer wait then.
  template <typename Visit>
  void wake(std::uint16_t rank, Visit&& visit) {
    PerPeer& peer = peers_[rank];
    std::uint32_t segments = peer.max_segments - std::min(peer.max_segments, peer.segments);
    std::uint32_t transfers = peer.max_transfers - std::min(peer.max_transfers, peer.transfers);
    for (; segments > 0 && peer.first_waiting != kNil; --segments) {
      SendState& state = sends_[peer.first_waiting];
      const bool is_new = state.early_segments == 0;
      if (is_new && transfers == 0) return;
      if (is_new) --transfers;
      stop_waiting(state);
      visit(state);
    }
  }

  // Sends to the peer that wait or have early data there.
  std::uint32_t sends(std::uint16_t peer) const { return peers_[peer].waiting + peers_[peer].transfers; }
  void add_usage(std::uint16_t peer, Usage& usage) const;

 private:
  struct PerPeer {
    std::uint32_t offered_segments = 1;
    std::uint32_t max_segments = 1;  // of these
    std::uint32_t max_transfers = 1;
    std::uint32_t segments = 0;
    std::uint32_t transfers = 0;
    // Segments plus transfers of sends whose ABORT was never acknowledged; both limits count them for good.
    std::uint32_t abandoned = 0;
    std::uint32_t first_waiting = kNil;  // in send order
    std::uint32_t waiting = 0;           // their number
  };

  base::PackedArray<PerPeer> peers_;
  TransferSlots<SendState>& sends_;
};

}  // namespace mlt::core
