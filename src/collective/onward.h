// A send that passes on the data of a receive while it arrives: which of its segments are whole.
//
// Reserved when the receive is posted, and in use until the send has ended. Absent on purpose: the memory, which is the
// owner's, and the question whether the send may be posted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/checksums.h"
#include "core/event.h"

namespace mlt::collective {

struct Onward {
  std::uint32_t send_step = 0;  // 0: none
  std::uint32_t segment_bytes = 0;
  core::SendFeed feed;
  std::vector<std::uint64_t> words;  // of the feed
  std::vector<std::uint32_t> left;   // bytes still to arrive, for each segment of the send
  std::uint32_t segments_left = 0;
  std::span<const std::byte> data;  // of the send
  bool has_checksum = false;
  std::uint64_t checksum = 0;  // of the segments so far (checksums.h)

  // For a send of `bytes`, in segments of this many.
  void begin(std::uint32_t step, std::span<const std::byte> bytes, std::uint32_t segment, bool with_checksum);
  // These bytes have arrived, or are missing for good: each byte once.
  void add(std::uint64_t offset_bytes, std::uint64_t bytes);
  // Of the send of this step; none before all of it was fed.
  std::optional<std::uint64_t> fed_checksum(std::uint32_t step) const {
    if (send_step != step || segments_left > 0) return std::nullopt;
    return checksum;
  }
};

}  // namespace mlt::collective
