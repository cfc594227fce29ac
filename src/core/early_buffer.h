// Buffer for early data: segments that arrive before their receive is posted. It keeps a bounded number per peer; the
// rest is dropped and counted, and the sender's probe recovers it. One peer cannot use another's share. Memory is
// touched as it is used.
//
// A record has one kind: of a transfer that sent data, of one that was only probed, or of one that its sender aborted.
// The first kind has its own share and the other two have a common one, so that probes never take space from data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "base/packed_rows.h"
#include "base/time.h"
#include "core/tag_table.h"
#include "wire/control.h"

namespace mlt::core {

struct EarlySegment {
  wire::DataHeader header;
  std::uint32_t record = kNil;  // of its transfer
  std::uint32_t length = 0;
  std::uint32_t next = kNil;        // segment of the same transfer, or free
  std::uint32_t next_alike = kNil;  // next in the hash chain
};

enum class EarlyKind : std::uint8_t { kData, kProbed, kAborted };
inline constexpr std::size_t kEarlyKinds = 3;

// State of one transfer whose receive is not posted yet.
struct EarlyTransfer {
  bool used = false;
  EarlyKind kind = EarlyKind::kProbed;
  std::uint16_t peer = 0;
  wire::TransferId transfer;
  std::uint32_t first_segment = kNil;
  bool probed = false;                                // a probe arrived: reply as soon as the receive is posted
  bool segment_lost = false;                          // one of its segments may have been dropped here
  std::uint32_t drops = 0;                            // EarlyBuffer::note_drop() calls before its record was made
  wire::AbortReason abort_reason;                     // of an aborted one
  wire::Probe probe;                                  // its newest probe, or one made from END_OF_ROUND
  std::array<std::uint32_t, MLT_MAX_PATHS> newest{};  // newest sequence number per path, buffered or not; 0: none
  std::uint32_t next_alike = kNil;                    // next in the hash chain, or free
  std::uint32_t next = kNil;                          // of the same peer and kind, in order of age, oldest first
  std::uint32_t previous = kNil;

  bool aborted() const { return kind == EarlyKind::kAborted; }  // the receive fails as soon as it is posted
};

class EarlyBuffer {
 public:
  // For each of `peers`, buffers up to `per_peer` segments of up to `transfers_per_peer` transfers.
  EarlyBuffer(std::uint32_t segment_bytes, std::uint32_t per_peer, std::uint32_t transfers_per_peer,
              std::uint16_t peers);

  EarlyTransfer* find(std::uint16_t peer, const wire::TransferId& transfer);
  // Records a probe of a transfer. nullptr if this peer's share of probe and ABORT records is used up; data has its own
  // records, so that probes never take space from data.
  EarlyTransfer* find_or_insert(std::uint16_t peer, const wire::TransferId& transfer);
  // For data; nullptr if this peer sends early data of more transfers than its announced share.
  EarlyTransfer* find_or_insert_for_data(std::uint16_t peer, const wire::TransferId& transfer);
  // Records an ABORT and frees the transfer's segments. False if no record was free; the segments are freed even then.
  // Replaces a record that holds only a probe.
  bool abort(std::uint16_t peer, const wire::TransferId& transfer, const wire::AbortReason& reason);

  enum class Kept : std::uint8_t { kKept, kDuplicate, kNoRoom };
  // Buffers a copy of the segment in a record for data. A duplicate takes no space: the sender counts what it sent.
  Kept keep(EarlyTransfer& early, const wire::DataHeader& header, std::span<const std::byte> payload);

  // Calls `visit(header, payload)` for every buffered segment, then forgets the transfer.
  template <typename Visit>
  void release(EarlyTransfer& early, Visit&& visit) {
    while (early.first_segment != kNil) {
      const std::uint32_t at = early.first_segment;
      EarlySegment& segment = segments_[at];
      visit(segment.header, std::span<const std::byte>(bytes_of(at), segment.length));
      early.first_segment = segment.next;
      free_segment(at);
    }
    erase(early);
  }
  void forget(std::uint16_t peer);

  // Datagrams of any transfer were dropped before they came here.
  void note_drop() { ++drops_; }
  // Whether this may concern a transfer that is buffered.
  bool may_lack_segments(const EarlyTransfer& early) const { return early.segment_lost || early.drops != drops_; }

  std::size_t segments_kept() const { return kept_; }
  // Number of transfers from which data, a probe or an ABORT came.
  std::size_t transfers_known() const { return transfers_known_; }
  std::size_t capacity() const { return segments_.capacity(); }

 private:
  struct List {
    std::uint32_t first = kNil;
    std::uint32_t last = kNil;
    std::uint32_t size = 0;
  };
  struct PeerRecords {
    std::uint32_t segments = 0;
    std::array<List, kEarlyKinds> of_kind;
    List& of(EarlyKind kind) { return of_kind[static_cast<std::size_t>(kind)]; }
    bool has_any() const { return of_kind[0].size + of_kind[1].size + of_kind[2].size > 0; }
    std::uint32_t notes() const {
      return of_kind[static_cast<std::size_t>(EarlyKind::kProbed)].size +
             of_kind[static_cast<std::size_t>(EarlyKind::kAborted)].size;
    }
  };

  EarlyTransfer* insert(std::uint16_t peer, const wire::TransferId& transfer, EarlyKind kind);
  void erase(EarlyTransfer& early);
  void drop_segments(EarlyTransfer& early);
  bool has_room(std::uint16_t peer, EarlyKind kind);
  void link(EarlyTransfer& early, EarlyKind kind);
  void unlink(EarlyTransfer& early);
  void free_segment(std::uint32_t at);
  std::uint32_t index_of(const EarlyTransfer& early) const {
    return static_cast<std::uint32_t>(&early - transfers_.data());
  }
  std::uint32_t& chain_of(std::uint16_t peer, const wire::TransferId& transfer);
  std::uint32_t& chain_of(std::uint32_t record, std::uint32_t offset);
  std::byte* bytes_of(std::uint32_t segment) { return storage_.get() + std::size_t{segment} * segment_bytes_; }

  std::unique_ptr<std::byte[]> storage_;
  base::LazyArray<EarlySegment> segments_;
  base::LazyArray<EarlyTransfer> transfers_;
  std::vector<std::uint32_t> segment_chains_;  // heads; kNil: empty
  std::vector<std::uint32_t> transfer_chains_;
  base::PackedArray<PeerRecords> peers_;
  std::uint32_t free_segment_ = kNil;
  std::uint32_t free_transfer_ = kNil;
  std::uint32_t segment_bytes_;
  std::uint32_t per_peer_;
  std::uint32_t transfers_per_peer_;
  std::uint32_t drops_ = 0;
  std::size_t kept_ = 0;
  std::size_t transfers_known_ = 0;
};

}  // namespace mlt::core
