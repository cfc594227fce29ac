// Where the segments of one receive go: each is written once, at its offset, in whatever order they arrive; which of
// them have arrived, and how much is missing. Paper section 4.2.1.
//
// Invariants: a segment has its bit in words() if, and only if, put() has written it; the counts agree with the bits.
// Absent on purpose: whether a packet belongs to the receive (Receiver), and when the receive may complete
// (LossDetection, LossBudget). Owned by a receive, used by one thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "base/stream_copy.h"
#include "core/event.h"
#include "core/segmenter.h"

namespace mlt::core {

class Placement {
 public:
  Placement() = default;
  // `words`: memory of the bitmap, a bit per segment of the grid; the caller frees it.
  Placement(SegmentGrid grid, std::span<std::uint64_t> words);

  // Writes a segment of the grid to the receive's buffer. False if it has arrived before: it is not written again.
  bool put(const ReceiveRequest& request, std::uint32_t offset_bytes, std::span<const std::byte> payload);
  // The receive completes with missing segments.
  void fill_missing(const ReceiveRequest& request) const;
  // The receive ends: other threads may read the buffer.
  void finish() const {
    if (streams()) base::fence_streamed();
  }

  const SegmentGrid& grid() const { return grid_; }
  std::span<std::uint64_t> words() const { return words_; }
  std::uint32_t received_segments() const { return received_segments_; }
  std::uint32_t missing_segments() const { return grid_.count() - received_segments_; }
  std::uint64_t missing_bytes() const { return grid_.total_bytes() - received_bytes_; }
  // The first missing segment from this one on; the number of segments if none is missing.
  std::size_t first_missing(std::size_t from) const { return received_.find_clear(from); }

 private:
  // Too large for a core's caches: written with non-temporal stores.
  bool streams() const { return grid_.total_bytes() >= base::kStreamedBytes; }

  SegmentGrid grid_;
  std::span<std::uint64_t> words_;
  base::BitmapView received_;
  std::uint32_t received_segments_ = 0;
  std::uint64_t received_bytes_ = 0;
};

}  // namespace mlt::core
