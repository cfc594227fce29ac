#include "wire/control.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace mlt::wire {

using base::load_le32;
using base::load_le64;
using base::store_le32;
using base::store_le64;

namespace {

// Writes fields one after another; the caller must provide kMaxControlBytes.
class Writer {
 public:
  explicit Writer(std::byte* out) : begin_(out), at_(out) {}
  void u8(std::uint8_t v) { *at_++ = static_cast<std::byte>(v); }
  void u32(std::uint32_t v) {
    store_le32(at_, v);
    at_ += 4;
  }
  void u64(std::uint64_t v) {
    store_le64(at_, v);
    at_ += 8;
  }
  void zeros(int count) {
    for (int i = 0; i < count; ++i) u8(0);
  }
  void bytes(std::span<const std::byte> b) {
    if (!b.empty()) std::memcpy(at_, b.data(), b.size());
    at_ += b.size();
  }
  void prefix(const Prefix& p) {
    encode_prefix(p, at_);
    at_ += MLT_PREFIX_BYTES;
  }
  void block(const AckBlock& b) {
    u32(b.highest_sequence);
    u32(b.received_packets);
    u32(b.ce_packets);
    u32(b.echo_timestamp_ns);
    u32(b.hold_ns);
  }
  void transfer(const TransferId& t) {
    u64(t.tag);
    u32(t.generation);
  }
  // Completes the message: folds its check into the cookie and returns its size. `zeros`: padding that follows.
  std::size_t sealed(std::size_t zeros = 0) const {
    const auto size = static_cast<std::size_t>(at_ - begin_);
    seal_padded({begin_, size}, zeros);
    return size;
  }

 private:
  std::byte* begin_;
  std::byte* at_;
};

// Reads fields one after another; the caller must have checked the length.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : at_(in.data() + MLT_PREFIX_BYTES) {}
  std::uint8_t u8() { return static_cast<std::uint8_t>(*at_++); }
  std::uint32_t u32() {
    at_ += 4;
    return load_le32(at_ - 4);
  }
  std::uint64_t u64() {
    at_ += 8;
    return load_le64(at_ - 8);
  }
  // Skips reserved bytes; false if one is not zero.
  // PROTOCOL 4.11.9: A receiver MUST drop ACK, PROBE, STOP, ABORT and MTU_PROBE if a reserved byte is not zero
  //     (drop_unknown_flags).
  bool zeros(std::size_t count) {
    const std::byte* begin = at_;
    at_ += count;
    return std::all_of(begin, begin + count, [](std::byte b) { return b == std::byte{0}; });
  }
  AckBlock block() {
    AckBlock b;
    b.highest_sequence = u32();
    b.received_packets = u32();
    b.ce_packets = u32();
    b.echo_timestamp_ns = u32();
    b.hold_ns = u32();
    return b;
  }
  TransferId transfer() {
    TransferId t;
    t.tag = u64();
    t.generation = u32();
    return t;
  }

 private:
  const std::byte* at_;
};

constexpr std::size_t kAckBytes = MLT_PREFIX_BYTES + kAckBlockBytes + kTransferIdBytes + 4;
constexpr std::size_t kProbeBytes = MLT_PREFIX_BYTES + kTransferIdBytes + 3 * 4 + 4;
constexpr std::size_t kBitmapBytes = MLT_PREFIX_BYTES + kAckBlockBytes + kTransferIdBytes + 12;
constexpr std::size_t kStopBytes = MLT_PREFIX_BYTES + kAckBlockBytes + kTransferIdBytes + 4 + 4 + 8;
constexpr std::size_t kAbortBytes = MLT_PREFIX_BYTES + kTransferIdBytes + 8;
constexpr std::size_t kRetireBytes = MLT_PREFIX_BYTES + 4 + 4;
static_assert(kRetireBytes + std::size_t{8} * MLT_MAX_RETIRE_TAGS <= kMaxControlBytes);
static_assert(kBitmapBytes + MLT_BITMAP_CHUNK_SEGMENTS / 8 == kMaxControlBytes);

}  // namespace

std::size_t encode_ack(const Ack& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.block(message.block);
  w.transfer(message.transfer);
  w.u32(message.probe_timestamp_ns);
  for (std::uint8_t i = 0; i < message.other_count; ++i) {
    const PathBlock& other = message.others[i];
    w.u8(other.path);
    w.u8(other.fresh ? MLT_ACK_FLAG_ECHO : 0);
    w.zeros(2);
    w.block(other.block);
  }
  return w.sealed();
}

std::size_t encode_probe(const Probe& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.transfer(message.transfer);
  w.u32(message.total_bytes);
  w.u32(message.critical_segments);
  w.u32(message.timestamp_ns);
  w.u8(message.path_count);
  // PROTOCOL 4.1.1: An endpoint MUST set every field and bit that this section calls zero to zero. A receiver MUST
  //     ignore those that no check of 4.11 names.
  w.u8(0);
  w.u8(static_cast<std::uint8_t>(message.suspended_paths));
  w.u8(static_cast<std::uint8_t>(message.suspended_paths >> 8));
  for (std::uint8_t i = 0; i < message.path_count; ++i) w.u32(message.last_sequence[i]);
  return w.sealed();
}

std::size_t encode_bitmap(const BitmapMessage& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.block(message.block);
  w.transfer(message.transfer);
  w.u32(message.probe_timestamp_ns);
  w.u32(message.first_segment);
  w.u32(message.segment_count);
  w.bytes(message.bits);
  return w.sealed();
}

std::size_t encode_stop(const Stop& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.block(message.block);
  w.transfer(message.transfer);
  w.u32(message.probe_timestamp_ns);
  w.u8(static_cast<std::uint8_t>(message.status));
  w.zeros(3);
  w.u32(message.missing_bytes);
  w.u32(message.receiver_total_bytes);
  return w.sealed();
}

std::size_t encode_abort(const Abort& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.transfer(message.transfer);
  w.u8(static_cast<std::uint8_t>(message.reason.cause));
  w.zeros(3);
  w.u32(message.reason.path_bytes);
  return w.sealed();
}

// PROTOCOL 4.12.1: An MTU_PROBE MUST be as long as its field bytes says, at least 24 bytes, with zeros behind these ...
std::size_t encode_mtu_probe(const MtuProbe& message, std::byte* out) {
  MLT_CHECK(message.bytes >= kMtuProbeBytes);
  Writer w(out);
  w.prefix(message.prefix);
  w.u32(message.timestamp_ns);
  w.u32(message.bytes);
  return w.sealed(message.bytes - kMtuProbeBytes);
}

std::size_t encode_mtu_reply(const MtuReply& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.u32(message.timestamp_ns);
  w.u32(message.bytes);
  return w.sealed();
}

std::size_t encode_retire(const Retire& message, std::byte* out) {
  Writer w(out);
  w.prefix(message.prefix);
  w.u32(message.floor);
  w.u32(message.kept_count);
  for (std::uint32_t i = 0; i < message.kept_count; ++i) w.u64(message.kept[i]);
  return w.sealed();
}

DropReason decode_ack(std::span<const std::byte> datagram, const Prefix& prefix, Ack& message) {
  if (datagram.size() < kAckBytes) return DropReason::kTooShort;
  // The length determines the number of further paths.
  const std::size_t others = (datagram.size() - kAckBytes) / kPathBlockBytes;
  if (datagram.size() != kAckBytes + others * kPathBlockBytes) return DropReason::kBadLength;
  // PROTOCOL 4.11.7: A receiver MUST drop ACK if its length is not 52 and a multiple of 24, if it names 16 further
  //     paths or more, or a path twice.
  if (others >= MLT_MAX_PATHS) return DropReason::kBadLength;
  Reader r(datagram);
  message.prefix = prefix;
  message.block = r.block();
  message.transfer = r.transfer();
  message.probe_timestamp_ns = r.u32();
  message.other_count = static_cast<std::uint8_t>(others);
  std::uint32_t seen = 1U << prefix.path;
  for (std::size_t i = 0; i < others; ++i) {
    PathBlock& other = message.others[i];
    other.path = r.u8();
    const std::uint8_t flags = r.u8();
    if (!r.zeros(2)) return DropReason::kUnknownFlags;
    other.block = r.block();
    if ((flags & ~MLT_ACK_FLAG_ECHO) != 0) return DropReason::kUnknownFlags;
    if (other.path >= MLT_MAX_PATHS || ((seen >> other.path) & 1U) != 0) return DropReason::kBadLength;
    seen |= 1U << other.path;
    other.fresh = flags != 0;
  }
  return DropReason::kNone;
}

DropReason decode_probe(std::span<const std::byte> datagram, const Prefix& prefix, Probe& message) {
  if (datagram.size() < kProbeBytes) return DropReason::kTooShort;
  Reader r(datagram);
  message.prefix = prefix;
  message.transfer = r.transfer();
  message.total_bytes = r.u32();
  message.critical_segments = r.u32();
  message.timestamp_ns = r.u32();
  message.path_count = r.u8();
  if (!r.zeros(1)) return DropReason::kUnknownFlags;
  const std::uint32_t low = r.u8();
  message.suspended_paths = static_cast<std::uint16_t>(low | std::uint32_t{r.u8()} << 8);
  // PROTOCOL 4.11.3: ... or if it suspends a path that it does not name (drop_unknown_flags).
  if (message.path_count < MLT_MAX_PATHS && message.suspended_paths >> message.path_count != 0) {
    return DropReason::kUnknownFlags;
  }
  // PROTOCOL 4.11.3: A receiver MUST drop PROBE if it names more than 16 paths, if its length does not fit their
  //     number, if total bytes is not a multiple of the element size, or if it suspends a path that it does not name
  //     (drop_unknown_flags).
  if (message.path_count > MLT_MAX_PATHS) return DropReason::kBadLength;
  if (datagram.size() != kProbeBytes + 4U * message.path_count) return DropReason::kBadLength;
  for (std::uint8_t i = 0; i < message.path_count; ++i) message.last_sequence[i] = r.u32();
  if (message.total_bytes % element_bytes(prefix.element) != 0) return DropReason::kBadLength;
  return DropReason::kNone;
}

DropReason decode_bitmap(std::span<const std::byte> datagram, const Prefix& prefix, BitmapMessage& message) {
  if (datagram.size() < kBitmapBytes) return DropReason::kTooShort;
  Reader r(datagram);
  message.prefix = prefix;
  message.block = r.block();
  message.transfer = r.transfer();
  message.probe_timestamp_ns = r.u32();
  message.first_segment = r.u32();
  message.segment_count = r.u32();
  // PROTOCOL 4.11.4: A receiver MUST drop BITMAP if it counts more than 8,192 segments, does not start at a multiple of
  //     8,192, or does not have exactly the bytes that its bits need.
  if (message.segment_count > MLT_BITMAP_CHUNK_SEGMENTS) return DropReason::kBadLength;
  if (message.first_segment % MLT_BITMAP_CHUNK_SEGMENTS != 0) return DropReason::kBadLength;
  message.bits = datagram.subspan(kBitmapBytes);
  if (message.bits.size() != (message.segment_count + 7) / 8) return DropReason::kBadLength;
  return DropReason::kNone;
}

DropReason decode_stop(std::span<const std::byte> datagram, const Prefix& prefix, Stop& message) {
  if (datagram.size() < kStopBytes) return DropReason::kTooShort;
  if (datagram.size() != kStopBytes) return DropReason::kBadLength;
  Reader r(datagram);
  message.prefix = prefix;
  message.block = r.block();
  message.transfer = r.transfer();
  message.probe_timestamp_ns = r.u32();
  const std::uint8_t status = r.u8();
  // PROTOCOL 4.11.5: A receiver MUST drop STOP if its status is above 6, if it misses more than the receiver's total
  //     bytes, or if it is complete and misses any.
  if (status >= kStopStatusCount) return DropReason::kBadLength;
  message.status = static_cast<StopStatus>(status);
  if (!r.zeros(3)) return DropReason::kUnknownFlags;
  message.missing_bytes = r.u32();
  message.receiver_total_bytes = r.u32();
  if (message.missing_bytes > message.receiver_total_bytes) return DropReason::kBadLength;
  if (message.status == StopStatus::kComplete && message.missing_bytes != 0) return DropReason::kBadLength;
  return DropReason::kNone;
}

DropReason decode_abort(std::span<const std::byte> datagram, const Prefix& prefix, Abort& message) {
  if (datagram.size() < kAbortBytes) return DropReason::kTooShort;
  if (datagram.size() != kAbortBytes) return DropReason::kBadLength;
  Reader r(datagram);
  message.prefix = prefix;
  message.transfer = r.transfer();
  const std::uint8_t cause = r.u8();
  // PROTOCOL 4.11.12: A receiver MUST drop ABORT if its cause is none of those of 4.10, or if it names a payload with
  //     another cause than 3.
  if (cause == 0 || cause >= kAbortCauseCount) return DropReason::kBadLength;
  if (!r.zeros(3)) return DropReason::kUnknownFlags;
  message.reason = {static_cast<AbortCause>(cause), r.u32()};
  if (message.reason.path_bytes != 0 && message.reason.cause != AbortCause::kPathTooSmall)
    return DropReason::kBadLength;
  return DropReason::kNone;
}

// PROTOCOL 4.11.10: A receiver MUST drop MTU_PROBE if it is not as long as it says, and MTU_REPLY if it is not 24 bytes
//     long or names fewer.
DropReason decode_mtu_probe(std::span<const std::byte> datagram, const Prefix& prefix, MtuProbe& message) {
  if (datagram.size() < kMtuProbeBytes) return DropReason::kTooShort;
  Reader r(datagram);
  message.prefix = prefix;
  message.timestamp_ns = r.u32();
  message.bytes = r.u32();
  if (datagram.size() != message.bytes) return DropReason::kBadLength;
  return r.zeros(message.bytes - kMtuProbeBytes) ? DropReason::kNone : DropReason::kUnknownFlags;
}

DropReason decode_mtu_reply(std::span<const std::byte> datagram, const Prefix& prefix, MtuReply& message) {
  if (datagram.size() < kMtuProbeBytes) return DropReason::kTooShort;
  if (datagram.size() != kMtuProbeBytes) return DropReason::kBadLength;
  Reader r(datagram);
  message.prefix = prefix;
  message.timestamp_ns = r.u32();
  message.bytes = r.u32();
  return message.bytes >= kMtuProbeBytes ? DropReason::kNone : DropReason::kBadLength;
}

DropReason decode_retire(std::span<const std::byte> datagram, const Prefix& prefix, Retire& message) {
  if (datagram.size() < kRetireBytes) return DropReason::kTooShort;
  Reader r(datagram);
  message.prefix = prefix;
  message.floor = r.u32();
  message.kept_count = r.u32();
  // PROTOCOL 4.11.11: A receiver MUST drop RETIRE if it lists more than 128 tags, or if its length does not fit their
  //     number.
  if (message.kept_count > MLT_MAX_RETIRE_TAGS) return DropReason::kBadLength;
  if (datagram.size() != kRetireBytes + std::size_t{8} * message.kept_count) return DropReason::kBadLength;
  for (std::uint32_t i = 0; i < message.kept_count; ++i) message.kept[i] = r.u64();
  return DropReason::kNone;
}

}  // namespace mlt::wire
