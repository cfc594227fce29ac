// Segments that arrive before their receive is posted: a bounded number is kept per peer, the rest is dropped and
// counted, and the sender's probe recovers it. Fixed size; one peer cannot use up another's share.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/time.h"
#include "core/tag_table.h"
#include "wire/control.h"

namespace mlt::core {

struct EarlySegment {
  wire::DataHeader header;
  std::uint32_t length = 0;
  std::uint32_t next = kNil;
  std::span<std::byte> bytes;  // room for one segment
};

// What is known of one transfer that is not posted yet.
struct EarlyTransfer {
  bool used = false;
  std::uint16_t peer = 0;
  wire::TransferId transfer;
  std::uint32_t first_segment = kNil;
  bool has_data = false;
  bool probed = false;                                // the sender has asked: answer as soon as the receive is posted
  bool aborted = false;                               // the sender gave up: the receive fails as soon as it is posted
  wire::Probe probe;                                  // its newest probe, or one made from the end-of-round marker
  std::array<std::uint32_t, MLT_MAX_PATHS> newest{};  // sequence number that arrived on each path, kept or not
};

class EarlyBuffer {
 public:
  // `per_peer` segments of at most `transfers_per_peer` transfers are kept for each of `peers`.
  EarlyBuffer(std::uint32_t segment_bytes, std::uint32_t per_peer, std::uint32_t transfers_per_peer,
              std::uint16_t peers);

  EarlyTransfer* find(std::uint16_t peer, const wire::TransferId& transfer);
  // Notes that a transfer was asked about or given up. nullptr when this peer's share of notes is taken; what a peer
  // may send blindly has records of its own, so that asking never costs data its place.
  EarlyTransfer* find_or_insert(std::uint16_t peer, const wire::TransferId& transfer);
  // The same, at the cost of another note that only says that somebody asked.
  EarlyTransfer* find_or_replace(std::uint16_t peer, const wire::TransferId& transfer);
  // For data; nullptr when this peer sends more transfers blindly than it was promised room for.
  EarlyTransfer* find_or_insert_for_data(std::uint16_t peer, const wire::TransferId& transfer);
  // Keeps a copy of the segment in a record for data; false if there is no room for this peer.
  bool keep(EarlyTransfer& early, const wire::DataHeader& header, std::span<const std::byte> payload);

  // Calls `visit(header, payload)` for every segment kept, then forgets the transfer.
  template <typename Visit>
  void release(EarlyTransfer& early, Visit&& visit) {
    std::uint32_t at = early.first_segment;
    while (at != kNil) {
      EarlySegment& segment = segments_[at];
      visit(segment.header, std::span<const std::byte>(segment.bytes.first(segment.length)));
      const std::uint32_t next = segment.next;
      segment.next = free_segment_;
      free_segment_ = at;
      --kept_by_peer_[early.peer];
      --kept_;
      at = next;
    }
    early.first_segment = kNil;
    early.used = false;
    --(early.has_data ? data_by_peer_ : notes_by_peer_)[early.peer];
    --transfers_known_;
  }

  // Gives back the segments and keeps the record as a note.
  void release_segments(EarlyTransfer& early);
  void forget(std::uint16_t peer);
  std::size_t segments_kept() const { return kept_; }
  // Transfers of which something came: data, a probe or an ABORT.
  std::size_t transfers_known() const { return transfers_known_; }
  std::size_t capacity() const { return segments_.size(); }

 private:
  EarlyTransfer* insert(std::uint16_t peer, const wire::TransferId& transfer, bool has_data);

  std::vector<std::byte> storage_;
  std::vector<EarlySegment> segments_;
  std::vector<EarlyTransfer> transfers_;
  std::vector<std::uint32_t> kept_by_peer_;
  std::vector<std::uint32_t> data_by_peer_;   // records with segments
  std::vector<std::uint32_t> notes_by_peer_;  // records without
  std::uint32_t free_segment_ = kNil;
  std::uint32_t per_peer_;
  std::uint32_t transfers_per_peer_;
  std::size_t kept_ = 0;
  std::size_t transfers_known_ = 0;
};

}  // namespace mlt::core
