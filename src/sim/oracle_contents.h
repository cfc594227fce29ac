// Contents of the operations' memory: every byte identifies its operation.
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

// The words of an operation's contents in an epoch, by index: a random number per operation and an odd step per word,
// so that words are distinct within and across operations. A step instead of a hash of each word: this takes most of
// the time of a simulated run, and a step can be vectorised.
class Contents {
 public:
  Contents(std::uint64_t operation, std::uint8_t epoch)
      : first_(base::Prng((operation << 20) ^ (std::uint64_t{epoch} << 60)).next()) {}

  std::uint64_t word(std::uint64_t place) const {
    return (first_ + place * 0x9E3779B97F4A7C15ULL) | 0x0101'0101'0101'0101ULL;  // no zero bytes: a filled gap shows
  }

  void fill(std::span<std::byte> bytes) const {
    const std::size_t words = bytes.size() / 8;
    for (std::size_t i = 0; i < words; ++i) {
      const std::uint64_t held = word(i);
      std::memcpy(bytes.data() + 8 * i, &held, 8);
    }
    const std::uint64_t last = word(words);
    if (bytes.size() % 8 != 0) std::memcpy(bytes.data() + 8 * words, &last, bytes.size() % 8);
  }

  // True if `bytes` equal the contents from the tensor's byte `at` on, a multiple of 8.
  bool hold(std::size_t at, std::span<const std::byte> bytes) const {
    const std::size_t words = bytes.size() / 8;
    std::uint64_t differs = 0;
    for (std::size_t i = 0; i < words; ++i) {
      std::uint64_t held = 0;
      std::memcpy(&held, bytes.data() + 8 * i, 8);
      differs |= held ^ word(at / 8 + i);
    }
    const std::uint64_t last = word(at / 8 + words);
    return differs == 0 &&
           (bytes.size() % 8 == 0 || std::memcmp(bytes.data() + 8 * words, &last, bytes.size() % 8) == 0);
  }

 private:
  std::uint64_t first_;
};

// Fills an operation's memory in an epoch: of a send its data, of a receive the content before the post.
inline void fill_contents(std::uint64_t operation, std::uint8_t epoch, std::span<std::byte> bytes) {
  Contents(operation, epoch).fill(bytes);
}

// Copies a part of it, from the tensor's byte `at` on, which need not be a multiple of 8.
inline void copy_contents(std::uint64_t operation, std::size_t at, std::span<std::byte> bytes) {
  const Contents contents(operation, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint64_t held = contents.word((at + i) / 8);
    bytes[i] = static_cast<std::byte>(held >> 8 * ((at + i) % 8));
  }
}

// The first offset in [at, at + bytes.size()) of the tensor that differs; its end if none does. `at` is a multiple of
// 8.
inline std::size_t first_difference(std::uint64_t operation, std::uint8_t epoch, std::size_t at,
                                    std::span<const std::byte> bytes) {
  const Contents contents(operation, epoch);
  if (contents.hold(at, bytes)) return at + bytes.size();
  std::size_t i = 0;
  while (contents.hold(at + i, bytes.subspan(i, std::min<std::size_t>(8, bytes.size() - i)))) i += 8;
  return at + i;
}

inline const char* kind_name(core::CompletionKind kind) {
  return kind == core::CompletionKind::kSend ? "send" : "receive";
}

}  // namespace mlt::sim
