// The grid that cuts a tensor into segments of equal size, except for the last. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace mlt::core {

class SegmentGrid {
 public:
  SegmentGrid() = default;
  SegmentGrid(std::uint32_t total_bytes, std::uint32_t segment_bytes)
      : total_bytes_(total_bytes), segment_bytes_(segment_bytes) {
    MLT_CHECK(segment_bytes > 0);
    // PROTOCOL 5.1.2: An empty tensor MUST have one empty segment; otherwise its receive would never complete.
    // An empty tensor needs one (empty) packet, or its receive would never complete.
    // PROTOCOL 5.1.1: A sender MUST cut a tensor of n bytes into segments of segment bytes (3.2.6), the last one
    //     shorter: ceil(n / segment bytes) of them, segment i at offset i * segment bytes.
    count_ = total_bytes == 0 ? 1 : (total_bytes - 1) / segment_bytes + 1;
  }

  std::uint32_t total_bytes() const { return total_bytes_; }
  std::uint32_t segment_bytes() const { return segment_bytes_; }
  std::uint32_t count() const { return count_; }
  std::uint32_t offset(std::uint32_t segment) const { return segment * segment_bytes_; }
  std::uint32_t length(std::uint32_t segment) const { return std::min(segment_bytes_, total_bytes_ - offset(segment)); }
  // True if a payload of `length` at `offset` is exactly one segment of this grid.
  bool fits(std::uint32_t at_offset, std::uint64_t payload_bytes) const {
    if (at_offset % segment_bytes_ != 0) return false;
    const std::uint32_t segment = at_offset / segment_bytes_;
    return segment < count_ && length(segment) == payload_bytes;
  }

 private:
  std::uint32_t total_bytes_ = 0;
  std::uint32_t segment_bytes_ = 8;
  std::uint32_t count_ = 1;
};

}  // namespace mlt::core
