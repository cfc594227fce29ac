#include "base/stream_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

using namespace mlt;

TEST_CASE("stream_copy__copies_exactly_the_bytes_asked_for_at_any_alignment") {
  std::vector<std::byte> from(4'096), to(4'096), expected(4'096);
  base::Prng prng(7);
  for (std::byte& byte : from) byte = static_cast<std::byte>(prng.below(256));
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t bytes = prng.below(2'000);
    const std::size_t at = prng.below(2'000);
    const std::size_t source = prng.below(2'000);
    std::fill(to.begin(), to.end(), std::byte{0xEE});
    expected = to;
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(at));
    base::stream_copy(to.data() + at, from.data() + source, bytes);
    base::fence_streamed();
    REQUIRE(to == expected);
  }
}

TEST_CASE("stream_copy__of_nothing_touches_nothing") {
  std::byte untouched{0x5A};
  base::stream_copy(&untouched, &untouched, 0);
  CHECK(untouched == std::byte{0x5A});
}
