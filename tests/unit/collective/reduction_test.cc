// Every kernel against a reference that computes one element at a time, at any alignment.
#include "collective/reduction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/prng.h"

using namespace mlt::collective;
using mlt::base::Prng;
using mlt::wire::ElementType;

namespace {

constexpr Reduction kAll[] = {Reduction::kSum,     Reduction::kMean, Reduction::kMin, Reduction::kMax,
                              Reduction::kProduct, Reduction::kAnd,  Reduction::kOr,  Reduction::kXor};
constexpr std::uint32_t kRanks = 3;

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(prng.below(256));
  return made;
}

template <typename T>
T at(const std::byte* bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof value);
  return value;
}

// Of integers, by arithmetic modulo 2^64.
template <typename T>
T reference(Reduction reduction, T a, T b) {
  const auto wide_a = static_cast<std::uint64_t>(a), wide_b = static_cast<std::uint64_t>(b);
  switch (reduction) {
    case Reduction::kSum:
      return static_cast<T>(wide_a + wide_b);
    case Reduction::kProduct:
      return static_cast<T>(wide_a * wide_b);
    case Reduction::kMin:
      return std::min(a, b);
    case Reduction::kMax:
      return std::max(a, b);
    case Reduction::kAnd:
      return static_cast<T>(wide_a & wide_b);
    case Reduction::kOr:
      return static_cast<T>(wide_a | wide_b);
    case Reduction::kXor:
      return static_cast<T>(wide_a ^ wide_b);
    case Reduction::kMean:
      break;
  }
  return a;
}

template <typename T>
void check_integers(ElementType element) {
  for (const Reduction reduction : kAll) {
    CAPTURE(std::string(reduction_name(reduction)));
    const Kernel* const kernel = kernel_of(element, reduction);
    REQUIRE((kernel == nullptr) == (reduction == Reduction::kMean));
    if (kernel == nullptr) continue;
    CHECK_FALSE(static_cast<bool>(kernel->scale));
    for (const std::size_t n : {0U, 1U, 7U, 600U}) {
      for (const std::size_t shift : {0U, 1U}) {
        const auto a = random_bytes(n * sizeof(T), n), b = random_bytes(n * sizeof(T) + shift, n + 1);
        auto pair = a, last = a, all = a;
        kernel->combine(pair.data(), b.data() + shift, n);
        kernel->combine_last(last.data(), b.data() + shift, n, kRanks);
        const std::array<const std::byte*, 3> terms = {all.data(), b.data() + shift, a.data()};
        kernel->combine_all(all.data(), terms, n, kRanks);
        CHECK(pair == last);
        for (std::size_t i = 0; i < n; ++i) {
          const T x = at<T>(a.data(), i), y = at<T>(b.data() + shift, i);
          const T expected = reference(reduction, x, y);
          REQUIRE(at<T>(pair.data(), i) == expected);
          REQUIRE(at<T>(all.data(), i) == reference(reduction, expected, x));
        }
      }
    }
  }
}

template <typename T>
T reference_of_floats(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::kProduct:
      return a * b;
    case Reduction::kMin:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : std::min(a, b);
    case Reduction::kMax:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : std::max(a, b);
    default:
      return a + b;
  }
}

// float16 and bfloat16, one value at a time, by arithmetic on double.
double widen(ElementType element, std::uint16_t bits) {
  if (element == ElementType::kBfloat16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 31, fraction = bits & 1'023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1'024 + fraction, exponent - 25));
}

// The nearest of all finite values, the even one of two; infinity from half a step beyond the largest on.
std::uint16_t narrow(ElementType element, double value) {
  if (std::isnan(value)) return 0x7FFF;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  std::uint16_t low = 0, high = element == ElementType::kFloat16 ? 0x7C00 : 0x7F80;
  // As if the exponents continued.
  const auto value_of = [&](std::uint16_t bits) {
    if (bits == 0x7C00 && element == ElementType::kFloat16) return 65'536.0;
    if (bits == 0x7F80 && element == ElementType::kBfloat16) return std::ldexp(1.0, 128);
    return widen(element, bits);
  };
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low), above = value_of(high) - magnitude;
  const bool is_high = above < below || (above == below && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (is_high ? high : low));
}

bool is_same(ElementType element, std::uint16_t found, std::uint16_t expected) {
  if (std::isnan(widen(element, expected))) return std::isnan(widen(element, found));
  return found == expected;
}

template <typename T>
bool is_same(T found, T expected) {
  return std::isnan(expected) ? std::isnan(found) : std::memcmp(&found, &expected, sizeof found) == 0;
}

// Null for the bitwise reductions, which floating point does not have.
const Kernel* kernel_of_floats(ElementType element, Reduction reduction) {
  const Kernel* const kernel = kernel_of(element, reduction);
  REQUIRE((kernel == nullptr) == (reduction >= Reduction::kAnd));
  return kernel;
}

template <typename T>
void check_floats(ElementType element) {
  constexpr std::size_t kCount = 2'000;
  const auto a = random_bytes(kCount * sizeof(T), 1), b = random_bytes(kCount * sizeof(T) + 1, 2);
  for (const Reduction reduction : kAll) {
    CAPTURE(std::string(reduction_name(reduction)));
    const Kernel* const kernel = kernel_of_floats(element, reduction);
    if (kernel == nullptr) continue;
    const bool is_mean = reduction == Reduction::kMean;
    REQUIRE(static_cast<bool>(kernel->scale) == is_mean);
    auto pair = a, last = a, all = a, scaled = a;
    kernel->combine(pair.data(), b.data() + 1, kCount);
    kernel->combine_last(last.data(), b.data() + 1, kCount, kRanks);
    const std::array<const std::byte*, 3> terms = {all.data(), b.data() + 1, a.data()};
    kernel->combine_all(all.data(), terms, kCount, kRanks);
    if (is_mean) kernel->scale(scaled.data(), kCount, 1, kRanks);
    const T share = is_mean ? T{1} / T{kRanks} : T{1};
    for (std::size_t i = 0; i < kCount; ++i) {
      const T x = at<T>(a.data(), i), y = at<T>(b.data() + 1, i);
      const T expected = reference_of_floats(reduction, x, y);
      REQUIRE(is_same(at<T>(pair.data(), i), expected));
      REQUIRE(is_same(at<T>(last.data(), i), is_mean ? expected * share : expected));
      const T three = reference_of_floats(reduction, expected, x);
      REQUIRE(is_same(at<T>(all.data(), i), is_mean ? three * share : three));
      if (is_mean) REQUIRE(is_same(at<T>(scaled.data(), i), x * share));
    }
  }
}

void check_halves(ElementType element) {
  // All values, and each with another that is near enough to matter.
  constexpr std::size_t kCount = 65'536;
  std::vector<std::uint16_t> a(kCount), b(kCount);
  Prng prng(7);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<std::uint16_t>(i);
    b[i] = static_cast<std::uint16_t>((i ^ prng.below(4'096)) ^ (prng.chance(0.5) ? 0x8000U : 0U));
  }
  const auto* const right = reinterpret_cast<const std::byte*>(b.data());
  for (const Reduction reduction : kAll) {
    CAPTURE(std::string(reduction_name(reduction)));
    const Kernel* const kernel = kernel_of_floats(element, reduction);
    if (kernel == nullptr) continue;
    const bool is_mean = reduction == Reduction::kMean;
    auto pair = a, last = a, all = a;
    const auto bytes = [](std::vector<std::uint16_t>& of) { return reinterpret_cast<std::byte*>(of.data()); };
    kernel->combine(bytes(pair), right, kCount);
    kernel->combine_last(bytes(last), right, kCount, kRanks);
    const std::array<const std::byte*, 3> terms = {bytes(all), right, bytes(all)};
    kernel->combine_all(bytes(all), terms, kCount, kRanks);
    for (std::size_t i = 0; i < kCount; ++i) {
      CAPTURE(i);
      const auto x = static_cast<float>(widen(element, a[i])), y = static_cast<float>(widen(element, b[i]));
      const float two = reference_of_floats(reduction, x, y), three = reference_of_floats(reduction, two, x);
      REQUIRE(is_same(element, pair[i], narrow(element, two)));
      REQUIRE(is_same(element, last[i], narrow(element, is_mean ? two * (1.0F / 3.0F) : two)));
      REQUIRE(is_same(element, all[i], narrow(element, is_mean ? three * (1.0F / 3.0F) : three)));
    }
  }
}

}  // namespace

TEST_CASE("kernel_of__integers_are_exact_and_have_no_mean") {
  check_integers<std::uint8_t>(ElementType::kUint8);
  check_integers<std::int8_t>(ElementType::kInt8);
  check_integers<std::uint16_t>(ElementType::kUint16);
  check_integers<std::int16_t>(ElementType::kInt16);
  check_integers<std::uint32_t>(ElementType::kUint32);
  check_integers<std::int32_t>(ElementType::kInt32);
  check_integers<std::uint64_t>(ElementType::kUint64);
  check_integers<std::int64_t>(ElementType::kInt64);
}

TEST_CASE("kernel_of__floats_are_computed_in_their_type_in_the_order_of_the_terms") {
  check_floats<float>(ElementType::kFloat32);
  check_floats<double>(ElementType::kFloat64);
}

TEST_CASE("kernel_of__halves_are_computed_in_float32_and_rounded_to_the_nearest_even_once") {
  check_halves(ElementType::kFloat16);
  check_halves(ElementType::kBfloat16);
}

// 2048 + 1 rounds to 2048 in float16, 2048 + 2 does not.
TEST_CASE("combine_all__keeps_what_rounding_at_each_term_would_lose") {
  const std::uint16_t large = 0x6800, one = 0x3C00;
  std::uint16_t result = 0;
  const auto bytes = [](const std::uint16_t& of) { return reinterpret_cast<const std::byte*>(&of); };
  const std::array<const std::byte*, 3> terms = {bytes(large), bytes(one), bytes(one)};
  const Kernel* const kernel = kernel_of(ElementType::kFloat16, Reduction::kSum);
  kernel->combine_all(reinterpret_cast<std::byte*>(&result), terms, 1, 3);
  CHECK(widen(ElementType::kFloat16, result) == 2'050);
  result = large;
  for (int i = 0; i < 2; ++i) kernel->combine(reinterpret_cast<std::byte*>(&result), bytes(one), 1);
  CHECK(widen(ElementType::kFloat16, result) == 2'048);
}

TEST_CASE("kernel_of__bool_is_logic_whatever_the_bytes") {
  const std::vector<std::uint8_t> a{0, 0, 1, 1, 255, 2}, b{0, 1, 0, 1, 0, 4};
  const auto of = [&](Reduction reduction) {
    auto result = a;
    const Kernel* const kernel = kernel_of(ElementType::kBool, reduction);
    REQUIRE(kernel != nullptr);
    kernel->combine(reinterpret_cast<std::byte*>(result.data()), reinterpret_cast<const std::byte*>(b.data()), 6);
    return result;
  };
  const std::vector<std::uint8_t> both{0, 0, 0, 1, 0, 1}, any{0, 1, 1, 1, 1, 1}, one{0, 1, 1, 0, 1, 0};
  for (const Reduction reduction : {Reduction::kMin, Reduction::kProduct, Reduction::kAnd})
    CHECK(of(reduction) == both);
  for (const Reduction reduction : {Reduction::kMax, Reduction::kSum, Reduction::kOr}) CHECK(of(reduction) == any);
  CHECK(of(Reduction::kXor) == one);
  CHECK(kernel_of(ElementType::kBool, Reduction::kMean) == nullptr);
}

TEST_CASE("kernel_of__has_none_for_what_is_no_enumerator") {
  CHECK(kernel_of(static_cast<ElementType>(mlt::wire::kElementTypeCount), Reduction::kSum) == nullptr);
  CHECK(kernel_of(ElementType::kInt8, static_cast<Reduction>(kReductionCount)) == nullptr);
}

TEST_CASE("first_not_finite__finds_the_first_nan_or_infinity_at_any_place_and_alignment") {
  const auto check = [](ElementType element, auto largest, auto infinity, auto nan) {
    using Bits = decltype(largest);
    constexpr std::size_t kElements = 10'000;  // several blocks, the last one in part
    std::vector<std::byte> bytes(kElements * sizeof(Bits) + 1);
    const auto values = std::span(bytes).subspan(1);
    const auto set = [&](std::size_t i, Bits value) { std::memcpy(&values[i * sizeof(Bits)], &value, sizeof value); };
    for (std::size_t i = 0; i < kElements; ++i) set(i, largest);
    CHECK_FALSE(first_not_finite(values, element).has_value());
    CHECK_FALSE(first_not_finite(values.first(0), element).has_value());
    const auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    for (const std::size_t at : {9'999UL, 4'096UL, 4'095UL, 0UL}) {  // each before the others
      for (const Bits value : {infinity, static_cast<Bits>(infinity | sign), nan, static_cast<Bits>(nan | sign)}) {
        set(at, value);
        CHECK(first_not_finite(values, element) == at);
      }
    }
  };
  check(ElementType::kFloat64, std::uint64_t{0x7FEF'FFFF'FFFF'FFFF}, std::uint64_t{0x7FF0'0000'0000'0000},
        std::uint64_t{0x7FF8'0000'0000'0000});
  check(ElementType::kFloat32, std::uint32_t{0x7F7F'FFFF}, std::uint32_t{0x7F80'0000}, std::uint32_t{0x7F80'0001});
  check(ElementType::kFloat16, std::uint16_t{0x7BFF}, std::uint16_t{0x7C00}, std::uint16_t{0x7E00});
  check(ElementType::kBfloat16, std::uint16_t{0x7F7F}, std::uint16_t{0x7F80}, std::uint16_t{0x7FC0});
  const std::vector<std::byte> ones(64, std::byte{0xFF});
  for (const ElementType element : {ElementType::kInt32, ElementType::kUint64, ElementType::kUint8}) {
    CHECK_FALSE(first_not_finite(ones, element).has_value());
  }
}

TEST_CASE("sum_of_squares__is_in_float64_of_every_floating_point_type_at_any_alignment") {
  const auto check = [](ElementType element, auto three, auto infinity, auto nan) {
    using Bits = decltype(three);
    for (const std::size_t elements : {0UL, 1UL, 7UL, 8UL, 1'003UL}) {
      std::vector<std::byte> bytes(elements * sizeof(Bits) + 1);
      const auto values = std::span(bytes).subspan(1);
      const auto set = [&](std::size_t i, Bits value) { std::memcpy(&values[i * sizeof(Bits)], &value, sizeof value); };
      for (std::size_t i = 0; i < elements; ++i) set(i, three);
      CHECK(sum_of_squares(values, element) == 9.0 * static_cast<double>(elements));
      if (elements == 0) continue;
      set(elements - 1, infinity);
      CHECK(std::isinf(sum_of_squares(values, element)));
      set(0, nan);
      CHECK(std::isnan(sum_of_squares(values, element)));
    }
  };
  check(ElementType::kFloat64, std::uint64_t{0x4008'0000'0000'0000}, std::uint64_t{0x7FF0'0000'0000'0000},
        std::uint64_t{0x7FF8'0000'0000'0000});
  check(ElementType::kFloat32, std::uint32_t{0x4040'0000}, std::uint32_t{0x7F80'0000}, std::uint32_t{0x7FC0'0000});
  check(ElementType::kFloat16, std::uint16_t{0x4200}, std::uint16_t{0x7C00}, std::uint16_t{0x7E00});
  check(ElementType::kBfloat16, std::uint16_t{0x4040}, std::uint16_t{0x7F80}, std::uint16_t{0x7FC0});
  const std::vector<std::byte> ones(64, std::byte{1});
  CHECK(sum_of_squares(ones, ElementType::kInt32) == 0.0);
}
