#include "core/early_buffer.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mlt::core {

EarlyBuffer::EarlyBuffer(std::uint32_t segment_bytes, std::uint32_t per_peer, std::uint32_t transfers_per_peer,
                         std::uint16_t peers)
    : segments_(std::size_t{per_peer} * (peers - 1U)),
      transfers_(std::size_t{2} * transfers_per_peer * (peers - 1U)),
      segment_chains_(std::bit_ceil(segments_.capacity()), kNil),
      transfer_chains_(std::bit_ceil(transfers_.capacity()), kNil),
      peers_(peers),
      segment_bytes_(segment_bytes),
      per_peer_(per_peer),
      transfers_per_peer_(transfers_per_peer) {
  storage_ = std::make_unique_for_overwrite<std::byte[]>(segments_.capacity() * segment_bytes);
}

std::uint32_t& EarlyBuffer::chain_of(std::uint16_t peer, const wire::TransferId& transfer) {
  return transfer_chains_[hash_transfer(peer, transfer) & (transfer_chains_.size() - 1)];
}

std::uint32_t& EarlyBuffer::chain_of(std::uint32_t record, std::uint32_t offset) {
  return segment_chains_[hash_tag(0, std::uint64_t{record} << 32 | offset) & (segment_chains_.size() - 1)];
}

EarlyTransfer* EarlyBuffer::find(std::uint16_t peer, const wire::TransferId& transfer) {
  if (!peers_[peer].has_any()) return nullptr;
  for (std::uint32_t at = chain_of(peer, transfer); at != kNil; at = transfers_[at].next_alike) {
    if (transfers_[at].peer == peer && transfers_[at].transfer == transfer) return &transfers_[at];
  }
  return nullptr;
}

void EarlyBuffer::link(EarlyTransfer& early, EarlyKind kind) {
  List& list = peers_[early.peer].of(kind);
  early.kind = kind;
  early.next = kNil;
  early.previous = list.last;
  (list.last == kNil ? list.first : transfers_[list.last].next) = index_of(early);
  list.last = index_of(early);
  ++list.size;
}

void EarlyBuffer::unlink(EarlyTransfer& early) {
  List& list = peers_[early.peer].of(early.kind);
  (early.previous == kNil ? list.first : transfers_[early.previous].next) = early.next;
  (early.next == kNil ? list.last : transfers_[early.next].previous) = early.previous;
  --list.size;
}

bool EarlyBuffer::has_room(std::uint16_t peer, EarlyKind kind) {
  // PROTOCOL 7.3.6: A receiver MUST remember a probe or an ABORT that comes before its receive is posted in records of
  //     their own, as many per peer as early transfers: a probe never takes the space of data.
  PeerRecords& records = peers_[peer];
  return (kind == EarlyKind::kData ? records.of(kind).size : records.notes()) < transfers_per_peer_;
}

EarlyTransfer* EarlyBuffer::insert(std::uint16_t peer, const wire::TransferId& transfer, EarlyKind kind) {
  if (!has_room(peer, kind)) return nullptr;
  const std::uint32_t at = free_transfer_;
  EarlyTransfer& early = at == kNil ? transfers_.grow() : transfers_[at];
  if (at != kNil) free_transfer_ = early.next_alike;
  early = EarlyTransfer{};
  early.used = true;
  early.peer = peer;
  early.transfer = transfer;
  early.drops = drops_;
  std::uint32_t& chain = chain_of(peer, transfer);
  early.next_alike = chain;
  chain = index_of(early);
  link(early, kind);
  ++transfers_known_;
  return &early;
}

void EarlyBuffer::erase(EarlyTransfer& early) {
  unlink(early);
  std::uint32_t* chain = &chain_of(early.peer, early.transfer);
  while (*chain != index_of(early)) chain = &transfers_[*chain].next_alike;
  *chain = early.next_alike;
  early.used = false;
  early.next_alike = free_transfer_;
  free_transfer_ = index_of(early);
  --transfers_known_;
}

EarlyTransfer* EarlyBuffer::find_or_insert(std::uint16_t peer, const wire::TransferId& transfer) {
  if (EarlyTransfer* early = find(peer, transfer)) return early;
  return insert(peer, transfer, EarlyKind::kProbed);
}

EarlyTransfer* EarlyBuffer::find_or_insert_for_data(std::uint16_t peer, const wire::TransferId& transfer) {
  EarlyTransfer* early = find(peer, transfer);
  if (early == nullptr) return insert(peer, transfer, EarlyKind::kData);
  // PROTOCOL 8.1.3: Packets that come after it MUST NOT take space.
  if (early->kind != EarlyKind::kProbed) return early;
  if (!has_room(peer, EarlyKind::kData)) return nullptr;
  unlink(*early);
  link(*early, EarlyKind::kData);
  return early;
}

bool EarlyBuffer::abort(std::uint16_t peer, const wire::TransferId& transfer, const wire::AbortReason& reason) {
  EarlyTransfer* early = find(peer, transfer);
  // Clears early data even if there is no space to remember the ABORT:
  // PROTOCOL 8.1.3: A receiver remembers an ABORT of a transfer that is not posted yet, and forgets its early data: the
  //     receive ends as cancelled when it is posted.
  if (early != nullptr) drop_segments(*early);
  if (early == nullptr || early->kind == EarlyKind::kData) {
    // The record was one for data; the ABORT needs one of the other records.
    if (early != nullptr) erase(*early);
    List& probed = peers_[peer].of(EarlyKind::kProbed);
    if (!has_room(peer, EarlyKind::kAborted) && probed.size > 0) erase(transfers_[probed.first]);
    early = insert(peer, transfer, EarlyKind::kAborted);
    if (early == nullptr) return false;
  } else {
    unlink(*early);
    link(*early, EarlyKind::kAborted);
  }
  early->abort_reason = reason;
  return true;
}

EarlyBuffer::Kept EarlyBuffer::keep(EarlyTransfer& early, const wire::DataHeader& header,
                                    std::span<const std::byte> payload) {
  std::uint32_t& chain = chain_of(index_of(early), header.offset_bytes);
  // PROTOCOL 7.3.7: A segment that is buffered already MUST NOT take space again (duplicate_segments): the sender
  //     counts what it sent, not what arrives.
  for (std::uint32_t at = chain; at != kNil; at = segments_[at].next_alike) {
    const EarlySegment& segment = segments_[at];
    if (segment.record == index_of(early) && segment.header.offset_bytes == header.offset_bytes &&
        segment.length == payload.size()) {
      return Kept::kDuplicate;
    }
  }
  // PROTOCOL 7.3.3: One peer MUST NOT use more of the early buffer than the early segments and early transfers that it
  //     was offered.
  if (peers_[early.peer].segments >= per_peer_ || payload.size() > segment_bytes_) return Kept::kNoRoom;
  const bool is_new = free_segment_ == kNil;
  const std::uint32_t at = is_new ? static_cast<std::uint32_t>(segments_.size()) : free_segment_;
  EarlySegment& segment = is_new ? segments_.grow() : segments_[at];
  if (!is_new) free_segment_ = segment.next;
  segment.header = header;
  segment.record = index_of(early);
  segment.length = static_cast<std::uint32_t>(payload.size());
  if (!payload.empty()) std::memcpy(bytes_of(at), payload.data(), payload.size());
  segment.next = early.first_segment;
  early.first_segment = at;
  segment.next_alike = chain;
  chain = at;
  ++peers_[early.peer].segments;
  ++kept_;
  return Kept::kKept;
}

void EarlyBuffer::free_segment(std::uint32_t at) {
  EarlySegment& segment = segments_[at];
  std::uint32_t* chain = &chain_of(segment.record, segment.header.offset_bytes);
  while (*chain != at) chain = &segments_[*chain].next_alike;
  *chain = segment.next_alike;
  segment.next = free_segment_;
  free_segment_ = at;
  --peers_[transfers_[segment.record].peer].segments;
  --kept_;
}

void EarlyBuffer::drop_segments(EarlyTransfer& early) {
  while (early.first_segment != kNil) {
    const std::uint32_t at = early.first_segment;
    early.first_segment = segments_[at].next;
    free_segment(at);
  }
}

void EarlyBuffer::forget(std::uint16_t peer) {
  for (const EarlyKind kind : {EarlyKind::kData, EarlyKind::kProbed, EarlyKind::kAborted}) {
    const List& list = peers_[peer].of(kind);
    while (list.first != kNil)
      release(transfers_[list.first], [](const wire::DataHeader&, std::span<const std::byte>) {});
  }
}

}  // namespace mlt::core
