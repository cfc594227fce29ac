#include "base/time.h"

#include <doctest/doctest.h>

using namespace mlt;

TEST_CASE("after__saturates_at_never") {
  CHECK(base::after(10, 5) == 15);
  CHECK(base::after(base::kNever, 0) == base::kNever);
  CHECK(base::after(base::kNever, 1) == base::kNever);
  CHECK(base::after(1, base::kNever) == base::kNever);
  CHECK(base::after(base::kNever - 3, 3) == base::kNever);
}

TEST_CASE("serialisation_ns__is_bytes_over_rate") {
  CHECK(base::serialisation_ns(0, 1e9) == 0);
  CHECK(base::serialisation_ns(1'500, 1.25e9) == 1'200);
  CHECK(base::serialisation_ns(1'500, 2.5e7) == 60'000);
}
