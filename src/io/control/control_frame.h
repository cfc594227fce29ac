// The bytes of the control channel: frames, the openings that start a connection, the hellos that follow, and the
// refusal that may reply to a hello.
//
// A frame is u32 payload length, u8 type, three zero bytes, payload; little-endian. Types below kFirstMessageType
// belong to the channel itself; the others are the caller's and opaque here. Pure functions over bytes: no sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "io/control/proof.h"
#include "wire/packet.h"

namespace mlt::io {

enum class FrameType : std::uint8_t {
  kOpen = 1,              // both ways, before anything else: version and nonce
  kRefuse = 2,            // instead of a hello or after one: the reason; the connection ends
  kConfirm = 3,           // from the side that connected: hello received, the connection is up
  kHeartbeat = 4,         // sent in the absence of other messages
  kGoodbye = 5,           // orderly end: nothing follows
  kHello = 6,             // both ways, once the remote end has proved that it knows the job's secret
  kHeartbeatRequest = 7,  // to be replied to with a heartbeat
  kSilent = 8,            // this side took the rank that the payload names as silent
};
inline constexpr std::uint8_t kFirstMessageType = 16;
inline constexpr std::size_t kSilentPayloadBytes = 4;

inline constexpr std::size_t kFrameHeaderBytes = 8;

struct FrameHeader {
  std::uint32_t payload_bytes = 0;
  std::uint8_t type = 0;
};
void encode_frame_header(const FrameHeader& header, std::byte* out);
// False if the reserved bytes are not zero.
bool decode_frame_header(const std::byte* bytes, FrameHeader& header);

inline constexpr std::uint32_t kHelloMagic = 0x31544C4D;  // "MLT1"; in openings, too

// First frame of a connection in each direction. Its type, magic and version never change between protocol versions, so
// that each side can identify the other's version. The listening side's is followed by its proof (io/control/proof.h).
struct Opening {
  std::uint16_t version = 0;
  Nonce nonce{};
};
inline constexpr std::size_t kOpeningPrefixBytes = 6;  // magic, version
inline constexpr std::size_t kOpeningBytes = 8 + kNonceBytes;

enum class OpeningError : std::uint8_t { kNone, kMalformed, kOtherVersion };

// Writes kOpeningBytes.
void encode_opening(const Opening& opening, std::byte* out);
// `proof_bytes` follow the opening: kProofBytes from the listening side, 0 from the connecting side. With kOtherVersion
// only the version is filled.
OpeningError decode_opening(std::span<const std::byte> payload, std::size_t proof_bytes, std::uint16_t own_version,
                            Opening& opening);

// Where the sender of a hello receives datagrams on one of its paths: IPv6, or IPv4-mapped (::ffff:a.b.c.d). All zero:
// the source address of its connection.
struct HelloPath {
  std::array<std::byte, 16> address{};
  std::uint16_t port = 0;
  bool operator==(const HelloPath&) const = default;
};

// Sent by each side once the other has proved that it knows the job's secret.
struct Hello {
  std::uint16_t version = 0;
  std::uint16_t rank = 0;           // the sender's
  std::uint16_t expected_rank = 0;  // rank that the sender believes to be connected to
  std::uint16_t world_size = 0;
  std::uint64_t job_id = 0;
  std::uint64_t incarnation = 0;  // differs between two starts of one rank
  std::uint64_t cookie = 0;       // what the receiver of this hello must put into its datagrams to the sender
  std::uint16_t control_port = 0;
  std::uint32_t segment_bytes = 0;
  std::uint32_t window_bytes = 0;
  std::uint32_t early_segments = 0;
  std::uint32_t early_transfers = 0;
  std::uint16_t path_count = 0;  // 1 .. MLT_MAX_PATHS
  std::array<HelloPath, MLT_MAX_PATHS> paths{};
};
inline constexpr std::size_t kHelloPrefixBytes = 8;  // magic, version, rank
inline constexpr std::size_t kHelloFixedBytes = 56;  // followed by kHelloPathBytes for each path
inline constexpr std::size_t kHelloPathBytes = 20;
inline constexpr std::size_t kHelloMaxBytes = kHelloFixedBytes + MLT_MAX_PATHS * kHelloPathBytes;
constexpr std::size_t hello_bytes(std::size_t paths) { return kHelloFixedBytes + paths * kHelloPathBytes; }

enum class HelloError : std::uint8_t { kNone, kTooShort, kBadMagic, kOtherVersion, kBadLength, kBadPaths };

// Writes hello_bytes(hello.path_count) bytes, and returns how many.
std::size_t encode_hello(const Hello& hello, std::byte* out);
HelloError decode_hello(std::span<const std::byte> payload, std::uint16_t own_version, Hello& hello);

enum class RefusalReason : std::uint8_t {
  kVersion = 1,    // values: protocol versions; sent by versions below 4 only, without a proof
  kJob = 2,        // values: job ids
  kWorldSize = 3,  // values: world sizes
  kRankRange = 4,  // values: refuser's world size, the rank received
  kRankTaken = 5,  // values: refuser's rank, the rank received (another process has it)
  kRankGone = 6,   // values: incarnation that went down, the one received
  kWrongRank = 7,  // values: refuser's rank, the rank expected by the other side
  kPaths = 8,      // values: path counts
};
inline constexpr std::uint8_t kLastRefusalReason = 8;

struct Refusal {
  RefusalReason reason = RefusalReason::kVersion;
  std::uint16_t refuser_rank = 0;
  std::uint64_t refuser_value = 0;
  std::uint64_t refused_value = 0;
};
inline constexpr std::size_t kRefusalBytes = 20;

void encode_refusal(const Refusal& refusal, std::byte* out);
bool decode_refusal(std::span<const std::byte> payload, Refusal& refusal);

// Describes a refusal in the same way for either side: both ranks, both values, and what to change. `other_address` is
// the reader's peer.
std::string describe_refusal(const Refusal& refusal, std::uint16_t refused_rank, bool for_refuser,
                             std::string_view other_address);

}  // namespace mlt::io
