#include "core/repair_rounds.h"

#include <utility>

namespace mlt::core {

namespace {

// In packets: losses of smaller rounds are weak evidence about the rate.
constexpr std::uint32_t kMinRoundPackets = 64;

bool is_received(const wire::BitmapMessage& bitmap, std::uint32_t i) {
  return ((std::to_integer<std::uint32_t>(bitmap.bits[i / 8]) >> (i % 8)) & 1U) != 0;
}

}  // namespace

bool requests_any(const wire::BitmapMessage& bitmap) {
  for (std::uint32_t i = 0; i < bitmap.segment_count; ++i) {
    if (!is_received(bitmap, i)) return true;
  }
  return false;
}

bool RepairRounds::is_merged(const wire::BitmapMessage& bitmap) const {
  const std::uint32_t chunk = bitmap.first_segment / MLT_BITMAP_CHUNK_SEGMENTS;
  return ((merged_chunks_[chunk / 64] >> (chunk % 64)) & 1U) != 0;
}

SendEvent RepairRounds::event_of(const wire::BitmapMessage& bitmap) const {
  if (bitmap.prefix.round == round_) return SendEvent::k_bitmap;
  const auto rounds = static_cast<std::uint8_t>(round_ - requested_round_);
  const bool of_request = rounds > 0 && rounds <= kMaxRoundsPerRequest && bitmap.prefix.round == requested_round_;
  // PROTOCOL 6.7.5: It MUST ignore another, the reply to a repeated probe, and one that requests nothing
  //     (stale_control).
  return of_request && !is_merged(bitmap) ? SendEvent::k_late_bitmap : SendEvent::k_other_bitmap;
}

void RepairRounds::begin_round() {
  base::BitmapView(merged_chunks_.data(), kMaxBitmapChunks).clear_all();
  requested_round_ = round_++;
  sent_previously_ = std::exchange(sent_, 0);
  requested_again_ = 0;
}

std::uint32_t RepairRounds::merge(const wire::BitmapMessage& bitmap, base::BitmapView& pending) {
  std::uint32_t added = 0;
  for (std::uint32_t i = 0; i < bitmap.segment_count; ++i) {
    if (is_received(bitmap, i) || pending.test(bitmap.first_segment + i)) continue;
    // PROTOCOL 6.7.3: A sender MUST send again every segment whose bit is clear.
    pending.set(bitmap.first_segment + i);
    ++added;
  }
  // PROTOCOL 6.7.5: A sender MUST take a chunk of the bitmap once per request.
  base::BitmapView(merged_chunks_.data(), kMaxBitmapChunks).set(bitmap.first_segment / MLT_BITMAP_CHUNK_SEGMENTS);
  return added;
}

bool RepairRounds::is_round_lost(std::uint32_t added) {
  // RECOVERY R1.2.13: When a BITMAP requests again more than half of a round of 64 packets or more, a sender MUST halve
  //     the rate, once per round (rounds_lost).
  requested_again_ += added;
  if (sent_previously_ < kMinRoundPackets || 2 * std::uint64_t{requested_again_} <= sent_previously_) return false;
  sent_previously_ = 0;
  return true;
}

}  // namespace mlt::core
