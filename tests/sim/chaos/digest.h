// Digests of buffers: the sum of their 64-bit words, each times an odd number of its place, so that a wrong byte always
// shows. tools/chaos/memory.py does the same with numpy. What the words should be is the oracle's business
// (sim/oracle_contents.h); the numbers of operations are made here, so that both sides of a transfer know them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "sim/oracle_contents.h"

namespace mlt::chaos {

inline constexpr std::size_t kGuardBytes = 64;  // on each side of a buffer

// Of bytes that stand from `at`, a multiple of 8, on in their buffer.
inline std::uint64_t digest(std::span<const std::byte> bytes, std::size_t at = 0) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    sum += word * (2 * ((at + i) / 8) + 1);
  }
  return sum;
}

// Of the part [begin, end) of what operation `id` holds in an epoch.
inline std::uint64_t digest_of(std::uint64_t id, std::uint8_t epoch, std::size_t begin, std::size_t end) {
  const sim::Contents contents(id, epoch);
  std::uint64_t sum = 0;
  for (std::size_t at = begin; at < end; at += 8) {
    std::uint64_t word = contents.word(at / 8);
    if (end - at < 8) word &= (std::uint64_t{1} << (8 * (end - at))) - 1;
    sum += word * (2 * (at / 8) + 1);
  }
  return sum;
}

inline std::uint64_t guards_digest() {
  static const std::uint64_t sum = [] {
    const std::vector<std::byte> guards(2 * kGuardBytes, sim::kCanary);
    return digest(guards);
  }();
  return sum;
}

}  // namespace mlt::chaos
