#include "core/early_buffer.h"

#include <algorithm>
#include <cstring>

namespace mlt::core {

EarlyBuffer::EarlyBuffer(std::uint32_t segment_bytes, std::uint32_t per_peer, std::uint32_t transfers_per_peer,
                         std::uint16_t peers)
    : segments_(std::size_t{per_peer} * (peers - 1U)),
      transfers_(std::size_t{2} * transfers_per_peer * (peers - 1U)),
      kept_by_peer_(peers, 0),
      data_by_peer_(peers, 0),
      notes_by_peer_(peers, 0),
      per_peer_(per_peer),
      transfers_per_peer_(transfers_per_peer) {
  storage_.resize(segments_.size() * segment_bytes);
  for (std::uint32_t i = static_cast<std::uint32_t>(segments_.size()); i-- > 0;) {
    segments_[i].bytes = std::span(storage_).subspan(std::size_t{i} * segment_bytes, segment_bytes);
    segments_[i].next = free_segment_;
    free_segment_ = i;
  }
}

EarlyTransfer* EarlyBuffer::find(std::uint16_t peer, const wire::TransferId& transfer) {
  if (data_by_peer_[peer] + notes_by_peer_[peer] == 0) return nullptr;
  for (EarlyTransfer& early : transfers_) {
    if (early.used && early.peer == peer && early.transfer == transfer) return &early;
  }
  return nullptr;
}

EarlyTransfer* EarlyBuffer::insert(std::uint16_t peer, const wire::TransferId& transfer, bool has_data) {
  std::uint32_t& taken = (has_data ? data_by_peer_ : notes_by_peer_)[peer];
  // PROTOCOL 7.3.6: What is remembered of a probe or an ABORT before its receive is posted has records of its own, as
  //     many per peer as early transfers: asking never costs data its place.
  if (taken >= transfers_per_peer_) return nullptr;
  for (EarlyTransfer& early : transfers_) {
    if (early.used) continue;
    early = EarlyTransfer{};
    early.used = true;
    early.peer = peer;
    early.transfer = transfer;
    early.has_data = has_data;
    ++taken;
    ++transfers_known_;
    return &early;
  }
  return nullptr;
}

EarlyTransfer* EarlyBuffer::find_or_insert(std::uint16_t peer, const wire::TransferId& transfer) {
  if (EarlyTransfer* early = find(peer, transfer)) return early;
  return insert(peer, transfer, false);
}

EarlyTransfer* EarlyBuffer::find_or_replace(std::uint16_t peer, const wire::TransferId& transfer) {
  if (EarlyTransfer* early = find_or_insert(peer, transfer)) return early;
  for (EarlyTransfer& early : transfers_) {
    if (!early.used || early.peer != peer || early.has_data || early.aborted) continue;
    early = EarlyTransfer{};
    early.used = true;
    early.peer = peer;
    early.transfer = transfer;
    return &early;
  }
  return nullptr;
}

EarlyTransfer* EarlyBuffer::find_or_insert_for_data(std::uint16_t peer, const wire::TransferId& transfer) {
  EarlyTransfer* early = find(peer, transfer);
  if (early == nullptr) return insert(peer, transfer, true);
  // PROTOCOL 8.1.3: Packets that come after it MUST NOT take a place.
  if (early->has_data || early->aborted) return early;
  if (data_by_peer_[peer] >= transfers_per_peer_) return nullptr;
  early->has_data = true;
  --notes_by_peer_[peer];
  ++data_by_peer_[peer];
  return early;
}

bool EarlyBuffer::keep(EarlyTransfer& early, const wire::DataHeader& header, std::span<const std::byte> payload) {
  // PROTOCOL 7.3.3: One peer MUST NOT use more of the early buffer than the early segments and early transfers that it
  //     was offered.
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
  ++kept_;
  return true;
}

void EarlyBuffer::release_segments(EarlyTransfer& early) {
  if (!early.has_data) return;
  release(early, [](const wire::DataHeader&, std::span<const std::byte>) {});
  early.used = true;
  early.has_data = false;
  ++notes_by_peer_[early.peer];
  ++transfers_known_;
}

void EarlyBuffer::forget(std::uint16_t peer) {
  for (EarlyTransfer& early : transfers_) {
    if (early.used && early.peer == peer) release(early, [](const wire::DataHeader&, std::span<const std::byte>) {});
  }
}

}  // namespace mlt::core
