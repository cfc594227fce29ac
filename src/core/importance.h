// Which segments matter: mean magnitude of a segment against the tensor's median magnitude, from a 5 % sample.
//
// Paper section 4.2.2 ("mean value" there is magnitude: a signed mean would cancel, DESIGN.md section 5). Runs on the
// caller's thread before the post; the endpoint never looks at values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/priority.h"
#include "core/segmenter.h"
#include "wire/element.h"

namespace mlt::core {

inline constexpr double kSampleFraction = 0.05;

// Fills `tags` (one per segment of `grid`) with class `traffic_class`, important where the segment's sampled mean
// magnitude is at or above the sampled median of the tensor. Types that are not floating point, and segments with
// values that are not numbers, are important: they must not be singled out for dropping. `scratch` is working memory,
// reused between calls. The same seed samples the same elements.
void tag_by_magnitude(std::span<const std::byte> data, wire::ElementType element, const SegmentGrid& grid,
                      std::uint8_t traffic_class, std::uint64_t seed, std::vector<float>& scratch,
                      std::span<SegmentTag> tags);

}  // namespace mlt::core
