// Control packets: ACK, PROBE, BITMAP, STOP, ABORT, MTU_PROBE, MTU_REPLY, RETIRE. The first four are one datagram in
// the control class each or, if datagrams stay unanswered, the same bytes over the TCP connection. ABORT and RETIRE use
// only that connection, the MTU packets never.
//
// Every reply carries an acknowledgement block, so that a BITMAP or STOP is an ACK too. Its prefix has the block's path
// as `path`, and in `sequence` the path that the reply itself takes (kNoReplyPath over the control connection) and the
// time when it was made. Paper section 4.2.3; the paper sends these over TCP, mlt does not (a lost TCP segment costs
// 200 ms).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "wire/codec.h"

namespace mlt::wire {

// The receiver's state of one path, echoed to the sender.
struct AckBlock {
  std::uint32_t highest_sequence = 0;   // largest data sequence received on the path; 0 before the first
  std::uint32_t received_packets = 0;   // data packets received on the path, wraps
  std::uint32_t ce_packets = 0;         // of these, CE-marked, wraps
  std::uint32_t echo_timestamp_ns = 0;  // timestamp of the newest data packet
  std::uint32_t hold_ns = 0;            // ACK delay of that echo; saturates
};
inline constexpr std::size_t kAckBlockBytes = 20;
inline constexpr std::uint32_t kNoReplyPath = 0xFF;
// The sequence number of a reply: the path that it takes, and when it was made.
constexpr std::uint32_t reply_sequence(std::uint32_t path, base::TimeNs now) {
  return (static_cast<std::uint32_t>(now) & ~std::uint32_t{0xFF}) | path;
}
constexpr std::uint32_t reply_path(std::uint32_t sequence) { return sequence & 0xFF; }
constexpr std::uint32_t reply_made_ns(std::uint32_t sequence) { return sequence & ~std::uint32_t{0xFF}; }

struct TransferId {
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;

  constexpr TransferId() = default;
  constexpr TransferId(std::uint64_t transfer_tag, std::uint32_t transfer_generation)
      : tag(transfer_tag), generation(transfer_generation) {}
  // Copies field by field: one wide load of fields just read from a packet waits for all earlier stores, including the
  // payload of the previous packet (see decode_data).
  constexpr TransferId(const TransferId& other) : tag(other.tag), generation(other.generation) {}
  constexpr TransferId& operator=(const TransferId& other) {
    tag = other.tag;
    generation = other.generation;
    return *this;
  }
  bool operator==(const TransferId&) const = default;
};
inline constexpr std::size_t kTransferIdBytes = 12;

// Block of a further path: packets are sprayed over paths, and one ACK covers all paths with new packets. Otherwise,
// with many paths, a small window would fill before any path had an ACK due.
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
  std::uint32_t probe_timestamp_ns = 0;  // of the probe that it replies to; 0 if none
  std::uint8_t other_count = 0;
  std::array<PathBlock, MLT_MAX_PATHS - 1> others{};  // the first `other_count`; each path once
};

// Ends a round, or only requests whether the receive is posted. The prefix names the path for replies; a trailing
// probe's prefix names its own path and its sequence number there.
struct Probe {
  Prefix prefix;  // element and round of the transfer
  TransferId transfer;
  std::uint32_t total_bytes = 0;
  std::uint32_t critical_segments = 0;
  std::uint32_t timestamp_ns = 0;  // never 0: 0 means "no probe" in replies
  std::uint8_t path_count = 0;
  // Bit per path that the sender no longer uses because its packets are overdue. They may still arrive.
  std::uint16_t suspended_paths = 0;
  // Newest packet of this transfer sent on each path; 0: none.
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
  kSizeMismatch = 3,   // receiver and sender specified different sizes
  kTypeMismatch = 4,   // receiver and sender specified different element types
  kCancelled = 5,      // the receiver ended it (cancelled or timed out)
  kFinishedBefore = 6  // ended so long ago that the outcome is forgotten
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

// Why a sender ended a transfer.
enum class AbortCause : std::uint8_t {
  kNone = 0,         // not on the wire
  kCancelled = 1,    // by its caller, or because the receiver said so
  kTimedOut = 2,     // at the send's own timeout
  kPathTooSmall = 3  // no path to the receiver carries the tensor's segments
};
inline constexpr std::uint8_t kAbortCauseCount = 4;

struct AbortReason {
  AbortCause cause = AbortCause::kNone;
  std::uint32_t path_bytes = 0;  // of kPathTooSmall: the largest payload of DATA that arrives; else 0
};

// The sender ended the transfer: no more of its packets follow. Rare and final, so it uses the control connection,
// which delivers it.
struct Abort {
  Prefix prefix;
  TransferId transfer;
  AbortReason reason;
};

// Probes whether a datagram of its own size passes the path in its prefix. Padded with zeros.
struct MtuProbe {
  Prefix prefix;
  std::uint32_t timestamp_ns = 0;  // echoed in the reply
  std::uint32_t bytes = 0;         // of this datagram
};
inline constexpr std::uint32_t kMtuProbeBytes = MLT_PREFIX_BYTES + 8;  // without padding

// Reply to an MtuProbe. The same fields; the path is the probe's.
struct MtuReply {
  Prefix prefix;
  std::uint32_t timestamp_ns = 0;
  std::uint32_t bytes = 0;
};

// The sender has forgotten its tags, except for those listed. Packets of other tags with a generation before the floor
// are stale, and their next generation is the floor. One list may take several packets.
struct Retire {
  Prefix prefix;  // flags: whether this is the end of the list
  std::uint32_t floor = 0;
  std::uint32_t kept_count = 0;
  std::array<std::uint64_t, MLT_MAX_RETIRE_TAGS> kept{};  // the first `kept_count`
};

inline constexpr std::size_t kMaxControlBytes = MLT_PREFIX_BYTES + kAckBlockBytes + kTransferIdBytes + 12 + 1024;

// Encoders write to `out`, which must hold kMaxControlBytes, and return the size.
std::size_t encode_ack(const Ack& message, std::byte* out);
std::size_t encode_probe(const Probe& message, std::byte* out);
std::size_t encode_bitmap(const BitmapMessage& message, std::byte* out);
std::size_t encode_stop(const Stop& message, std::byte* out);
std::size_t encode_abort(const Abort& message, std::byte* out);
// Writes the first kMtuProbeBytes; zeros follow up to `bytes`.
std::size_t encode_mtu_probe(const MtuProbe& message, std::byte* out);
std::size_t encode_mtu_reply(const MtuReply& message, std::byte* out);
std::size_t encode_retire(const Retire& message, std::byte* out);

// Decoders take a datagram whose prefix was already read; kNone on success.
DropReason decode_ack(std::span<const std::byte> datagram, const Prefix& prefix, Ack& message);
DropReason decode_probe(std::span<const std::byte> datagram, const Prefix& prefix, Probe& message);
DropReason decode_bitmap(std::span<const std::byte> datagram, const Prefix& prefix, BitmapMessage& message);
DropReason decode_stop(std::span<const std::byte> datagram, const Prefix& prefix, Stop& message);
DropReason decode_abort(std::span<const std::byte> datagram, const Prefix& prefix, Abort& message);
DropReason decode_mtu_probe(std::span<const std::byte> datagram, const Prefix& prefix, MtuProbe& message);
DropReason decode_mtu_reply(std::span<const std::byte> datagram, const Prefix& prefix, MtuReply& message);
DropReason decode_retire(std::span<const std::byte> datagram, const Prefix& prefix, Retire& message);

}  // namespace mlt::wire
