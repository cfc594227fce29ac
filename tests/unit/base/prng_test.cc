#include "base/prng.h"

#include <doctest/doctest.h>

using namespace mlt;

TEST_CASE("prng__gives_the_published_sequence_of_splitmix64") {
  base::Prng prng(1'234'567);  // the reference implementation's first outputs for this seed
  CHECK(prng.next() == 6'457'827'717'110'365'317ULL);
  CHECK(prng.next() == 3'203'168'211'198'807'973ULL);
  CHECK(prng.next() == 9'817'491'932'198'370'423ULL);
}

TEST_CASE("below__stays_below_and_reaches_both_ends") {
  base::Prng prng(1);
  bool lowest = false;
  bool highest = false;
  for (int i = 0; i < 2'000; ++i) {
    const std::uint64_t n = prng.below(10);
    REQUIRE(n < 10);
    lowest = lowest || n == 0;
    highest = highest || n == 9;
  }
  CHECK(lowest);
  CHECK(highest);
  CHECK(prng.below(1) == 0);
  CHECK(prng.below(~std::uint64_t{0}) < ~std::uint64_t{0});
}

TEST_CASE("chance__follows_its_probability") {
  base::Prng prng(2);
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) {
    hits += prng.chance(0.01) ? 1 : 0;
    CHECK_FALSE(prng.chance(0.0));
    CHECK(prng.chance(1.0));
  }
  CHECK(hits > 850);
  CHECK(hits < 1'150);
}

TEST_CASE("uniform__lies_in_the_half_open_interval") {
  base::Prng prng(3);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double u = prng.uniform();
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
  }
  CHECK(sum / 100'000 == doctest::Approx(0.5).epsilon(0.01));
}
