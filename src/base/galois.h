// Arithmetic of GF(2^8) for erasure codes: bytes as polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1.
//
// Own code, because no library fits: ISA-L needs an assembler that pip does not bring, and the others that are small
// enough to be built with the wheel (cm256, Jerasure) have not been kept for years.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mlt::base::galois {

namespace detail {

struct Logarithms {
  std::array<std::uint8_t, 512> power{};  // of 2; twice, so that a sum of two logarithms needs no modulo
  std::array<std::uint8_t, 256> logarithm{};
};

consteval Logarithms make_logarithms() {
  Logarithms made;
  unsigned value = 1;
  for (unsigned i = 0; i < 255; ++i) {
    made.power[i] = made.power[i + 255] = static_cast<std::uint8_t>(value);
    made.logarithm[value] = static_cast<std::uint8_t>(i);
    value <<= 1;
    if (value > 0xFF) value ^= 0x11D;
  }
  return made;
}

inline constexpr Logarithms kLogarithms = make_logarithms();

}  // namespace detail

constexpr std::uint8_t multiply(std::uint8_t a, std::uint8_t b) {
  if (a == 0 || b == 0) return 0;
  return detail::kLogarithms.power[std::size_t{detail::kLogarithms.logarithm[a]} + detail::kLogarithms.logarithm[b]];
}

// `a` must not be 0.
constexpr std::uint8_t inverse(std::uint8_t a) {
  return detail::kLogarithms.power[255U - detail::kLogarithms.logarithm[a]];
}

// Adds `factor` times each byte of `from` to the byte at the same place of `to`. The two may be the same memory, but
// must not overlap in another way.
void multiply_add(std::byte* to, const std::byte* from, std::size_t bytes, std::uint8_t factor);

// Multiplies each byte of `data` by `factor`.
inline void scale(std::byte* data, std::size_t bytes, std::uint8_t factor) {
  multiply_add(data, data, bytes, static_cast<std::uint8_t>(factor ^ 1U));
}

}  // namespace mlt::base::galois
