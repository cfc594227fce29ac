// Which check detects a damaged datagram first: UDP's checksum in the kernel, or the packet's own check (clause 4.3.3).
// The network delivers damage that the packet's check detects, so that runs prove that endpoints verify it, and drops
// what only a kernel would detect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "wire/packet.h"

namespace mlt::sim {

// The cookie that a receiver computes: the cookie field without the check. Written from the clause, not with the
// codec's function, which is under test.
inline std::uint64_t cookie_found(std::span<const std::byte> covered) {
  std::uint64_t check = 0x6D6C'742D'6368'6563ULL;
  for (std::size_t at = 0; at < covered.size(); at += 8) {
    if (at == MLT_OFFSET_COOKIE) continue;
    std::byte word[8]{};
    std::memcpy(word, covered.data() + at, covered.size() - at < 8 ? covered.size() - at : 8);
    check = (check ^ base::load_le64(word)) * 0x9E37'79B9'7F4A'7C15ULL;
    check ^= check >> 32;
  }
  return base::load_le64(covered.data() + MLT_OFFSET_COOKIE) ^ (check & ~std::uint64_t{0xFFFF});
}

// The one's complement sum of RFC 768, as a residue: equal sums have equal checksums.
inline std::uint32_t udp_sum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    sum += std::to_integer<std::uint64_t>(bytes[at]) << (at % 2 == 0 ? 8 : 0);
  }
  return static_cast<std::uint32_t>(sum % 0xFFFF);
}

// Whether only UDP's checksum detects this damage: the packet's own check does not.
inline bool only_udp_notices(std::span<const std::byte> before, std::span<const std::byte> after) {
  return cookie_found(before) == cookie_found(after) && udp_sum(before) != udp_sum(after);
}

}  // namespace mlt::sim
