// How many elements of a tensor may be missing under a loss bound. Receivers, tests and the simulator's oracle share
// this rule. It makes a bound such as 0.6 exact: 240,000 of 400,000 elements, although the double nearest to 0.6 is
// slightly smaller.
#pragma once

#include <cstdint>

namespace mlt::core {

// True if the fraction `missing` of `elements` is within the bound. Both are below 2^32 and thus exact in double
// precision, so the quotient is the double nearest to the true fraction.
constexpr bool is_within_bound(std::uint64_t missing, std::uint64_t elements, double bound) {
  return elements == 0 ? missing == 0 : static_cast<double>(missing) / static_cast<double>(elements) <= bound;
}

// Max elements that may be missing; `bound` is in [0, 1).
constexpr std::uint64_t allowed_missing(std::uint64_t elements, double bound) {
  // The product is off by at most one in either direction.
  auto max_missing = static_cast<std::uint64_t>(bound * static_cast<double>(elements));
  while (max_missing > 0 && !is_within_bound(max_missing, elements, bound)) --max_missing;
  while (max_missing < elements && is_within_bound(max_missing + 1, elements, bound)) ++max_missing;
  return max_missing;
}

}  // namespace mlt::core
