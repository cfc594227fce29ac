// What leaves next: the peers in turn; of a peer's sends the first in send order; of a send its critical segments
// first, then important ones, then the rest. Paper section 4.2.2.
//
// Invariants: a send is in its peer's queue only while it has pending segments; a peer is served only while its queue
// is not empty; one round over the peers classifies so many segments at most, and a peer that uses them up goes last in
// the next. Absent on purpose: whether and how much may leave (Sender), and the sends that wait at the early-data
// limit. Owned by the endpoint's Sender, used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bitmap.h"
#include "core/peer.h"
#include "core/send_state.h"
#include "core/transfer_slots.h"

namespace mlt::core {

class SendOrder {
 public:
  SendOrder(Shared& shared, TransferSlots<SendState>& sends);

  // Queues the send if it has pending segments; no effect on one that is queued.
  void link(SendState& state);
  void unlink(SendState& state);

  // Segments of the send become ready one after the other (SendRequest::feed).
  void begin_feed(const SendState& state) { fed_[fed_count_++] = sends_.slot_of(state); }
  void end_feed(const SendState& state);

  // Calls `fill(peer)` for each peer with work, in turn, until it returns true. False if it never does.
  template <typename Fill>
  bool serve(Fill&& fill) {
    take_feeds();
    const std::uint16_t peers = shared_.config.peers;
    const std::uint16_t first = next_peer_;
    blocks_left_ = kBlocksClassified;
    std::size_t rank = peers_with_work_.find_set(first);
    bool wrapped = false;
    while (true) {
      if (rank >= peers) {
        if (wrapped) return false;
        wrapped = true;
        rank = peers_with_work_.find_set(0);
        if (rank >= first) return false;
      }
      if (wrapped && rank >= first) return false;
      const bool may_classify = blocks_left_ > 0;
      if (fill(static_cast<std::uint16_t>(rank))) {
        // PROTOCOL 6.1.3: A sender MUST serve its peers in turn, a batch each.
        next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
        return true;
      }
      // A peer that uses up the call's classification budget goes last in the next.
      if (may_classify && blocks_left_ == 0) next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
      rank = peers_with_work_.find_set(rank + 1);
    }
  }

  // The next segment in send order. Leaves the cursor on it. False if none is left, or if the classification budget is
  // used up: then call defer().
  bool next_segment(SendState& state, std::uint32_t& segment);
  void defer(TimeNs now, std::uint16_t peer);

 private:
  // Max calls of SendRequest::classify in one poll_transmit(). At some 30 ns per segment, 2,048 segments take no longer
  // than the max length of a batch (Pacer::kRunNs). One poll still fills a batch of 64 if one segment of 32 is
  // important.
  static constexpr std::uint32_t kBlocksClassified = 32;

  void take_feeds();
  std::optional<std::uint32_t> find_of_pass(SendState& state);

  Shared& shared_;
  TransferSlots<SendState>& sends_;
  std::vector<std::uint64_t> work_words_;
  base::BitmapView peers_with_work_;
  std::vector<std::uint32_t> fed_;  // slots of sends with segments not ready yet, `fed_count_` of them
  std::uint32_t fed_count_ = 0;
  std::uint16_t next_peer_ = 0;    // next peer of the round robin
  std::uint32_t blocks_left_ = 0;  // classification budget left in this serve()
};

}  // namespace mlt::core
