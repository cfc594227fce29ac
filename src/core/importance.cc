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

constexpr std::uint32_t kGroup = 8;
constexpr std::uint32_t kSegmentsAhead = 16;
constexpr std::uint64_t kMaxMedianSamples = 65'536;

float load_half(std::uint16_t h) {
  const int exponent = (h >> 10) & 0x1F;
  const int mantissa = h & 0x3FF;
  if (exponent == 0x1F) return mantissa == 0 ? INFINITY : NAN;
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), -24);
  return std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
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
    if constexpr (kElement == wire::ElementType::kFloat16) return load_half(bits);
    return std::fabs(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
  }
}

// Into `scratch`: the sampled mean magnitude of each segment, and behind these the samples for the median.
template <wire::ElementType kElement>
void sample(std::span<const std::byte> data, const SegmentGrid& grid, std::uint64_t seed, std::vector<float>& scratch) {
  // Groups of eight neighbours, one cache line, at every hundred-and-sixtieth element from a random start: 5 % of each
  // segment, however the tensor is laid out, for an eighth of its memory traffic.
  constexpr std::uint32_t size = wire::element_bytes(kElement);
  const auto stride = static_cast<std::uint32_t>(kGroup / kSampleFraction);
  base::Prng prng(seed);
  scratch.clear();
  scratch.resize(grid.count());  // means first, samples behind them
  // The median needs no more than so many samples: its rank is then right to within 0.4 % (two standard deviations).
  const std::uint64_t samples_expected = data.size() / size * kGroup / stride;
  const std::uint64_t keep_every = samples_expected / kMaxMedianSamples + 1;
  std::uint64_t until_kept = 0;
  // A segment's groups start at a place of their own, so that no structure of the tensor hides between them. They are
  // drawn, and fetched, some segments ahead: each is a cache miss, or two where it crosses a line.
  const std::size_t segment_elements = grid.segment_bytes() / size;
  const std::size_t total_elements = data.size() / size;
  std::array<std::size_t, kSegmentsAhead> starts{};
  for (std::uint32_t ahead = 0; ahead < grid.count() + kSegmentsAhead; ++ahead) {
    if (ahead >= kSegmentsAhead) {
      const std::uint32_t segment = ahead - kSegmentsAhead;
      const std::size_t end = std::min(total_elements, (std::size_t{segment} + 1) * segment_elements);
      float sum = 0;
      std::uint32_t samples = 0;
      for (std::size_t at = starts[segment % kSegmentsAhead]; at < end; at += stride) {
        for (std::size_t i = at; i < std::min(at + kGroup, end); ++i) {
          const float value = magnitude<kElement>(data.data() + i * size);
          sum += value;
          ++samples;
          if (until_kept-- == 0) {
            until_kept = keep_every - 1;
            if (std::isfinite(value)) scratch.push_back(value);
          }
        }
      }
      scratch[segment] = sum / static_cast<float>(samples);
    }
    if (ahead < grid.count()) {
      const std::size_t first = std::size_t{ahead} * segment_elements;
      const std::size_t end = std::min(total_elements, first + segment_elements);
      starts[ahead % kSegmentsAhead] = first + prng.below(std::min<std::size_t>(stride, end - first));
      for (std::size_t at = starts[ahead % kSegmentsAhead]; at < end; at += stride) {
        __builtin_prefetch(data.data() + at * size);
        __builtin_prefetch(data.data() + std::min(at + kGroup, end) * size - 1);
      }
    }
  }
}

}  // namespace

void tag_by_magnitude(std::span<const std::byte> data, wire::ElementType element, const SegmentGrid& grid,
                      std::uint8_t traffic_class, std::uint64_t seed, std::vector<float>& scratch,
                      std::span<SegmentTag> tags) {
  MLT_CHECK(tags.size() == grid.count() && data.size() == grid.total_bytes());
  const SegmentTag important = SegmentTag::important(traffic_class);
  const SegmentTag other{traffic_class};
  // PROTOCOL 13.1.5: Types that are not floating point, and segments with values that are not numbers, are important.
  if (!wire::is_floating_point(element) || grid.count() < 2) {
    std::fill(tags.begin(), tags.end(), important);
    return;
  }
  switch (element) {
    case wire::ElementType::kFloat32:
      sample<wire::ElementType::kFloat32>(data, grid, seed, scratch);
      break;
    case wire::ElementType::kFloat64:
      sample<wire::ElementType::kFloat64>(data, grid, seed, scratch);
      break;
    case wire::ElementType::kFloat16:
      sample<wire::ElementType::kFloat16>(data, grid, seed, scratch);
      break;
    default:
      sample<wire::ElementType::kBfloat16>(data, grid, seed, scratch);
      break;
  }
  float median = 0;
  const auto first_sample = scratch.begin() + grid.count();
  if (first_sample != scratch.end()) {
    const auto middle = first_sample + (scratch.end() - first_sample) / 2;
    std::nth_element(first_sample, middle, scratch.end());
    median = *middle;
  }
  for (std::uint32_t segment = 0; segment < grid.count(); ++segment) {
    // PROTOCOL 13.1.4: important if the mean magnitude of its elements is not below the median magnitude of the
    //     tensor's
    // Written so that a mean that is not a number counts as important.
    tags[segment] = scratch[segment] < median ? other : important;
  }
}

}  // namespace mlt::core
