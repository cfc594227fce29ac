// How many elements of a tensor, or of all tensors that an operation receives, may be missing under a loss bound.
// Receivers, tests and the simulator's oracle share this rule. It makes a bound such as 0.6 exact: 240,000 of 400,000
// elements, although the double nearest to 0.6 is slightly smaller.
#pragma once

#include <cstdint>

namespace mlt::core {

// True if the fraction `missing` of `elements` is within the bound. Both are below 2^53 and thus exact in double
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

// Bytes that may still be missing of several receives of one endpoint together, as those of a collective. Each draws
// what it lacks when it completes. The caller owns it, and keeps it until the last of the receives has completed. Used
// on the endpoint's thread.
class SharedLossBudget {
 public:
  SharedLossBudget() = default;
  // Of `elements` in all receives together.
  SharedLossBudget(std::uint64_t elements, std::uint32_t element_bytes, double bound)
      : left_bytes_(allowed_missing(elements, bound) * element_bytes) {}

  std::uint64_t left_bytes() const { return left_bytes_; }
  // A receive completes without these bytes. Its deadline may leave more missing than the bound allows.
  void draw(std::uint64_t missing_bytes) { left_bytes_ -= missing_bytes < left_bytes_ ? missing_bytes : left_bytes_; }

 private:
  std::uint64_t left_bytes_ = 0;
};

}  // namespace mlt::core
