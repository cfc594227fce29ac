// Data packets: header <-> bytes, exact and bounds-checked.
//
// Decoding never reads past the input and returns a typed reason for each dropped datagram. It makes all stateless
// checks (length, version, flags, ranges); the endpoint checks cookie, transfer and grid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/element.h"
#include "wire/packet.h"

namespace mlt::wire {

// Why a datagram was dropped. Each reason has its own counter.
enum class DropReason : std::uint8_t {
  kNone = 0,
  kTooShort,        // shorter than the header of its type
  kBadVersion,      // another protocol version
  kUnknownType,     //
  kUnknownFlags,    // a flag bit, or a reserved byte, that this version does not define
  kUnknownElement,  // element type code out of range
  kBadLength,       // payload or counts disagree with the header's own lengths
};

enum class PacketType : std::uint8_t {
  kData = MLT_TYPE_DATA,
  kAck = MLT_TYPE_ACK,
  kProbe = MLT_TYPE_PROBE,
  kBitmap = MLT_TYPE_BITMAP,
  kStop = MLT_TYPE_STOP,
  kAbort = MLT_TYPE_ABORT,
  kMtuProbe = MLT_TYPE_MTU_PROBE,
  kMtuReply = MLT_TYPE_MTU_REPLY,
  kRetire = MLT_TYPE_RETIRE,
  kParity = MLT_TYPE_PARITY,
};

// Whether the packet has the header of data, and payload that travels with it.
constexpr bool has_payload(PacketType type) { return type == PacketType::kData || type == PacketType::kParity; }

// The first 16 bytes of every datagram.
struct Prefix {
  PacketType type = PacketType::kData;
  std::uint8_t flags = 0;
  std::uint8_t path = 0;
  ElementType element = ElementType::kUint8;  // of the transfer; zero if the packet has none
  std::uint8_t round = 0;                     // sending round of the transfer; wraps
  std::uint32_t sequence = 0;                 // per peer and path, data packets only
  std::uint64_t cookie = 0;
};

struct DataHeader {
  Prefix prefix;
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;    // number of earlier uses of this tag, in this direction, on this connection
  std::uint32_t total_bytes = 0;   // of the tensor
  std::uint32_t offset_bytes = 0;  // of the payload's first byte in the tensor
  std::uint32_t timestamp_ns = 0;  // sender's clock, low 32 bits
};

struct ParityHeader {
  Prefix prefix;
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;
  std::uint32_t total_bytes = 0;    // of the tensor
  std::uint16_t block = 0;          // number of the block in the tensor
  std::uint8_t block_segments = 0;  // of every block but the last, which may have fewer
  std::uint8_t index = 0;           // of this parity among those of the block
  std::uint32_t timestamp_ns = 0;
};

std::uint16_t cookie_rank(std::uint64_t cookie);

// `out` must hold MLT_DATA_HEADER_BYTES.
void encode_data_header(const DataHeader& header, std::byte* out);

// The same.
void encode_parity_header(const ParityHeader& header, std::byte* out);

// Reads the prefix of any datagram; kNone on success. The result has the secret cookie only if the header, or the whole
// control-class packet, is undamaged.
DropReason decode_prefix(std::span<const std::byte> datagram, Prefix& prefix);

// Reads a data packet whose prefix is in header.prefix already; on kNone, `payload` is the part after the header. The
// prefix is not copied: a wide load of fields that were just written waits until the stores of the previous packet's
// payload reach memory (store forwarding fails). Profiles showed the receiver waiting here.
DropReason decode_data(std::span<const std::byte> datagram, DataHeader& header, std::span<const std::byte>& payload);

// The same of a parity packet.
DropReason decode_parity(std::span<const std::byte> datagram, ParityHeader& header,
                         std::span<const std::byte>& payload);

const char* drop_reason_name(DropReason reason);

// Shared with control.cc.
void encode_prefix(const Prefix& prefix, std::byte* out);
// Last step of every encoder: folds the check of the message (packet.h) into its cookie.
void seal(std::span<std::byte> message);
// seal() of a message whose last `zeros` bytes, all zero, are stored elsewhere. Its size must be a multiple of 8 bytes.
void seal_padded(std::span<std::byte> message, std::size_t zeros);

}  // namespace mlt::wire
