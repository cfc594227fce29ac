#include "collective/term_counts.h"

namespace mlt::collective {

std::vector<ElementRange> missing_elements(const core::Completion& completion, std::size_t bytes,
                                           std::uint32_t element_bytes) {
  std::vector<ElementRange> missing;
  if (completion.received_bitmap.empty()) return missing;
  for (std::uint32_t i = 0; i < completion.segment_count; ++i) {
    if (((completion.received_bitmap[i / 64] >> (i % 64)) & 1U) != 0) continue;
    const std::size_t at = std::min<std::size_t>(std::size_t{i} * completion.segment_bytes, bytes);
    const std::size_t length = std::min<std::size_t>(completion.segment_bytes, bytes - at);
    const auto first = static_cast<std::uint32_t>(at / element_bytes);
    const auto count = static_cast<std::uint32_t>(length / element_bytes);
    if (count == 0) continue;
    if (!missing.empty() && missing.back().first + missing.back().count == first) {
      missing.back().count += count;
    } else {
      missing.push_back({first, count});
    }
  }
  return missing;
}

TermCounts::TermCounts(std::uint32_t elements, std::uint16_t terms) : elements_(elements) {
  if (elements > 0) runs_.push_back({0, terms});
}

}  // namespace mlt::collective
