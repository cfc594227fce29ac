// A send that passes on the data of a receive while it arrives: which of its segments are whole.
//
// Reserved when the receive is posted, and in use until the send has ended. Absent on purpose: the memory, which is the
// owner's, and the question whether the send may be posted.
#pragma once

#include <cstdint>
#include <vector>

#include "core/event.h"

namespace mlt::collective {

struct Onward {
  std::uint32_t send_step = 0;  // 0: none
  std::uint32_t segment_bytes = 0;
  core::SendFeed feed;
  std::vector<std::uint64_t> words;  // of the feed
  std::vector<std::uint32_t> left;   // bytes still to arrive, for each segment of the send

  // For a send of this many bytes, in segments of this many.
  void begin(std::uint32_t step, std::uint64_t bytes, std::uint32_t segment);
  // These bytes have arrived, or are missing for good: each byte once.
  void add(std::uint64_t offset_bytes, std::uint64_t bytes);
};

}  // namespace mlt::collective
