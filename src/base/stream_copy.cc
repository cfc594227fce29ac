#include "base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlt::base {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLineBytes = 64;

// Whole cache lines only: a partly written line is flushed in parts, which is slower than an ordinary store.
__attribute__((target("avx2"))) void stream_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + kLineBytes / 2));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + kLineBytes / 2), high);
  }
}

const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;

}  // namespace

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (!kHasAvx2) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t to_line = (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes;
  const std::size_t head = std::min(to_line, bytes);
  const std::size_t lines = (bytes - head) / kLineBytes;
  const std::size_t tail_at = head + lines * kLineBytes;
  std::memcpy(to, from, head);
  stream_lines(to + head, from + head, lines);
  std::memcpy(to + tail_at, from + tail_at, bytes - tail_at);
}

void fence_streamed() { _mm_sfence(); }

#else

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void fence_streamed() {}

#endif

}  // namespace mlt::base
