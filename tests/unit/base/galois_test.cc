#include "base/galois.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using base::galois::inverse;
using base::galois::multiply;

namespace {

// Bit by bit, from the definition of the field.
std::uint8_t multiply_by_hand(unsigned a, unsigned b) {
  unsigned product = 0;
  for (int bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1U) != 0) product ^= a << bit;
  }
  for (int bit = 14; bit >= 8; --bit) {
    if ((product >> bit & 1U) != 0) product ^= 0x11DU << (bit - 8);
  }
  return static_cast<std::uint8_t>(product);
}

std::vector<std::byte> random_bytes(base::Prng& prng, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.below(256));
  return bytes;
}

}  // namespace

TEST_CASE("galois__multiplies_as_the_field_is_defined") {
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) {
      REQUIRE(multiply(static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b)) == multiply_by_hand(a, b));
    }
    if (a > 0) CHECK(multiply(static_cast<std::uint8_t>(a), inverse(static_cast<std::uint8_t>(a))) == 1);
  }
}

TEST_CASE("multiply_add__does_every_byte_at_any_length_and_alignment") {
  base::Prng prng(11);
  const std::vector<std::byte> from = random_bytes(prng, 600);
  for (unsigned factor = 0; factor < 256; ++factor) {
    const std::size_t bytes = prng.below(300);
    const std::size_t at = prng.below(100);
    const std::size_t source = prng.below(100);
    std::vector<std::byte> to = random_bytes(prng, 600);
    std::vector<std::byte> expected = to;
    for (std::size_t i = 0; i < bytes; ++i) {
      expected[at + i] ^= std::byte{multiply_by_hand(factor, std::to_integer<unsigned>(from[source + i]))};
    }
    base::galois::multiply_add(to.data() + at, from.data() + source, bytes, static_cast<std::uint8_t>(factor));
    REQUIRE(to == expected);
  }
}

TEST_CASE("scale__multiplies_in_place") {
  base::Prng prng(12);
  for (unsigned factor = 0; factor < 256; ++factor) {
    std::vector<std::byte> data = random_bytes(prng, 77);
    std::vector<std::byte> expected = data;
    for (std::byte& byte : expected) byte = std::byte{multiply_by_hand(factor, std::to_integer<unsigned>(byte))};
    base::galois::scale(data.data(), data.size(), static_cast<std::uint8_t>(factor));
    REQUIRE(data == expected);
  }
}
