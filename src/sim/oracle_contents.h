// What the oracle's operations keep in memory, so that every byte says whose it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/prng.h"
#include "core/event.h"

namespace mlt::sim {

inline constexpr std::size_t kCanaryBytes = 32;
inline constexpr std::byte kCanary{0xC7};

inline std::uint64_t content_word(std::uint64_t operation, std::uint8_t epoch, std::uint64_t word) {
  base::Prng mix((operation << 20) ^ (std::uint64_t{epoch} << 60) ^ word);
  return mix.next() | 0x0101'0101'0101'0101ULL;  // no byte is zero, so that a zero-filled gap shows
}

// What an operation's memory holds in an epoch: for a send what it sends, for a receive what was there before.
inline void fill_contents(std::uint64_t operation, std::uint8_t epoch, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = content_word(operation, epoch, at / 8);
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}

// The first place in [at, at + bytes.size()) of the tensor that differs; its end if none does. `at` is a multiple of 8.
inline std::size_t first_difference(std::uint64_t operation, std::uint8_t epoch, std::size_t at,
                                    std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = content_word(operation, epoch, (at + i) / 8);
    if (std::memcmp(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i)) != 0) return at + i;
  }
  return at + bytes.size();
}

inline const char* kind_name(core::CompletionKind kind) {
  return kind == core::CompletionKind::kSend ? "send" : "receive";
}

}  // namespace mlt::sim
