#include "core/placement.h"

#include <cstring>

namespace mlt::core {

Placement::Placement(SegmentGrid grid, std::span<std::uint64_t> words)
    : grid_(grid), words_(words), received_(words.data(), grid.count()) {
  received_.clear_all();
}

bool Placement::put(const ReceiveRequest& request, std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  const std::uint32_t segment = offset_bytes / grid_.segment_bytes();
  // PROTOCOL 7.1.4: A receiver MUST NOT write a segment again that has arrived before (duplicate_segments).
  if (received_.test(segment)) return false;
  // PROTOCOL 7.1.3: A receiver MUST write a segment that arrives first at its offset, whatever its order, round or
  //     path.
  received_.set(segment);
  ++received_segments_;
  received_bytes_ += payload.size();
  if (request.place != nullptr) {
    request.place(request.place_context, offset_bytes, payload);
  } else if (!payload.empty()) {
    std::byte* to = request.data.data() + offset_bytes;
    if (streams()) {
      base::stream_copy(to, payload.data(), payload.size());
    } else {
      std::memcpy(to, payload.data(), payload.size());
    }
  }
  return true;
}

void Placement::fill_missing(const ReceiveRequest& request) const {
  // PROTOCOL 7.7.3: Missing ranges MUST become zero with fill zero (gradients), and MUST keep what they held with fill
  //     keep (parameters). After a failure the buffer's contents are undefined.
  if (request.fill != Fill::kZero || request.place != nullptr) return;
  for (std::size_t i = first_missing(0); i < grid_.count(); i = first_missing(i + 1)) {
    const auto segment = static_cast<std::uint32_t>(i);
    std::memset(request.data.data() + grid_.offset(segment), 0, grid_.length(segment));
  }
}

}  // namespace mlt::core
