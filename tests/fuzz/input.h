// What every fuzz target shares: a fuzzer's bytes read as numbers, and a check that ends the process with its place.
//
// A target is a function of bytes (libFuzzer's interface) that ends the process when a property does not hold. The same
// source is linked twice: with libFuzzer (preset fuzz, clang), and with replay.cc, which runs the committed corpus in
// every build. Targets are pure: the same bytes give the same run, so a failing input is the whole bug report.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace mlt::fuzz {

[[noreturn]] inline void fail(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "fuzz: property broken: %s at %s:%d\n", expression, file, line);
  std::abort();
}

// Reads numbers off the front of an input; past its end everything is zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : bytes_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return bytes_.empty(); }
  std::uint8_t u8() { return static_cast<std::uint8_t>(number<1>()); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number<2>()); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number<4>()); }
  std::uint64_t u64() { return number<8>(); }
  // In [0, bound), from one byte; `bound` is 1 to 256.
  std::uint32_t below(std::uint32_t bound) { return u8() % bound; }
  bool flag() { return (u8() & 1U) != 0; }
  // The next `count` bytes, or as many as there are, as a copy of exactly that size (so that a sanitizer sees its end).
  std::vector<std::byte> take(std::size_t count) {
    const std::span<const std::byte> front = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(front.size());
    return {front.begin(), front.end()};
  }
  std::vector<std::byte> rest() { return take(bytes_.size()); }

 private:
  template <std::size_t kBytes>
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < kBytes && !bytes_.empty(); ++i) {
      value |= std::uint64_t{static_cast<std::uint8_t>(bytes_[0])} << (8 * i);
      bytes_ = bytes_.subspan(1);
    }
    return value;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace mlt::fuzz

#define FUZZ_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::mlt::fuzz::fail(#expression, __FILE__, __LINE__))

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
