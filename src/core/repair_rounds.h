// The rounds of one send: which BITMAP starts the next, which segments it requests again, and whether so many were lost
// that the rate is too high. Paper sections 4.2.1 and 4.2.3.
//
// Invariants: the round only rises, by one at a time; a chunk of the bitmap counts once per round; is_round_lost() is
// true at most once per round. Absent on purpose: the order of what is sent (SendOrder), the rate. Owned by a send
// (SendState), used by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/bitmap.h"
#include "core/send_table.h"
#include "wire/control.h"

namespace mlt::core {

// Max bitmap chunks of one round; limits a transfer to 4.2 M segments.
inline constexpr std::uint32_t kMaxBitmapChunks = 512;

// Whether the BITMAP requests any segment.
bool requests_any(const wire::BitmapMessage& bitmap);

class RepairRounds {
 public:
  std::uint8_t round() const { return round_; }
  // A packet of the round leaves.
  void count_sent() { ++sent_; }

  // What a BITMAP that answers this round is for the send.
  SendEvent event_of(std::uint8_t bitmap_round) const;
  // The first chunk of a BITMAP of the round arrived: the segments that it requests are the next round.
  void begin_round();
  // Marks the segments that one chunk requests as pending in the current round. Returns how many were not pending
  // before; empty if the chunk was merged before.
  std::optional<std::uint32_t> merge(const wire::BitmapMessage& bitmap, base::BitmapView& pending);
  // So many more segments of the previous round are sent again. True if more than half of many are.
  bool is_round_lost(std::uint32_t added);

 private:
  std::uint8_t round_ = 0;
  std::uint32_t sent_ = 0;             // packets of the round
  std::uint32_t sent_previously_ = 0;  // packets of the previous round; 0: its loss was reported
  std::uint32_t requested_again_ = 0;  // segments of that round that its bitmap requests
  std::array<std::uint64_t, kMaxBitmapChunks / 64> merged_chunks_{};  // of the bitmap that started this round
};

}  // namespace mlt::core
