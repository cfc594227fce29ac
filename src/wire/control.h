// Control messages: ACK, PROBE, BITMAP, STOP, ABORT, MTU_PROBE, MTU_REPLY, RETIRE. The first four are one datagram in
// the control class each, or, when datagrams stay unanswered, the same bytes over the TCP connection; ABORT and RETIRE
// go over that connection only, and those of the MTU never do.
//
// Every answer carries an acknowledgement block, so that a BITMAP or STOP is an ACK too. Its prefix names the block's
// path as `path`, and as `sequence` the path that the answer itself takes (kNoReplyPath over the control connection).
// Paper section 4.2.3; the paper sends these over TCP, we do not (a lost segment there costs 200 ms).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/codec.h"

namespace mlt::wire {

// What the receiver knows of one path, echoed to the sender.
struct AckBlock {
  std::uint32_t highest_sequence = 0;   // largest data sequence seen on the path; 0 before the first
  std::uint32_t received_packets = 0;   // data packets seen on the path, wraps
  std::uint32_t ce_packets = 0;         // of these, how many were marked CE, wraps
  std::uint32_t echo_timestamp_ns = 0;  // timestamp of the newest data packet
  std::uint32_t hold_ns = 0;            // how long the receiver held that echo; saturates
};
inline constexpr std::size_t kAckBlockBytes = 20;
inline constexpr std::uint32_t kNoReplyPath = 0xFF;

struct TransferId {
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;

  constexpr TransferId() = default;
  constexpr TransferId(std::uint64_t transfer_tag, std::uint32_t transfer_generation)
      : tag(transfer_tag), generation(transfer_generation) {}
  // Field by field: one wide load of fields that were just read from a packet waits for all earlier stores, the payload
  // of the packet before among them (see decode_data).
  constexpr TransferId(const TransferId& other) : tag(other.tag), generation(other.generation) {}
  constexpr TransferId& operator=(const TransferId& other) {
    tag = other.tag;
    generation = other.generation;
    return *this;
  }
  bool operator==(const TransferId&) const = default;
};
inline constexpr std::size_t kTransferIdBytes = 12;

// The same of a further path: packets are sprayed over paths, and one ACK speaks for all that have news. Otherwise a
// window that is small beside the number of paths would fill before any path was due one.
struct PathBlock {
  std::uint8_t path = 0;
  bool fresh = false;  // the echoed timestamp is new: it is a round-trip sample
  AckBlock block;
};
inline constexpr std::size_t kPathBlockBytes = 4 + kAckBlockBytes;

struct Ack {
  Prefix prefix;  // path: that of `block`
  AckBlock block;
  TransferId transfer;                   // of the packet that made this ACK due
  std::uint32_t probe_timestamp_ns = 0;  // of the probe it answers; 0 if none
  std::uint8_t other_count = 0;
  std::array<PathBlock, MLT_MAX_PATHS - 1> others{};  // the first `other_count`; each path once
};

// Asks for the end of a round, or only whether the receive is posted. The prefix names the path that answers take; a
// trailing probe's prefix names its own path and its sequence number there.
struct Probe {
  Prefix prefix;  // element and round of the transfer
  TransferId transfer;
  std::uint32_t total_bytes = 0;
  std::uint32_t critical_segments = 0;
  std::uint32_t timestamp_ns = 0;  // never 0: 0 means "no probe" in answers
  std::uint8_t path_count = 0;
  // Bit per path: the sender moved away from it, because its packets stay out. They may arrive all the same.
  std::uint16_t given_up_paths = 0;
  // Of this transfer's packets the newest sent on each path; 0: none.
  std::uint32_t last_sequence[MLT_MAX_PATHS] = {};
};

struct BitmapMessage {
  Prefix prefix;
  AckBlock block;
  TransferId transfer;
  std::uint32_t probe_timestamp_ns = 0;
  std::uint32_t first_segment = 0;  // a multiple of MLT_BITMAP_CHUNK_SEGMENTS
  std::uint32_t segment_count = 0;  // bits that follow
  std::span<const std::byte> bits;  // 1 = received; bit i is byte i / 8, bit i % 8
};

enum class StopStatus : std::uint8_t {
  kComplete = 0,       // everything arrived
  kWithinBound = 1,    // ended with a loss that the receiver allowed
  kDeadline = 2,       // the receiver's deadline passed first
  kSizeMismatch = 3,   // the two sides named different sizes
  kTypeMismatch = 4,   // the two sides named different element types
  kCancelled = 5,      // the receiver gave up (cancelled or timed out)
  kFinishedBefore = 6  // finished so long ago that the outcome is forgotten
};
inline constexpr std::uint8_t kStopStatusCount = 7;

struct Stop {
  Prefix prefix;  // element: the receiver's element type
  AckBlock block;
  TransferId transfer;
  std::uint32_t probe_timestamp_ns = 0;
  StopStatus status = StopStatus::kComplete;
  std::uint32_t missing_bytes = 0;
  std::uint32_t receiver_total_bytes = 0;
};

// The sender gave up (cancelled or timed out): nothing more of this transfer comes. Rare, and final, so that it goes
// over the control connection, which delivers it.
struct Abort {
  Prefix prefix;
  TransferId transfer;
};

// Asks whether a datagram of its own size gets through on the path that its prefix names. Padded with zeros.
struct MtuProbe {
  Prefix prefix;
  std::uint32_t timestamp_ns = 0;  // repeated in the reply
  std::uint32_t bytes = 0;         // of this datagram
};
inline constexpr std::uint32_t kMtuProbeBytes = MLT_PREFIX_BYTES + 8;  // without padding

// One arrived. The same fields; the path is the probe's.
struct MtuReply {
  Prefix prefix;
  std::uint32_t timestamp_ns = 0;
  std::uint32_t bytes = 0;
};

// The sender has forgotten its tags, but for those listed: what comes of another with a generation before the floor is
// stale, and the tag's next generation is the floor. One list may take several messages.
struct Retire {
  Prefix prefix;  // flags: whether the list ends here
  std::uint32_t floor = 0;
  std::uint32_t kept_count = 0;
  std::array<std::uint64_t, MLT_MAX_RETIRE_TAGS> kept{};  // the first `kept_count`
};

inline constexpr std::size_t kMaxControlBytes = MLT_PREFIX_BYTES + kAckBlockBytes + kTransferIdBytes + 12 + 1024;

// Encoders write to `out`, which holds kMaxControlBytes, and return the size.
std::size_t encode_ack(const Ack& message, std::byte* out);
std::size_t encode_probe(const Probe& message, std::byte* out);
std::size_t encode_bitmap(const BitmapMessage& message, std::byte* out);
std::size_t encode_stop(const Stop& message, std::byte* out);
std::size_t encode_abort(const Abort& message, std::byte* out);
// Writes the first kMtuProbeBytes; zeros follow up to `bytes`.
std::size_t encode_mtu_probe(const MtuProbe& message, std::byte* out);
std::size_t encode_mtu_reply(const MtuReply& message, std::byte* out);
std::size_t encode_retire(const Retire& message, std::byte* out);

// Decoders take the datagram whose prefix was read already; kNone on success.
DropReason decode_ack(std::span<const std::byte> datagram, const Prefix& prefix, Ack& message);
DropReason decode_probe(std::span<const std::byte> datagram, const Prefix& prefix, Probe& message);
DropReason decode_bitmap(std::span<const std::byte> datagram, const Prefix& prefix, BitmapMessage& message);
DropReason decode_stop(std::span<const std::byte> datagram, const Prefix& prefix, Stop& message);
DropReason decode_abort(std::span<const std::byte> datagram, const Prefix& prefix, Abort& message);
DropReason decode_mtu_probe(std::span<const std::byte> datagram, const Prefix& prefix, MtuProbe& message);
DropReason decode_mtu_reply(std::span<const std::byte> datagram, const Prefix& prefix, MtuReply& message);
DropReason decode_retire(std::span<const std::byte> datagram, const Prefix& prefix, Retire& message);

}  // namespace mlt::wire
