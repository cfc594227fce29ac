// A send that passes on a receive: each of its segments is fresh once all of its bytes have arrived, whatever the
// segments in which they arrive.
#include "collective/onward.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

using mlt::collective::Onward;

TEST_CASE("add__a_segment_is_fresh_once_its_last_byte_has_arrived") {
  Onward onward;
  onward.begin(3, 250, 100);
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
    onward.begin(1, bytes, segment);
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
