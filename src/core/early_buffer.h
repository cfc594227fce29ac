// Segments that arrive before their receive is posted: a bounded number is kept per peer, the rest is dropped and
// counted, and the sender's probe recovers it. Fixed size; one peer cannot use up another's share.
#pragma once

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
  bool probed = false;   // the sender has asked: answer as soon as the receive is posted
  bool aborted = false;  // the sender gave up: the receive fails as soon as it is posted
  wire::Probe probe;     // its newest probe, or one made from the end-of-round marker
};

class EarlyBuffer {
 public:
  EarlyBuffer(std::uint32_t segments, std::uint32_t segment_bytes, std::uint32_t transfers, std::uint32_t per_peer,
              std::uint16_t peers);

  EarlyTransfer* find(std::uint16_t peer, const wire::TransferId& transfer);
  // nullptr when every record is taken, or this peer's share of them.
  EarlyTransfer* find_or_insert(std::uint16_t peer, const wire::TransferId& transfer);
  // Keeps a copy of the segment; false if there is no room for this peer.
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
      at = next;
    }
    early.used = false;
    --transfers_by_peer_[early.peer];
  }

  void forget(std::uint16_t peer);

 private:
  std::vector<std::byte> storage_;
  std::vector<EarlySegment> segments_;
  std::vector<EarlyTransfer> transfers_;
  std::vector<std::uint32_t> kept_by_peer_;
  std::vector<std::uint32_t> transfers_by_peer_;
  std::uint32_t free_segment_ = kNil;
  std::uint32_t per_peer_;
  std::uint32_t transfers_per_peer_;
};

}  // namespace mlt::core
