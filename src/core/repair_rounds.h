// The rounds of one send: which BITMAP starts the next, which segments it requests again, and whether so many were lost
// that the rate is too high. Paper sections 4.2.1 and 4.2.3.
//
// A request is the BITMAP, of one or more chunks, that answers a round. A chunk of it may arrive when the segments that
// the others request have left already: then it starts a further round of the same request.
//
// Invariants: the round only rises, by one at a time; a chunk of a request counts once; is_round_lost() is true at most
// once per request. Absent on purpose: the order of what is sent (SendOrder), the rate. Owned by a send (SendState),
// used by one thread.
#pragma once

#include <array>
#include <cstdint>

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

  // What a BITMAP with bits is for the send.
  SendEvent event_of(const wire::BitmapMessage& bitmap) const;
  // The first chunk of a BITMAP of the round arrived: the segments that it requests are the next round.
  void begin_round();
  // A further chunk of the request arrived when the round that it started had left.
  void begin_further_round() { ++round_; }
  // Marks the segments that a chunk, not merged before, requests as pending in the current round. Returns how many were
  // not pending before.
  std::uint32_t merge(const wire::BitmapMessage& bitmap, base::BitmapView& pending);
  // So many more segments of the previous round are sent again. True if more than half of many are.
  bool is_round_lost(std::uint32_t added);

 private:
  // Rounds of one request: half of the numbers of a round, so that both ends agree which of two is newer.
  static constexpr std::uint8_t kMaxRoundsPerRequest = 127;

  bool is_merged(const wire::BitmapMessage& bitmap) const;

  std::uint8_t round_ = 0;
  std::uint8_t requested_round_ = 0;   // the round whose bitmap is the request; equal to round_: none came yet
  std::uint32_t sent_ = 0;             // packets since the request
  std::uint32_t sent_previously_ = 0;  // packets before it, since the previous one; 0: their loss was reported
  std::uint32_t requested_again_ = 0;  // segments of these that the request names
  std::array<std::uint64_t, kMaxBitmapChunks / 64> merged_chunks_{};  // of the request
};

}  // namespace mlt::core
