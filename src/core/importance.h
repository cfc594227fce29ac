// Importance of segments: a segment's mean magnitude against the tensor's median magnitude, both from samples.
//
// Paper section 4.2.2 ("mean value" there is the magnitude: a signed mean would cancel, clause 13.1.4). The
// median is sampled first, from a few thousand elements. Each segment is classified just before it may leave: the first
// packet need not wait for the whole tensor, and the bytes read are still in the caches when sent. The endpoint never
// reads values: it calls classify() through SendRequest::classify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/priority.h"
#include "core/segmenter.h"
#include "wire/element.h"

namespace mlt::core {

inline constexpr double kSampleFraction = 0.05;
// Elements per sample of the median; large tensors use fewer samples. 4,096 samples bring its rank among the tensor's
// magnitudes to within 1.6 % (two standard deviations), better if the tensor is ordered. No segment leaves before the
// median is known, and each sample is a cache miss.
inline constexpr std::size_t kElementsPerMedianSample = 160;
inline constexpr std::size_t kMaxMedianSamples = 4'096;
inline constexpr std::size_t kMinMedianSamples = 512;

// Elements per sample in a tensor of `elements`: the median takes one sample from each part of this size.
std::size_t median_part(std::size_t elements);

// Estimated median magnitude of `data`; 0 if every sampled element is NaN. The same seed samples the same elements.
// `element` must be floating point.
float sampled_median(std::span<const std::byte> data, wire::ElementType element, std::uint64_t seed);

// Tags the segments of one tensor with a class, and as important if the segment's sampled mean magnitude is at or above
// the sampled median. Segments of other types than floating point, and those with NaNs, are important, so that switches
// do not drop them first. The same seed gives the same priorities for any order and grouping of calls. Callable from
// any thread, one at a time. The caller owns the tensor and the priorities.
class MagnitudeClassifier {
 public:
  MagnitudeClassifier() = default;
  // Samples the median. `priorities`: one per segment of `grid`.
  MagnitudeClassifier(std::span<const std::byte> data, wire::ElementType element, const SegmentGrid& grid,
                      std::uint8_t traffic_class, std::uint64_t seed, std::span<SegmentPriority> priorities);

  // Tags `count` segments from `first` on, and prefetches the data of the segments that follow.
  void set(std::uint32_t first, std::uint32_t count) const;
  // Calls set() of the MagnitudeClassifier at `classifier`; has the type of SendRequest::classify.
  static void classify(void* classifier, std::uint32_t first, std::uint32_t count) {
    static_cast<const MagnitudeClassifier*>(classifier)->set(first, count);
  }

 private:
  template <wire::ElementType kElement>
  void set_as(std::uint32_t first, std::uint32_t count) const;

  std::span<const std::byte> data_;
  wire::ElementType element_ = wire::ElementType::kUint8;
  SegmentGrid grid_;
  SegmentPriority important_;
  SegmentPriority other_;
  std::uint64_t seed_ = 0;
  std::size_t groups_ = 0;  // samples per full segment, each from its own part of the segment
  std::size_t part_ = 0;    // bytes per part
  bool all_important_ = true;
  float threshold_ = 0;
  std::span<SegmentPriority> priorities_;
};

}  // namespace mlt::core
