#include "core/loss_bound.h"

#include <doctest/doctest.h>

#include "base/prng.h"

namespace {

using mlt::core::allowed_missing;
using mlt::core::is_within_bound;

TEST_CASE("allowed_missing__round_bounds_are_exact") {
  CHECK(allowed_missing(400'000, 0.6) == 240'000);
  CHECK(allowed_missing(100, 0.29) == 29);  // the product is 28.999999999999996
  CHECK(allowed_missing(1'000, 0.001) == 1);
  CHECK(allowed_missing(999, 0.001) == 0);
  CHECK(allowed_missing(3, 0.1 + 0.2) == 0);
  CHECK(allowed_missing(10, 0.1 + 0.2) == 3);
  CHECK(allowed_missing(10, 0.0) == 0);
  CHECK(allowed_missing(0, 0.5) == 0);
  CHECK(is_within_bound(0, 0, 0.5));
  CHECK_FALSE(is_within_bound(1, 0, 0.5));
}

TEST_CASE("allowed_missing__is_the_largest_within_the_bound") {
  mlt::base::Prng prng(7);
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t elements = 1 + prng.below(prng.chance(0.5) ? 1'000 : 0xFFFF'FFFE);
    double bound = prng.uniform();
    if (prng.chance(0.5)) bound = static_cast<double>(prng.below(1'000)) / 1'000;
    const std::uint64_t allowed = allowed_missing(elements, bound);
    CAPTURE(elements);
    CAPTURE(bound);
    REQUIRE(allowed < elements);
    REQUIRE(is_within_bound(allowed, elements, bound));
    REQUIRE_FALSE(is_within_bound(allowed + 1, elements, bound));
  }
}

}  // namespace
