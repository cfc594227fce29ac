#include "core/early_buffer.h"

#include <algorithm>
#include <cstring>

namespace mlt::core {

EarlyBuffer::EarlyBuffer(std::uint32_t segments, std::uint32_t segment_bytes, std::uint32_t transfers,
                         std::uint32_t per_peer, std::uint16_t peers)
    : storage_(std::size_t{segments} * segment_bytes),
      segments_(segments),
      transfers_(transfers),
      kept_by_peer_(peers, 0),
      transfers_by_peer_(peers, 0),
      per_peer_(per_peer),
      transfers_per_peer_(std::max<std::uint32_t>(4, transfers / std::max<std::uint32_t>(1, peers))) {
  for (std::uint32_t i = segments; i-- > 0;) {
    segments_[i].bytes = std::span(storage_).subspan(std::size_t{i} * segment_bytes, segment_bytes);
    segments_[i].next = free_segment_;
    free_segment_ = i;
  }
}

EarlyTransfer* EarlyBuffer::find(std::uint16_t peer, const wire::TransferId& transfer) {
  if (transfers_by_peer_[peer] == 0) return nullptr;
  for (EarlyTransfer& early : transfers_) {
    if (early.used && early.peer == peer && early.transfer == transfer) return &early;
  }
  return nullptr;
}

EarlyTransfer* EarlyBuffer::find_or_insert(std::uint16_t peer, const wire::TransferId& transfer) {
  if (EarlyTransfer* early = find(peer, transfer)) return early;
  if (transfers_by_peer_[peer] >= transfers_per_peer_) return nullptr;
  for (EarlyTransfer& early : transfers_) {
    if (early.used) continue;
    early = EarlyTransfer{};
    early.used = true;
    early.peer = peer;
    early.transfer = transfer;
    ++transfers_by_peer_[peer];
    return &early;
  }
  return nullptr;
}

bool EarlyBuffer::keep(EarlyTransfer& early, const wire::DataHeader& header, std::span<const std::byte> payload) {
  // PROTOCOL 7.3.3: One peer MUST NOT use more of the early buffer than the early segments that it was offered.
  if (free_segment_ == kNil || kept_by_peer_[early.peer] >= per_peer_) return false;
  const std::uint32_t at = free_segment_;
  EarlySegment& segment = segments_[at];
  if (payload.size() > segment.bytes.size()) return false;
  free_segment_ = segment.next;
  segment.header = header;
  segment.length = static_cast<std::uint32_t>(payload.size());
  if (!payload.empty()) std::memcpy(segment.bytes.data(), payload.data(), payload.size());
  segment.next = early.first_segment;
  early.first_segment = at;
  ++kept_by_peer_[early.peer];
  return true;
}

void EarlyBuffer::forget(std::uint16_t peer) {
  for (EarlyTransfer& early : transfers_) {
    if (early.used && early.peer == peer) release(early, [](const wire::DataHeader&, std::span<const std::byte>) {});
  }
}

}  // namespace mlt::core
