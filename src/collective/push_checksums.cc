#include "collective/push_checksums.h"

#include "collective/checksums.h"

namespace mlt::collective {

void PushChecksums::watch(std::uint16_t worker, core::ReceiveRequest& request) {
  Worker& one = workers_[worker];
  one.received = 0;
  one.place = request.place;
  one.place_context = request.place_context;
  request.place = &PushChecksums::take_segment;
  request.place_context = &one;
}

void PushChecksums::take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  Worker& one = *static_cast<Worker*>(context);
  one.received += segment_checksum(offset_bytes, payload);
  one.place(one.place_context, offset_bytes, payload);
}

// PROTOCOL 14.3.8: ... A receiver MUST drop that of a transfer that it does not compare, and any beyond two that have
// no
//     transfer yet.
void PushChecksums::on_sent(std::uint16_t worker, std::uint64_t checksum) {
  Worker& one = workers_[worker];
  if (one.to_drop > 0) {
    --one.to_drop;
  } else if (one.ahead < kMaxAhead) {
    one.sent[one.ahead++] = checksum;
  }
}

std::optional<PushChecksums::Comparison> PushChecksums::compare(std::uint16_t worker) {
  Worker& one = workers_[worker];
  if (one.ahead == 0) return std::nullopt;
  const Comparison found{one.sent[0], one.received};
  skip(worker);
  return found;
}

void PushChecksums::skip(std::uint16_t worker) {
  Worker& one = workers_[worker];
  if (one.ahead == 0) {
    ++one.to_drop;
    return;
  }
  one.sent[0] = one.sent[1];
  --one.ahead;
}

}  // namespace mlt::collective
