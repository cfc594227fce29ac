#include "collective/onward.h"

#include <algorithm>

#include "base/bitmap.h"
#include "core/segmenter.h"

namespace mlt::collective {

void Onward::begin(std::uint32_t step, std::span<const std::byte> bytes, std::uint32_t segment, bool with_checksum) {
  const core::SegmentGrid grid(static_cast<std::uint32_t>(bytes.size()), segment);
  data = bytes;
  segments_left = grid.count();
  has_checksum = with_checksum;
  checksum = 0;
  send_step = step;
  segment_bytes = segment;
  words.assign(base::words_for_bits(grid.count()), 0);
  feed = {0, base::BitmapView(words.data(), grid.count())};
  left.resize(grid.count());
  for (std::uint32_t i = 0; i < grid.count(); ++i) left[i] = grid.length(i);
}

// The segments of the two neighbours may have different lengths.
void Onward::add(std::uint64_t offset_bytes, std::uint64_t bytes) {
  for (std::uint64_t at = offset_bytes; at < offset_bytes + bytes;) {
    const auto segment = static_cast<std::uint32_t>(at / segment_bytes);
    const std::uint64_t end = std::min((segment + std::uint64_t{1}) * segment_bytes, offset_bytes + bytes);
    left[segment] -= static_cast<std::uint32_t>(end - at);
    if (left[segment] == 0) {
      const std::uint64_t first = segment * std::uint64_t{segment_bytes};
      if (has_checksum) {
        checksum +=
            segment_checksum(first, data.subspan(first, std::min<std::uint64_t>(segment_bytes, data.size() - first)));
      }
      --segments_left;
      feed.add(segment);
    }
    at = end;
  }
}

}  // namespace mlt::collective
