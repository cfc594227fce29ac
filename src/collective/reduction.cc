#include "collective/reduction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>

namespace mlt::collective {

namespace {

// An element type: as stored, and as computed with.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value load(Stored stored) { return stored; }
  static Stored store(Value value) { return value; }
};

// Branch-free, so that loops over them vectorise.
struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  static constexpr std::uint32_t kRebias = (127U - 15U) << 23;

  static Value load(Stored stored) {
    const std::uint32_t sign = (stored & 0x8000U) << 16;
    const std::uint32_t magnitude = stored & 0x7FFFU;
    const std::uint32_t normal = (magnitude << 13) + kRebias;
    const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) *
                                                        0x1p-24F);  // no float32 subnormal, which a CPU may flush
    const std::uint32_t special = (magnitude << 13) | 0x7F800000U;
    const std::uint32_t finite = magnitude < 0x0400U ? subnormal : normal;
    return std::bit_cast<float>(sign | (magnitude < 0x7C00U ? finite : special));
  }
  static Stored store(Value value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    // To the nearest even; a carry goes into the exponent, up to infinity.
    const std::uint32_t normal = (magnitude - kRebias + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
    // At 0.5 the float32 have the distance of the subnormals, so that the addition rounds.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
    const std::uint32_t special = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
    const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
    return static_cast<Stored>((bits >> 16 & 0x8000U) | (magnitude < 0x47800000U ? finite : special));
  }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static Value load(Stored stored) { return std::bit_cast<float>(std::uint32_t{stored} << 16); }
  static Stored store(Value value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<Stored>(is_nan ? (bits >> 16 | 0x0040U) : rounded);
  }
};

// Any byte but 0 is true.
struct Truth {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
  static Value load(Stored stored) { return stored != 0 ? 1 : 0; }
  static Stored store(Value value) { return value; }
};

// Where integers wrap: unsigned, and not shorter than int.
template <typename V>
using Wrapping = std::conditional_t<(sizeof(V) < 4), std::uint32_t, std::make_unsigned_t<V>>;

struct Sum {
  template <typename V>
  static V of(V a, V b) {
    if constexpr (std::is_floating_point_v<V>) {
      return a + b;
    } else {
      return static_cast<V>(static_cast<Wrapping<V>>(a) + static_cast<Wrapping<V>>(b));
    }
  }
};
struct Product {
  template <typename V>
  static V of(V a, V b) {
    if constexpr (std::is_floating_point_v<V>) {
      return a * b;
    } else {
      return static_cast<V>(static_cast<Wrapping<V>>(a) * static_cast<Wrapping<V>>(b));
    }
  }
};
// A NaN stays: b if it is one, and a if that is one, since no comparison with it holds. Of equal values the first.
struct Min {
  template <typename V>
  static V of(V a, V b) {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <typename V>
  static V of(V a, V b) {
    return b > a || b != b ? b : a;
  }
};
struct And {
  template <typename V>
  static V of(V a, V b) {
    return static_cast<V>(a & b);
  }
};
struct Or {
  template <typename V>
  static V of(V a, V b) {
    return static_cast<V>(a | b);
  }
};
struct Xor {
  template <typename V>
  static V of(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};

template <typename E>
typename E::Value load(const std::byte* at) {
  typename E::Stored stored;
  std::memcpy(&stored, at, sizeof stored);
  return E::load(stored);
}

template <typename E>
void store(std::byte* at, typename E::Value value) {
  const typename E::Stored stored = E::store(value);
  std::memcpy(at, &stored, sizeof stored);
}

template <typename E>
typename E::Value share_of(std::uint32_t ranks) {
  return typename E::Value{1} / static_cast<typename E::Value>(ranks);
}

template <typename E, typename Op>
void combine(std::byte* __restrict into, const std::byte* __restrict from, std::size_t elements) {
  constexpr std::size_t kBytes = sizeof(typename E::Stored);
  for (std::size_t i = 0; i < elements; ++i) {
    store<E>(into + i * kBytes, Op::of(load<E>(into + i * kBytes), load<E>(from + i * kBytes)));
  }
}

template <typename E, typename Op>
void combine_last(std::byte* into, const std::byte* from, std::size_t elements, std::uint32_t) {
  combine<E, Op>(into, from, elements);
}

template <typename E>
void add_and_scale(std::byte* __restrict into, const std::byte* __restrict from, std::size_t elements,
                   std::uint32_t ranks) {
  constexpr std::size_t kBytes = sizeof(typename E::Stored);
  const auto share = share_of<E>(ranks);
  for (std::size_t i = 0; i < elements; ++i) {
    store<E>(into + i * kBytes, (load<E>(into + i * kBytes) + load<E>(from + i * kBytes)) * share);
  }
}

template <typename E>
void scale(std::byte* values, std::size_t elements, std::uint32_t factor, std::uint32_t divisor) {
  constexpr std::size_t kBytes = sizeof(typename E::Stored);
  const auto share = static_cast<typename E::Value>(factor) * share_of<E>(divisor);
  for (std::size_t i = 0; i < elements; ++i) store<E>(values + i * kBytes, load<E>(values + i * kBytes) * share);
}

// A tile at a time: its partial results stay in the first-level cache, unrounded.
template <typename E, typename Op, bool kIsMean>
void combine_all(std::byte* into, std::span<const std::byte* const> from, std::size_t elements, std::uint32_t terms) {
  constexpr std::size_t kBytes = sizeof(typename E::Stored), kTile = 512;
  std::array<typename E::Value, kTile> tile;
  for (std::size_t first = 0; first < elements; first += kTile) {
    const std::size_t count = std::min(kTile, elements - first);
    for (std::size_t i = 0; i < count; ++i) tile[i] = load<E>(from[0] + (first + i) * kBytes);
    for (const std::byte* const term : from.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i) tile[i] = Op::of(tile[i], load<E>(term + (first + i) * kBytes));
    }
    if constexpr (kIsMean) {
      const auto share = share_of<E>(terms);
      for (std::size_t i = 0; i < count; ++i) tile[i] *= share;
    }
    for (std::size_t i = 0; i < count; ++i) store<E>(into + (first + i) * kBytes, tile[i]);
  }
}

template <typename E, typename Op>
constexpr Kernel kKernel = {&combine<E, Op>, &combine_last<E, Op>, nullptr, &combine_all<E, Op, false>};
template <typename E>
constexpr Kernel kMean = {&combine<E, Sum>, &add_and_scale<E>, &scale<E>, &combine_all<E, Sum, true>};

using Row = std::array<const Kernel*, kReductionCount>;  // in the order of Reduction

template <typename E>
constexpr Row kFloating = {&kKernel<E, Sum>,     &kMean<E>, &kKernel<E, Min>, &kKernel<E, Max>,
                           &kKernel<E, Product>, nullptr,   nullptr,          nullptr};
template <typename T>
constexpr Row kInteger = {&kKernel<Plain<T>, Sum>,     nullptr,
                          &kKernel<Plain<T>, Min>,     &kKernel<Plain<T>, Max>,
                          &kKernel<Plain<T>, Product>, &kKernel<Plain<T>, And>,
                          &kKernel<Plain<T>, Or>,      &kKernel<Plain<T>, Xor>};
constexpr Row kTruth = {&kKernel<Truth, Or>,  nullptr,
                        &kKernel<Truth, And>, &kKernel<Truth, Or>,
                        &kKernel<Truth, And>, &kKernel<Truth, And>,
                        &kKernel<Truth, Or>,  &kKernel<Truth, Xor>};

const Row* row_of(wire::ElementType element) {
  switch (element) {
    case wire::ElementType::kUint8:
      return &kInteger<std::uint8_t>;
    case wire::ElementType::kInt8:
      return &kInteger<std::int8_t>;
    case wire::ElementType::kInt16:
      return &kInteger<std::int16_t>;
    case wire::ElementType::kInt32:
      return &kInteger<std::int32_t>;
    case wire::ElementType::kInt64:
      return &kInteger<std::int64_t>;
    case wire::ElementType::kFloat16:
      return &kFloating<Float16>;
    case wire::ElementType::kBfloat16:
      return &kFloating<Bfloat16>;
    case wire::ElementType::kFloat32:
      return &kFloating<Plain<float>>;
    case wire::ElementType::kFloat64:
      return &kFloating<Plain<double>>;
    case wire::ElementType::kUint16:
      return &kInteger<std::uint16_t>;
    case wire::ElementType::kUint32:
      return &kInteger<std::uint32_t>;
    case wire::ElementType::kUint64:
      return &kInteger<std::uint64_t>;
    case wire::ElementType::kBool:
      return &kTruth;
  }
  return nullptr;
}

}  // namespace

const Kernel* kernel_of(wire::ElementType element, Reduction reduction) {
  const Row* const row = row_of(element);
  const auto index = static_cast<std::size_t>(reduction);
  return row == nullptr || index >= row->size() ? nullptr : (*row)[index];
}

namespace {

// The exponent's bits are all set in a NaN and in an infinity, and in no other value.
template <typename Bits>
std::optional<std::size_t> first_with(std::span<const std::byte> values, Bits exponent) {
  constexpr std::size_t kBlock = 4'096;  // without a branch per element, so that the loop vectorises
  const std::size_t elements = values.size() / sizeof(Bits);
  const auto is_special = [&](std::size_t i) {
    Bits bits;
    std::memcpy(&bits, values.data() + i * sizeof(Bits), sizeof bits);
    return (bits & exponent) == exponent;
  };
  for (std::size_t block = 0; block < elements; block += kBlock) {
    const std::size_t end = std::min(elements, block + kBlock);
    bool any = false;
    for (std::size_t i = block; i < end; ++i) any |= is_special(i);
    if (!any) continue;
    for (std::size_t i = block; i < end; ++i) {
      if (is_special(i)) return i;
    }
  }
  return std::nullopt;
}

// Several sums, so that the loop vectorises.
template <typename E>
double squares(std::span<const std::byte> values) {
  constexpr std::size_t kBytes = sizeof(typename E::Stored), kSums = 8;
  const std::size_t count = values.size() / kBytes, rest = count % kSums;
  std::array<double, kSums> sums{};
  const auto add = [&](std::size_t i, std::size_t sum) {
    const auto value = static_cast<double>(load<E>(values.data() + i * kBytes));
    sums[sum] += value * value;
  };
  for (std::size_t first = 0; first < count - rest; first += kSums) {
    for (std::size_t sum = 0; sum < kSums; ++sum) add(first + sum, sum);
  }
  for (std::size_t i = count - rest; i < count; ++i) add(i, 0);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

double sum_of_squares(std::span<const std::byte> values, wire::ElementType element) {
  switch (element) {
    case wire::ElementType::kFloat64:
      return squares<Plain<double>>(values);
    case wire::ElementType::kFloat32:
      return squares<Plain<float>>(values);
    case wire::ElementType::kFloat16:
      return squares<Float16>(values);
    case wire::ElementType::kBfloat16:
      return squares<Bfloat16>(values);
    default:
      return 0;
  }
}

std::optional<std::size_t> first_not_finite(std::span<const std::byte> values, wire::ElementType element) {
  switch (element) {
    case wire::ElementType::kFloat64:
      return first_with<std::uint64_t>(values, 0x7FF0'0000'0000'0000U);
    case wire::ElementType::kFloat32:
      return first_with<std::uint32_t>(values, 0x7F80'0000U);
    case wire::ElementType::kFloat16:
      return first_with<std::uint16_t>(values, 0x7C00U);
    case wire::ElementType::kBfloat16:
      return first_with<std::uint16_t>(values, 0x7F80U);
    default:
      return std::nullopt;
  }
}

}  // namespace mlt::collective
