// How many elements of a tensor may be missing under a loss bound. One rule for receivers, tests and the simulator's
// oracle, so that a bound such as 0.6 means what its reader expects: of 400,000 elements 240,000, although the double
// nearest to 0.6 is a little less.
#pragma once

#include <cstdint>

namespace mlt::core {

// True if `missing` of `elements` is no larger a fraction than the bound. Both are below 2^32, so that they are exact
// in double precision and the quotient is the double nearest to the true fraction.
constexpr bool is_within_bound(std::uint64_t missing, std::uint64_t elements, double bound) {
  return elements == 0 ? missing == 0 : static_cast<double>(missing) / static_cast<double>(elements) <= bound;
}

// The most elements that may be missing; `bound` is in [0, 1).
constexpr std::uint64_t allowed_missing(std::uint64_t elements, double bound) {
  // The product is off by one at most, either way.
  auto most = static_cast<std::uint64_t>(bound * static_cast<double>(elements));
  while (most > 0 && !is_within_bound(most, elements, bound)) --most;
  while (most < elements && is_within_bound(most + 1, elements, bound)) ++most;
  return most;
}

}  // namespace mlt::core
