// A send that passes on a receive: each of its segments is fresh once all of its bytes have arrived, whatever the
// segments in which they arrive.
#include "collective/onward.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "collective/checksums.h"

using mlt::collective::Onward;

TEST_CASE("add__a_segment_is_fresh_once_its_last_byte_has_arrived") {
  Onward onward;
  const std::vector<std::byte> data(250);
  onward.begin(3, data, 100, false);
  CHECK(onward.send_step == 3);
  CHECK(onward.feed.fresh.size() == 3);
  onward.add(0, 99);
  CHECK(onward.feed.fresh_count == 0);
  onward.add(99, 2);
  CHECK(onward.feed.fresh.test(0));
  CHECK(onward.feed.fresh_count == 1);
  onward.add(101, 149);
  CHECK(onward.feed.fresh_count == 3);
}

TEST_CASE("add__in_any_order_and_grid_every_segment_becomes_fresh_once") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const std::uint64_t bytes = 1 + prng.below(5'000), arriving = 1 + prng.below(700);
    const auto segment = static_cast<std::uint32_t>(1 + prng.below(700));
    Onward onward;
    const std::vector<std::byte> data(bytes);
    onward.begin(1, data, segment, false);
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t at = 0; at < bytes; at += arriving) offsets.push_back(at);
    for (std::size_t i = offsets.size(); i > 1; --i) std::swap(offsets[i - 1], offsets[prng.below(i)]);
    std::vector<bool> has(bytes);
    for (const std::uint64_t at : offsets) {
      const std::uint64_t length = std::min(arriving, bytes - at);
      onward.add(at, length);
      for (std::uint64_t i = at; i < at + length; ++i) has[i] = true;
      std::uint32_t fresh = 0;
      for (std::uint32_t i = 0; i * std::uint64_t{segment} < bytes; ++i) {
        bool whole = true;
        for (std::uint64_t k = i * std::uint64_t{segment}; k < std::min(bytes, (i + std::uint64_t{1}) * segment); ++k) {
          whole = whole && has[k];
        }
        CHECK(onward.feed.fresh.test(i) == whole);
        fresh += whole ? 1U : 0U;
      }
      CHECK(onward.feed.fresh_count == fresh);
    }
  }
}

// What has left may be overwritten before the last segment is there: in a ring by the result.
TEST_CASE("fed_checksum__is_of_each_segment_as_it_was_fed") {
  std::vector<std::byte> data(250);
  mlt::base::Prng prng(4);
  for (std::byte& byte : data) byte = static_cast<std::byte>(prng.below(256));
  const std::uint64_t expected = mlt::collective::transfer_checksum(data, 100);
  Onward onward;
  onward.begin(2, data, 100, true);
  onward.add(0, 130);
  std::ranges::fill(std::span(data).first(100), std::byte{7});
  CHECK_FALSE(onward.fed_checksum(2).has_value());
  onward.add(200, 50);
  onward.add(130, 70);
  CHECK(onward.fed_checksum(2) == expected);
  CHECK_FALSE(onward.fed_checksum(3).has_value());
  onward.begin(9, data, 100, true);
  CHECK_FALSE(onward.fed_checksum(9).has_value());
}
