// How the tensors of a group become one: eight reductions over the element types, and a kernel for each pair that is
// defined.
//
// Integers and bool are exact: sums and products wrap modulo 2^bits, and a sum of bool is "or", its product "and". The
// 16-bit floating-point types are computed in float32 and rounded to the nearest even. Min and max keep a NaN.
// Undefined: the mean of integers and bool, which is not exact, and bitwise reductions of floating point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/event.h"

namespace mlt::collective {

enum class Reduction : std::uint8_t {
  kSum = 0,
  kMean = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kAnd = 5,
  kOr = 6,
  kXor = 7,
};
inline constexpr std::uint8_t kReductionCount = 8;

constexpr const char* reduction_name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kProduct:
      return "product";
    case Reduction::kAnd:
      return "bitwise and";
    case Reduction::kOr:
      return "bitwise or";
    case Reduction::kXor:
      return "bitwise xor";
  }
  return "unknown reduction";
}

// Without a missing term, only these are what they were.
constexpr bool may_lose_terms(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kMean;
}

// Loops over elements at any alignment. `ranks` or `terms` is the divisor of a mean; others ignore it.
struct Kernel {
  // into[i] = into[i] op from[i]
  void (*combine)(std::byte* into, const std::byte* from, std::size_t elements) = nullptr;
  // The same with the last term: a mean's sum is multiplied by 1 / ranks before it is rounded.
  void (*combine_last)(std::byte* into, const std::byte* from, std::size_t elements, std::uint32_t ranks) = nullptr;
  // values[i] *= factor / divisor. Null except for a mean.
  void (*scale)(std::byte* values, std::size_t elements, std::uint32_t factor, std::uint32_t divisor) = nullptr;
  // into[i] = all of `from` in their order, rounded once; `into` may be one of them. `terms`: how many are not missing.
  void (*combine_all)(std::byte* into, std::span<const std::byte* const> from, std::size_t elements,
                      std::uint32_t terms) = nullptr;
};

// Null where it is undefined, or one of the arguments is no enumerator.
//
// PROTOCOL 22.2.1: An all-reduce MUST replace the tensor of every member by the reduction of all. Sums and products of
//     integers wrap; a sum of bool is "or" and its product "and"; a min or max with a NaN is a NaN; float16 and
//     bfloat16 are computed in float32 and rounded to the nearest even.
const Kernel* kernel_of(wire::ElementType element, Reduction reduction);

// Index of the first NaN or infinity; none in integers and bool. The values may have any alignment.
std::optional<std::size_t> first_not_finite(std::span<const std::byte> values, wire::ElementType element);
// Of floating point, in float64; 0 of integers and bool. The values may have any alignment.
double sum_of_squares(std::span<const std::byte> values, wire::ElementType element);

}  // namespace mlt::collective
