#include "sim/clock.h"

#include <doctest/doctest.h>

#include <initializer_list>

using namespace mlt;

TEST_CASE("clock__finds_the_first_virtual_time_that_shows_a_local_one") {
  for (const std::int64_t drift : {-100'000, -1, 0, 3, 100'000}) {
    for (const base::DurationNs offset : {-5LL, 0LL, 9'999'999'999LL}) {
      const sim::Clock clock{.offset_ns = offset, .drift_ppb = drift};
      for (base::TimeNs t = base::kSecond; t < 40 * base::kSecond; t += 333'333'337) {
        const base::TimeNs local = clock.local(t);
        const base::TimeNs back = clock.virtual_time(local);
        CHECK(clock.local(back) >= local);
        CHECK(clock.local(back - 1) < local);
        CHECK(back <= t);
      }
    }
  }
}

TEST_CASE("clock__drifts_by_parts_per_billion_and_leaves_never_alone") {
  const sim::Clock fast{.offset_ns = 0, .drift_ppb = 100'000};
  CHECK(fast.local(10 * base::kSecond) == 10 * base::kSecond + base::kMillisecond);
  CHECK(fast.local(base::kNever) == base::kNever);
  CHECK(fast.virtual_time(base::kNever) == base::kNever);
}
