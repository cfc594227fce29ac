// Which segments matter: mean magnitude of a segment against the tensor's median magnitude, both from samples.
//
// Paper section 4.2.2 ("mean value" there is magnitude: a signed mean would cancel, DESIGN.md section 5). The median
// comes first, from a few thousand elements; a segment is judged just before it may leave, so that nothing waits for
// the whole tensor's judgement, and what judging reads is in the caches when it is sent. The endpoint never looks at
// values: it calls classify() through SendRequest::classify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/priority.h"
#include "core/segmenter.h"
#include "wire/element.h"

namespace mlt::core {

inline constexpr double kSampleFraction = 0.05;
// For the median, one element of each so many, or fewer in a large tensor: 4,096 samples bring its rank among the
// tensor's magnitudes to within 1.6 % (two standard deviations), better where the tensor is ordered. Nothing leaves
// before it is known, and each sample is a cache miss.
inline constexpr std::size_t kElementsPerMedianSample = 160;
inline constexpr std::size_t kMaxMedianSamples = 4'096;
inline constexpr std::size_t kMinMedianSamples = 512;

// The median's samples are one element from each part of so many elements of a tensor of `elements`.
std::size_t median_part(std::size_t elements);

// Median magnitude of `data` as far as a sample shows it; 0 if no sampled element is a number. The same seed samples
// the same elements. `element` is floating point.
float sampled_median(std::span<const std::byte> data, wire::ElementType element, std::uint64_t seed);

// Tags the segments of one tensor with a class, and as important where the segment's sampled mean magnitude is at or
// above the sampled median. Types that are not floating point, and segments with values that are not numbers, are
// important: they must not be singled out for dropping. The same seed gives the same tags, in whatever order and
// portions they are asked for. Any thread, one at a time; the tensor and the tags belong to the caller.
class MagnitudeTagger {
 public:
  MagnitudeTagger() = default;
  // Takes the median. `tags`: one per segment of `grid`.
  MagnitudeTagger(std::span<const std::byte> data, wire::ElementType element, const SegmentGrid& grid,
                  std::uint8_t traffic_class, std::uint64_t seed, std::span<SegmentTag> tags);

  // Tags `count` segments from `first` on, and fetches the memory that those behind them need.
  void tag(std::uint32_t first, std::uint32_t count) const;
  // The same of the MagnitudeTagger at `tagger`, as SendRequest::classify wants it.
  static void classify(void* tagger, std::uint32_t first, std::uint32_t count) {
    static_cast<const MagnitudeTagger*>(tagger)->tag(first, count);
  }

 private:
  template <wire::ElementType kElement>
  void tag_as(std::uint32_t first, std::uint32_t count) const;

  std::span<const std::byte> data_;
  wire::ElementType element_ = wire::ElementType::kUint8;
  SegmentGrid grid_;
  SegmentTag important_;
  SegmentTag other_;
  std::uint64_t seed_ = 0;
  std::size_t groups_ = 0;  // sampled of a whole segment, each in a part of its own
  std::size_t part_ = 0;    // bytes
  bool all_important_ = true;
  float threshold_ = 0;
  std::span<SegmentTag> tags_;
};

}  // namespace mlt::core
