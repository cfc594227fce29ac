#include "core/importance.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/prng.h"

namespace mlt::core {

namespace {

// A segment's sample: groups of one cache line, at random offsets in equal parts of the segment. Memory is read in
// lines, so more places with fewer elements each would cost as much as reading more of the segment.
constexpr std::size_t kGroupBytes = 64;
constexpr std::size_t kMinGroups = 2;
// Distance of prefetches, in segments and samples. The prefetches are not in functions of their own: GCC treats a
// function that only prefetches as one without effect, and removes its calls.
constexpr std::uint32_t kSegmentsAhead = 16;
constexpr std::size_t kSamplesAhead = 32;
// Tolerance of the threshold. A sum of equal values may be slightly less than their product, but the mean of a constant
// tensor must not be below its median. Larger than float's rounding error in the longest sum, and smaller than any
// difference that matters.
constexpr float kRounding = 1.0F - 0x1p-18F;

// Number of groups of a full segment.
std::size_t group_count(std::size_t segment_bytes) {
  const double wanted = std::ceil(kSampleFraction * static_cast<double>(segment_bytes) / kGroupBytes);
  return std::min(std::max(kMinGroups, static_cast<std::size_t>(wanted)), segment_bytes / kGroupBytes);
}

template <wire::ElementType kElement>
float magnitude(const std::byte* at) {
  if constexpr (kElement == wire::ElementType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return std::fabs(value);
  } else if constexpr (kElement == wire::ElementType::kFloat64) {
    double value;
    std::memcpy(&value, at, sizeof value);
    return static_cast<float>(std::fabs(value));
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    if constexpr (kElement == wire::ElementType::kBfloat16) {
      return std::bit_cast<float>((bits & 0x7FFFU) << 16);
    } else {
      // binary16 has five exponent bits, binary32 has eight: the shifted bits give a value that is 2^112 too small.
      const std::uint32_t placed = (bits & 0x7FFFU) << 13;
      if (placed >= 0x0F80'0000U) return std::bit_cast<float>(placed | 0x7F80'0000U);  // infinite or NaN
      return std::bit_cast<float>(placed) * 0x1p112F;
    }
  }
}

template <wire::ElementType kElement>
float median_as(std::span<const std::byte> data, std::uint64_t seed) {
  constexpr std::size_t size = wire::element_bytes(kElement);
  const std::size_t total = data.size() / size;
  const std::size_t part = median_part(total);
  const std::size_t samples = total / part;
  // One random element per part: periodic structure cannot bias the sample, and layers of different scale are sampled
  // in proportion.
  base::Prng prng(seed);
  std::array<const std::byte*, kSamplesAhead> places{};
  std::array<float, kMaxMedianSamples> values;
  std::size_t found = 0;
  for (std::size_t i = 0; i < samples + kSamplesAhead; ++i) {
    const std::byte*& place = places[i % kSamplesAhead];
    if (i >= kSamplesAhead) {
      const float value = magnitude<kElement>(place);
      if (std::isfinite(value)) values[found++] = value;
    }
    if (i < samples) {
      place = data.data() + (i * part + prng.below(part)) * size;
      __builtin_prefetch(place);
    }
  }
  if (found == 0) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(found / 2);
  std::nth_element(values.begin(), middle, values.begin() + static_cast<std::ptrdiff_t>(found));
  return *middle;
}

// Sum of the magnitudes of a group's elements, in parallel lanes: a serial sum would wait for each addition.
template <wire::ElementType kElement>
float group_sum(const std::byte* at) {
  constexpr std::size_t size = wire::element_bytes(kElement);
  constexpr std::size_t lanes = 4;
  std::array<float, lanes> sums{};
  for (std::size_t i = 0; i < kGroupBytes / size; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += magnitude<kElement>(at + (i + lane) * size);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Offsets of the groups of one segment: one at a random place in each of its equal parts. They depend only on seed and
// segment, so that segments may be classified in any order. They are random, so that the sample does not miss structure
// that lies between fixed offsets.
struct Groups {
  std::size_t first;
  std::size_t last;  // max offset of the last group
  std::size_t part;
  std::size_t count;
  std::uint64_t random;

  // `part`: the segment's size divided by its groups, or 0 if it has no space for one.
  Groups(const SegmentGrid& grid, std::size_t groups, std::size_t part_bytes, std::uint64_t seed, std::uint32_t segment)
      : first(grid.offset(segment)), part(part_bytes), count(groups) {
    const std::size_t length = grid.length(segment);
    if (length < grid.segment_bytes()) count = length < kGroupBytes ? 0 : std::max<std::size_t>(1, length / part);
    last = first + (count == 0 ? 0 : length - kGroupBytes);
    random = base::Prng(seed + 0xD1B5'4A32'D192'ED03ULL * (segment + 1ULL)).next();
  }

  // Aligned to cache lines of the tensor.
  std::size_t place(std::size_t i) const {
    const std::uint64_t draw = (random * (2 * i + 1)) >> 48;
    const std::size_t at = (first + i * part + (draw * part >> 16)) / kGroupBytes * kGroupBytes;
    return std::clamp(at, first, last);
  }
};

// Calls `of` with a floating-point element type as its template argument.
template <typename Function>
auto with_type(wire::ElementType element, Function of) {
  switch (element) {
    case wire::ElementType::kFloat32:
      return of.template operator()<wire::ElementType::kFloat32>();
    case wire::ElementType::kFloat64:
      return of.template operator()<wire::ElementType::kFloat64>();
    case wire::ElementType::kFloat16:
      return of.template operator()<wire::ElementType::kFloat16>();
    default:
      return of.template operator()<wire::ElementType::kBfloat16>();
  }
}

}  // namespace

std::size_t median_part(std::size_t elements) {
  const std::size_t part = std::clamp<std::size_t>(elements / kMinMedianSamples, 1, kElementsPerMedianSample);
  return std::max(part, (elements + kMaxMedianSamples - 1) / kMaxMedianSamples);
}

float sampled_median(std::span<const std::byte> data, wire::ElementType element, std::uint64_t seed) {
  return with_type(element, [&]<wire::ElementType kElement>() { return median_as<kElement>(data, seed); });
}

MagnitudeClassifier::MagnitudeClassifier(std::span<const std::byte> data, wire::ElementType element,
                                         const SegmentGrid& grid, std::uint8_t traffic_class, std::uint64_t seed,
                                         std::span<SegmentPriority> priorities)
    : data_(data),
      element_(element),
      grid_(grid),
      important_(SegmentPriority::important(traffic_class)),
      other_{traffic_class},
      seed_(seed),
      groups_(group_count(grid.segment_bytes())),
      part_(grid.segment_bytes() / std::max<std::size_t>(1, groups_)),
      // PROTOCOL 13.1.5: The default priority function MUST call a segment important if its type is not floating point,
      //     or if it holds values that are not numbers.
      all_important_(!wire::is_floating_point(element) || grid.count() < 2),
      threshold_(all_important_ ? 0 : sampled_median(data, element, seed) * kRounding),
      priorities_(priorities) {
  MLT_CHECK(priorities.size() == grid.count() && data.size() == grid.total_bytes());
}

template <wire::ElementType kElement>
void MagnitudeClassifier::set_as(std::uint32_t first, std::uint32_t count) const {
  constexpr std::size_t size = wire::element_bytes(kElement);
  // The previous call already prefetched the segments just behind its own.
  std::uint32_t fetched = first == 0 ? 0 : std::min(grid_.count(), first + kSegmentsAhead);
  for (std::uint32_t segment = first; segment < first + count; ++segment) {
    for (; fetched < grid_.count() && fetched <= segment + kSegmentsAhead; ++fetched) {
      const Groups groups(grid_, groups_, part_, seed_, fetched);
      for (std::size_t i = 0; i < groups.count; ++i) {
        const std::byte* const group = data_.data() + groups.place(i);
        __builtin_prefetch(group);
        __builtin_prefetch(group + kGroupBytes - 1);
      }
    }
    const Groups groups(grid_, groups_, part_, seed_, segment);
    float sum = 0;
    for (std::size_t i = 0; i < groups.count; ++i) sum += group_sum<kElement>(data_.data() + groups.place(i));
    std::size_t samples = groups.count * (kGroupBytes / size);
    if (samples == 0) {  // shorter than a group: sample all of it
      for (std::uint32_t at = 0; at < grid_.length(segment); at += size, ++samples) {
        sum += magnitude<kElement>(data_.data() + grid_.offset(segment) + at);
      }
    }
    // PROTOCOL 13.1.4: The default priority function MUST call a segment important if the mean magnitude of its
    //     elements is not below the median magnitude of the tensor's.
    // Written so that a NaN mean counts as important.
    priorities_[segment] = sum < threshold_ * static_cast<float>(samples) ? other_ : important_;
  }
}

void MagnitudeClassifier::set(std::uint32_t first, std::uint32_t count) const {
  MLT_CHECK(first <= grid_.count() && count <= grid_.count() - first);
  if (all_important_) {
    std::fill_n(priorities_.begin() + first, count, important_);
    return;
  }
  with_type(element_, [&]<wire::ElementType kElement>() { set_as<kElement>(first, count); });
}

}  // namespace mlt::core
