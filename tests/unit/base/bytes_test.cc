#include "base/bytes.h"

#include <doctest/doctest.h>

#include <array>

using namespace mlt;

namespace {

constexpr std::uint64_t round_trip(std::uint64_t value) {
  std::array<std::byte, 9> bytes{};
  base::store_le64(bytes.data() + 1, value);
  return base::load_le64(bytes.data() + 1);
}
static_assert(round_trip(0x0123456789ABCDEFULL) == 0x0123456789ABCDEFULL, "works in constant expressions");

}  // namespace

TEST_CASE("store_le__lowest_byte_first") {
  std::array<std::byte, 8> bytes{};
  base::store_le16(bytes.data(), 0x0102);
  CHECK(bytes[0] == std::byte{0x02});
  CHECK(bytes[1] == std::byte{0x01});
  CHECK(bytes[2] == std::byte{0});
  base::store_le32(bytes.data(), 0x01020304);
  CHECK(bytes[0] == std::byte{0x04});
  CHECK(bytes[3] == std::byte{0x01});
  CHECK(bytes[4] == std::byte{0});
  base::store_le64(bytes.data(), 0x0102030405060708ULL);
  CHECK(bytes[0] == std::byte{0x08});
  CHECK(bytes[7] == std::byte{0x01});
}

TEST_CASE("load_le__reads_every_byte_at_any_alignment") {
  std::array<std::byte, 16> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(0xF0 + i);
  for (std::size_t at = 0; at < 8; ++at) {
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < 8; ++i) expected |= std::uint64_t{0xF0 + at + i} << (8 * i);
    CHECK(base::load_le64(bytes.data() + at) == expected);
    CHECK(base::load_le32(bytes.data() + at) == static_cast<std::uint32_t>(expected));
    CHECK(base::load_le16(bytes.data() + at) == static_cast<std::uint16_t>(expected));
  }
}
