#include "base/crc32c.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/prng.h"

using namespace mlt;

TEST_CASE("crc32c__is_that_of_RFC_3720") {
  const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  for (const auto crc : {&base::crc32c, &base::crc32c_by_table}) {
    CHECK(crc({}) == 0);
    CHECK(crc(bytes_of("123456789")) == 0xE3069283);
    CHECK(crc(bytes_of(std::string(32, '\0'))) == 0x8A9136AA);
    CHECK(crc(bytes_of(std::string(32, '\xFF'))) == 0x62A8AB43);
  }
}

TEST_CASE("crc32c__by_instruction_is_that_by_table_at_any_alignment_and_length") {
  base::Prng prng(3);
  std::vector<std::byte> bytes(3'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.below(256));
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t at = prng.below(64), length = prng.below(2'900);
    const auto part = std::span(bytes).subspan(at, length);
    CHECK(base::crc32c(part) == base::crc32c_by_table(part));
  }
}
