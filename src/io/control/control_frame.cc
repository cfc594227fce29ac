#include "io/control/control_frame.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/bytes.h"
#include "base/check.h"

namespace mlt::io {

using base::load_le16;
using base::load_le32;
using base::load_le64;
using base::store_le16;
using base::store_le32;
using base::store_le64;

void encode_frame_header(const FrameHeader& header, std::byte* out) {
  // PROTOCOL 3.1.2: Each frame MUST be a 32-bit payload length, an 8-bit type, three zero bytes, and the payload.
  store_le32(out, header.payload_bytes);
  store_le32(out + 4, header.type);
}

bool decode_frame_header(const std::byte* bytes, FrameHeader& header) {
  header.payload_bytes = load_le32(bytes);
  const std::uint32_t type_and_reserved = load_le32(bytes + 4);
  header.type = static_cast<std::uint8_t>(type_and_reserved);
  // PROTOCOL 3.1.3: A receiver MUST treat a frame whose reserved bytes are not zero as malformed.
  return type_and_reserved <= 0xFF;
}

void encode_opening(const Opening& opening, std::byte* out) {
  store_le32(out, kHelloMagic);
  store_le16(out + 4, opening.version);
  store_le16(out + 6, 0);
  std::copy(opening.nonce.begin(), opening.nonce.end(), out + 8);
}

OpeningError decode_opening(std::span<const std::byte> payload, std::size_t proof_bytes, std::uint16_t own_version,
                            Opening& opening) {
  // PROTOCOL 3.2.2: The first frame in each direction MUST have type 1. Its first six bytes (magic, version) MUST NOT
  //     change between versions, so that two versions can tell each other apart.
  if (payload.size() < kOpeningPrefixBytes || load_le32(payload.data()) != kHelloMagic) return OpeningError::kMalformed;
  opening.version = load_le16(payload.data() + 4);
  if (opening.version != own_version) return OpeningError::kOtherVersion;
  // PROTOCOL 3.8.2: A receiver MUST treat an opening of the same version as malformed if its length differs or its
  //     reserved bytes are not zero.
  if (payload.size() != kOpeningBytes + proof_bytes || load_le16(payload.data() + 6) != 0)
    return OpeningError::kMalformed;
  std::copy_n(payload.begin() + 8, kNonceBytes, opening.nonce.begin());
  return OpeningError::kNone;
}

std::size_t encode_hello(const Hello& hello, std::byte* out) {
  MLT_CHECK(hello.path_count >= 1 && hello.path_count <= MLT_MAX_PATHS);
  store_le32(out, kHelloMagic);
  store_le16(out + 4, hello.version);
  store_le16(out + 6, hello.rank);
  store_le16(out + 8, hello.expected_rank);
  store_le16(out + 10, hello.world_size);
  store_le16(out + 12, hello.path_count);
  store_le16(out + 14, hello.control_port);
  store_le64(out + 16, hello.job_id);
  store_le64(out + 24, hello.incarnation);
  store_le64(out + 32, hello.cookie);
  store_le32(out + 40, hello.segment_bytes);
  store_le32(out + 44, hello.window_bytes);
  store_le32(out + 48, hello.early_segments);
  store_le32(out + 52, hello.early_transfers);
  for (std::size_t i = 0; i < hello.path_count; ++i) {
    std::byte* path = out + hello_bytes(i);
    std::copy(hello.paths[i].address.begin(), hello.paths[i].address.end(), path);
    store_le16(path + 16, hello.paths[i].port);
    store_le16(path + 18, 0);
  }
  return hello_bytes(hello.path_count);
}

HelloError decode_hello(std::span<const std::byte> payload, std::uint16_t own_version, Hello& hello) {
  if (payload.size() < kHelloPrefixBytes) return HelloError::kTooShort;
  const std::byte* in = payload.data();
  // PROTOCOL 3.2.3: A receiver MUST treat a hello as malformed if its magic or version differs, or if its length does
  //     not fit its number of paths.
  if (load_le32(in) != kHelloMagic) return HelloError::kBadMagic;
  hello.version = load_le16(in + 4);
  hello.rank = load_le16(in + 6);
  if (hello.version != own_version) return HelloError::kOtherVersion;
  if (payload.size() < kHelloFixedBytes) return HelloError::kBadLength;
  // PROTOCOL 3.2.11: A receiver MUST treat a hello as malformed if it names no path or more than 16, or a path whose
  //     port is 0 or whose last two bytes are not zero.
  hello.path_count = load_le16(in + 12);
  if (hello.path_count == 0 || hello.path_count > MLT_MAX_PATHS) return HelloError::kBadPaths;
  // PROTOCOL 3.2.3: or if its length does not fit its number of paths.
  if (payload.size() != hello_bytes(hello.path_count)) return HelloError::kBadLength;
  for (std::size_t i = 0; i < hello.path_count; ++i) {
    const std::byte* path = in + hello_bytes(i);
    std::copy_n(path, hello.paths[i].address.size(), hello.paths[i].address.begin());
    hello.paths[i].port = load_le16(path + 16);
    if (hello.paths[i].port == 0 || load_le16(path + 18) != 0) return HelloError::kBadPaths;
  }
  hello.expected_rank = load_le16(in + 8);
  hello.world_size = load_le16(in + 10);
  hello.control_port = load_le16(in + 14);
  hello.job_id = load_le64(in + 16);
  hello.incarnation = load_le64(in + 24);
  hello.cookie = load_le64(in + 32);
  hello.segment_bytes = load_le32(in + 40);
  hello.window_bytes = load_le32(in + 44);
  hello.early_segments = load_le32(in + 48);
  hello.early_transfers = load_le32(in + 52);
  return HelloError::kNone;
}

void encode_refusal(const Refusal& refusal, std::byte* out) {
  out[0] = static_cast<std::byte>(refusal.reason);
  out[1] = std::byte{0};
  store_le16(out + 2, refusal.refuser_rank);
  store_le64(out + 4, refusal.refuser_value);
  store_le64(out + 12, refusal.refused_value);
}

bool decode_refusal(std::span<const std::byte> payload, Refusal& refusal) {
  // PROTOCOL 3.4.2: A receiver MUST treat a refusal of another length, or whose reason is not 1 to 8, as malformed.
  if (payload.size() != kRefusalBytes) return false;
  const auto reason = static_cast<std::uint8_t>(payload[0]);
  if (reason == 0 || reason > kLastRefusalReason) return false;
  refusal.reason = static_cast<RefusalReason>(reason);
  refusal.refuser_rank = load_le16(payload.data() + 2);
  refusal.refuser_value = load_le64(payload.data() + 4);
  refusal.refused_value = load_le64(payload.data() + 12);
  return true;
}

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016" PRIx64, value);
  return text;
}

// "rank 0 has <mine> while rank 2 has <theirs>": the same text on both sides.
std::string difference(const Refusal& refusal, std::uint16_t refused_rank, const char* what,
                       std::string (*format)(std::uint64_t)) {
  return std::string(what) + " differs: rank " + number(refusal.refuser_rank) + " has " +
         format(refusal.refuser_value) + ", rank " + number(refused_rank) + " has " + format(refusal.refused_value);
}

}  // namespace

std::string describe_refusal(const Refusal& refusal, std::uint16_t refused_rank, bool for_refuser,
                             std::string_view other_address) {
  std::string text;
  if (for_refuser) {
    text = "refused rank " + number(refused_rank) + " at " + std::string(other_address) + ": ";
  } else {
    text = "rank " + number(refusal.refuser_rank) + " at " + std::string(other_address) + " refused rank " +
           number(refused_rank) + " (this process): ";
  }
  switch (refusal.reason) {
    case RefusalReason::kVersion:
      return text + difference(refusal, refused_rank, "protocol version", number) +
             ". Install the same mlt release on every host.";
    case RefusalReason::kJob:
      return text + difference(refusal, refused_rank, "job", hex) +
             ". Two jobs use the same address and port: give each its own MASTER_PORT, or the same job name to all "
             "processes of one job.";
    case RefusalReason::kWorldSize:
      return text + difference(refusal, refused_rank, "world size", number) +
             ". Start every process with the same WORLD_SIZE.";
    case RefusalReason::kRankRange:
      return text + "rank " + number(refusal.refused_value) + " is not below the world size " +
             number(refusal.refuser_value) + ". Start each process with a RANK from 0 to WORLD_SIZE - 1.";
    case RefusalReason::kRankTaken:
      return text + "rank " + number(refusal.refused_value) + " is already taken by another process, as rank " +
             number(refusal.refuser_rank) +
             " reports. Give every process its own RANK, and end processes left over from an earlier start.";
    case RefusalReason::kRankGone:
      return text + "rank " + number(refused_rank) + " left this job earlier or connected too late (incarnation " +
             hex(refusal.refuser_value) + " then, " + hex(refusal.refused_value) + " now). Restart the whole job.";
    case RefusalReason::kWrongRank:
      return text + "it tried to connect to rank " + number(refusal.refused_value) + " and reached rank " +
             number(refusal.refuser_value) + ". Check the address given for rank " + number(refusal.refused_value) +
             ", and that each process has its own RANK.";
    case RefusalReason::kPaths:
      return text + difference(refusal, refused_rank, "number of paths", number) +
             ". Give every process the same number of paths (paths=, MLT_PATHS).";
  }
  return text + "reason unknown.";
}

}  // namespace mlt::io
