#include "wire/codec.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/check.h"

namespace mlt::wire {

using base::load_le16;
using base::load_le32;
using base::load_le64;
using base::store_le16;
using base::store_le32;
using base::store_le64;

namespace {

std::uint8_t allowed_flags(PacketType type);

// The part of the check that is XORed into the cookie, without the rank's low bits. `zeros`: number of zero bytes that
// follow the message.
std::uint64_t check_of(std::span<const std::byte> message, std::size_t zeros = 0) {
  // PROTOCOL 4.3.3: The check MUST be computed over the covered bytes as 64-bit little-endian words, the last padded
  //     with zeros, without the word of the cookie.
  std::uint64_t check = MLT_CHECK_SEED;
  const auto mix = [&check](std::uint64_t word) {
    check = (check ^ word) * MLT_CHECK_FACTOR;
    check ^= check >> 32;
  };
  std::size_t at = 0;
  for (; at + 8 <= message.size(); at += 8) {
    if (at != MLT_OFFSET_COOKIE) mix(load_le64(message.data() + at));
  }
  if (at < message.size()) {
    std::array<std::byte, 8> last{};
    std::copy(message.begin() + static_cast<std::ptrdiff_t>(at), message.end(), last.begin());
    mix(load_le64(last.data()));
  }
  for (std::size_t padded = 0; padded < zeros; padded += 8) mix(0);
  return check & ~std::uint64_t{MLT_COOKIE_RANK_MASK};
}

constexpr std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t i) {
  return static_cast<std::uint8_t>(bytes[i]);
}

}  // namespace

std::uint16_t cookie_rank(std::uint64_t cookie) { return static_cast<std::uint16_t>(cookie & MLT_COOKIE_RANK_MASK); }

void encode_prefix(const Prefix& prefix, std::byte* out) {
  // PROTOCOL 4.2.1: Every datagram MUST start with version, type, flags, path, element type, round, sequence number and
  //     cookie, laid out as above.
  out[MLT_OFFSET_VERSION_TYPE] =
      static_cast<std::byte>((MLT_DATAGRAM_VERSION << 4) | static_cast<std::uint8_t>(prefix.type));
  out[MLT_OFFSET_FLAGS] = static_cast<std::byte>(prefix.flags);
  out[MLT_OFFSET_PATH_ELEMENT] = static_cast<std::byte>((prefix.path << 4) | static_cast<std::uint8_t>(prefix.element));
  out[MLT_OFFSET_ROUND] = static_cast<std::byte>(prefix.round);
  store_le32(out + MLT_OFFSET_SEQUENCE, prefix.sequence);
  store_le64(out + MLT_OFFSET_COOKIE, prefix.cookie);
}

void seal(std::span<std::byte> message) { seal_padded(message, 0); }

void seal_padded(std::span<std::byte> message, std::size_t zeros) {
  MLT_CHECK(zeros == 0 || message.size() % 8 == 0);
  std::byte* cookie = message.data() + MLT_OFFSET_COOKIE;
  // PROTOCOL 4.3.1: The cookie field MUST carry the cookie that the receiver's hello gave, its upper 48 bits XORed with
  //     those of the check of the message.
  store_le64(cookie, load_le64(cookie) ^ check_of(message, zeros));
}

namespace {

// What the headers of DATA and PARITY have in common.
template <typename Header>
void encode_rest(const Header& header, std::byte* out) {
  encode_prefix(header.prefix, out);
  store_le64(out + MLT_OFFSET_TAG, header.tag);
  store_le32(out + MLT_OFFSET_GENERATION, header.generation);
  store_le32(out + MLT_OFFSET_TOTAL_BYTES, header.total_bytes);
  store_le32(out + MLT_OFFSET_TIMESTAMP, header.timestamp_ns);
  seal({out, MLT_DATA_HEADER_BYTES});
}

}  // namespace

void encode_data_header(const DataHeader& header, std::byte* out) {
  // PROTOCOL 4.4.1: A packet MUST carry exactly one segment of the tensor's grid, so that a receiver can place it in
  //     any order, once or twice.
  store_le32(out + MLT_OFFSET_OFFSET, header.offset_bytes);
  encode_rest(header, out);
}

void encode_parity_header(const ParityHeader& header, std::byte* out) {
  // PROTOCOL 4.13.1: A PARITY packet MUST say of which block it is a parity, how many segments the blocks have, and
  //     which parity it is.
  store_le16(out + MLT_OFFSET_BLOCK, header.block);
  out[MLT_OFFSET_BLOCK_SEGMENTS] = static_cast<std::byte>(header.block_segments);
  out[MLT_OFFSET_PARITY_INDEX] = static_cast<std::byte>(header.index);
  encode_rest(header, out);
}

DropReason decode_prefix(std::span<const std::byte> datagram, Prefix& prefix) {
  // PROTOCOL 4.11.1: A receiver MUST check a datagram, or a fallback frame, in the order of this table, count the first
  //     check that it fails, and do nothing else with it.
  if (datagram.size() < MLT_PREFIX_BYTES) return DropReason::kTooShort;
  const std::uint8_t version_type = byte_at(datagram, MLT_OFFSET_VERSION_TYPE);
  if ((version_type >> 4) != MLT_DATAGRAM_VERSION) return DropReason::kBadVersion;
  const std::uint8_t type = version_type & 0x0F;
  if (type < MLT_TYPE_DATA || type > MLT_TYPE_PARITY) return DropReason::kUnknownType;
  prefix.type = static_cast<PacketType>(type);
  prefix.flags = byte_at(datagram, MLT_OFFSET_FLAGS);
  if ((prefix.flags & ~allowed_flags(prefix.type)) != 0) return DropReason::kUnknownFlags;
  const std::uint8_t path_element = byte_at(datagram, MLT_OFFSET_PATH_ELEMENT);
  prefix.path = path_element >> 4;
  if ((path_element & 0x0F) >= kElementTypeCount) return DropReason::kUnknownElement;
  prefix.element = static_cast<ElementType>(path_element & 0x0F);
  prefix.round = byte_at(datagram, MLT_OFFSET_ROUND);
  prefix.sequence = load_le32(datagram.data() + MLT_OFFSET_SEQUENCE);
  const bool is_data = has_payload(prefix.type);
  if (is_data && datagram.size() < MLT_DATA_HEADER_BYTES) return DropReason::kTooShort;
  prefix.cookie = load_le64(datagram.data() + MLT_OFFSET_COOKIE) ^
                  // PROTOCOL 4.3.2: The check of a DATA or PARITY packet MUST cover its 40 bytes of header; that of any
                  //     other message MUST cover all of its bytes.
                  check_of(is_data ? datagram.first(MLT_DATA_HEADER_BYTES) : datagram);
  return DropReason::kNone;
}

DropReason decode_data(std::span<const std::byte> datagram, DataHeader& header, std::span<const std::byte>& payload) {
  if (datagram.size() < MLT_DATA_HEADER_BYTES) return DropReason::kTooShort;
  const std::byte* in = datagram.data();
  header.tag = load_le64(in + MLT_OFFSET_TAG);
  header.generation = load_le32(in + MLT_OFFSET_GENERATION);
  header.total_bytes = load_le32(in + MLT_OFFSET_TOTAL_BYTES);
  header.offset_bytes = load_le32(in + MLT_OFFSET_OFFSET);
  header.timestamp_ns = load_le32(in + MLT_OFFSET_TIMESTAMP);
  payload = datagram.subspan(MLT_DATA_HEADER_BYTES);
  // PROTOCOL 4.11.2: A receiver MUST drop DATA if its payload is empty and total bytes is not zero, if it reaches
  //     beyond total bytes, or if total bytes is not a multiple of the element size.
  // An empty packet is valid only for an empty tensor.
  if (payload.empty() && header.total_bytes != 0) return DropReason::kBadLength;
  if (header.offset_bytes > header.total_bytes) return DropReason::kBadLength;
  if (payload.size() > header.total_bytes - header.offset_bytes) return DropReason::kBadLength;
  if (header.total_bytes % element_bytes(header.prefix.element) != 0) return DropReason::kBadLength;
  return DropReason::kNone;
}

DropReason decode_parity(std::span<const std::byte> datagram, ParityHeader& header,
                         std::span<const std::byte>& payload) {
  if (datagram.size() < MLT_DATA_HEADER_BYTES) return DropReason::kTooShort;
  const std::byte* in = datagram.data();
  header.tag = load_le64(in + MLT_OFFSET_TAG);
  header.generation = load_le32(in + MLT_OFFSET_GENERATION);
  header.total_bytes = load_le32(in + MLT_OFFSET_TOTAL_BYTES);
  header.block = load_le16(in + MLT_OFFSET_BLOCK);
  header.block_segments = byte_at(datagram, MLT_OFFSET_BLOCK_SEGMENTS);
  header.index = byte_at(datagram, MLT_OFFSET_PARITY_INDEX);
  header.timestamp_ns = load_le32(in + MLT_OFFSET_TIMESTAMP);
  payload = datagram.subspan(MLT_DATA_HEADER_BYTES);
  // PROTOCOL 4.11.13: A receiver MUST drop PARITY if its payload is empty or longer than total bytes, if total bytes is
  //     not a multiple of the element size, if its block has no segment or more than 224, or if its index is 32 or
  //     more.
  if (payload.empty() || payload.size() > header.total_bytes) return DropReason::kBadLength;
  if (header.total_bytes % element_bytes(header.prefix.element) != 0) return DropReason::kBadLength;
  if (header.block_segments == 0 || header.block_segments > MLT_MAX_BLOCK_SEGMENTS) return DropReason::kBadLength;
  if (header.index >= MLT_MAX_BLOCK_PARITIES) return DropReason::kBadLength;
  return DropReason::kNone;
}

const char* drop_reason_name(DropReason reason) {
  switch (reason) {
    case DropReason::kNone:
      return "none";
    case DropReason::kTooShort:
      return "too_short";
    case DropReason::kBadVersion:
      return "bad_version";
    case DropReason::kUnknownType:
      return "unknown_type";
    case DropReason::kUnknownFlags:
      return "unknown_flags";
    case DropReason::kUnknownElement:
      return "unknown_element";
    case DropReason::kBadLength:
      return "bad_length";
  }
  return "unknown";
}

namespace {

std::uint8_t allowed_flags(PacketType type) {
  switch (type) {
    case PacketType::kData:
      return MLT_DATA_FLAGS;
    case PacketType::kAck:
      return MLT_ACK_FLAGS;
    case PacketType::kProbe:
      return MLT_PROBE_FLAGS;
    case PacketType::kBitmap:
      return MLT_BITMAP_FLAGS;
    case PacketType::kStop:
      return MLT_STOP_FLAGS;
    case PacketType::kAbort:
    case PacketType::kMtuProbe:
    case PacketType::kMtuReply:
      return 0;
    case PacketType::kRetire:
      return MLT_RETIRE_FLAGS;
    case PacketType::kParity:
      return MLT_PARITY_FLAGS;
  }
  return 0;
}

}  // namespace

}  // namespace mlt::wire
