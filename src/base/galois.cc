#include "base/galois.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mlt::base::galois {

namespace {

// The products of a factor with all low halves of a byte, and with all high halves: a product of a byte is the sum of
// one of each.
struct Products {
  alignas(16) std::array<std::uint8_t, 16> low{};
  alignas(16) std::array<std::uint8_t, 16> high{};
};

constexpr std::array<Products, 256> make_products() {
  std::array<Products, 256> made{};
  for (unsigned factor = 0; factor < 256; ++factor) {
    for (unsigned half = 0; half < 16; ++half) {
      made[factor].low[half] = multiply(static_cast<std::uint8_t>(factor), static_cast<std::uint8_t>(half));
      made[factor].high[half] = multiply(static_cast<std::uint8_t>(factor), static_cast<std::uint8_t>(half << 4));
    }
  }
  return made;
}

constexpr std::array<Products, 256> kProducts = make_products();

void add_bytewise(std::byte* to, const std::byte* from, std::size_t bytes, const Products& products) {
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto value = std::to_integer<unsigned>(from[i]);
    to[i] ^= static_cast<std::byte>(products.low[value & 0x0FU] ^ products.high[value >> 4]);
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) std::size_t add_by_vector(std::byte* to, const std::byte* from, std::size_t bytes,
                                                          const Products& products) {
  const __m256i low =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(products.low.data())));
  const __m256i high =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(products.high.data())));
  const __m256i mask = _mm256_set1_epi8(0x0F);
  std::size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    const __m256i in = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    auto* const out = reinterpret_cast<__m256i*>(to + at);
    const __m256i from_low = _mm256_shuffle_epi8(low, _mm256_and_si256(in, mask));
    const __m256i from_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(in, 4), mask));
    const __m256i product = _mm256_xor_si256(from_low, from_high);
    _mm256_storeu_si256(out, _mm256_xor_si256(_mm256_loadu_si256(out), product));
  }
  return at;
}

const bool kHasVectors = __builtin_cpu_supports("avx2") != 0;

#elif defined(__aarch64__)

std::size_t add_by_vector(std::byte* to, const std::byte* from, std::size_t bytes, const Products& products) {
  const uint8x16_t low = vld1q_u8(products.low.data());
  const uint8x16_t high = vld1q_u8(products.high.data());
  const uint8x16_t mask = vdupq_n_u8(0x0F);
  std::size_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    const uint8x16_t in = vld1q_u8(reinterpret_cast<const std::uint8_t*>(from + at));
    auto* const out = reinterpret_cast<std::uint8_t*>(to + at);
    const uint8x16_t product = veorq_u8(vqtbl1q_u8(low, vandq_u8(in, mask)), vqtbl1q_u8(high, vshrq_n_u8(in, 4)));
    vst1q_u8(out, veorq_u8(vld1q_u8(out), product));
  }
  return at;
}

constexpr bool kHasVectors = true;

#else

std::size_t add_by_vector(std::byte*, const std::byte*, std::size_t, const Products&) { return 0; }
constexpr bool kHasVectors = false;

#endif

}  // namespace

void multiply_add(std::byte* to, const std::byte* from, std::size_t bytes, std::uint8_t factor) {
  const Products& products = kProducts[factor];
  const std::size_t done = kHasVectors ? add_by_vector(to, from, bytes, products) : 0;
  add_bytewise(to + done, from + done, bytes - done, products);
}

}  // namespace mlt::base::galois
