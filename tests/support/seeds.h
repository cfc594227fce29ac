// How many of its seeds a drawn test takes: all of them, and under a sanitizer one of five: that needs each path of the
// code once, and takes ten times as long. `make night` sets MLT_TEST_ALL_SEEDS, which takes all there too.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace mlt::test {

// To add to a seed for the next one; a factor of the steps of a sweep. What a test counts over its seeds falls alike. 5
// divides no period of what tests choose by the seed (2, 3, 4, 6).
inline std::uint64_t seed_stride() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static const std::uint64_t stride = std::getenv("MLT_TEST_ALL_SEEDS") == nullptr ? 5 : 1;
  return stride;
#else
  return 1;
#endif
}

}  // namespace mlt::test
