#include "core/importance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/prng.h"
#include "core/priority.h"

using namespace mlt;
using core::SegmentGrid;
using core::SegmentTag;
using wire::ElementType;

namespace {

template <typename T>
std::vector<SegmentTag> tag(const std::vector<T>& values, ElementType element, std::uint32_t segment_bytes,
                            std::uint64_t seed = 1, std::uint8_t traffic_class = 3) {
  const auto bytes = std::as_bytes(std::span(values));
  const SegmentGrid grid(static_cast<std::uint32_t>(bytes.size()), segment_bytes);
  std::vector<SegmentTag> tags(grid.count());
  std::vector<float> scratch;
  core::tag_by_magnitude(bytes, element, grid, traffic_class, seed, scratch, tags);
  return tags;
}

// 40 segments of 400 elements, the segments of odd number a hundred times larger; signs alternate, so that a signed
// mean would be near zero everywhere.
template <typename T, typename Convert>
std::vector<T> striped(Convert convert) {
  base::Prng prng(6);
  std::vector<T> values;
  for (int i = 0; i < 40 * 400; ++i) {
    const float magnitude = ((i / 400) % 2 == 1 ? 1.0F : 0.01F) * static_cast<float>(0.5 + prng.uniform());
    values.push_back(convert(i % 2 == 0 ? magnitude : -magnitude));
  }
  return values;
}

void check_striped(const std::vector<SegmentTag>& tags) {
  REQUIRE(tags.size() == 40);
  for (std::size_t i = 0; i < tags.size(); ++i) {
    CHECK(tags[i].is_important() == (i % 2 == 1));
    CHECK(tags[i].traffic_class() == 3);
    CHECK_FALSE(tags[i].is_critical());
  }
}

// IEEE binary16 by way of its definition; the values here are normal numbers.
std::uint16_t to_half(float value) {
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto mantissa = static_cast<std::uint32_t>(fraction * 2048.0F) & 0x3FFU;
  const auto biased = static_cast<std::uint32_t>(exponent - 1 + 15);
  return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000U : 0U) | (biased << 10) | mantissa);
}

std::uint16_t to_bfloat(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

}  // namespace

TEST_CASE("tag_by_magnitude__finds_the_large_segments_of_every_floating_type") {
  check_striped(tag(striped<float>([](float v) { return v; }), ElementType::kFloat32, 1'600));
  check_striped(tag(striped<double>([](float v) { return static_cast<double>(v); }), ElementType::kFloat64, 3'200));
  check_striped(tag(striped<std::uint16_t>(to_half), ElementType::kFloat16, 800));
  check_striped(tag(striped<std::uint16_t>(to_bfloat), ElementType::kBfloat16, 800));
}

TEST_CASE("tag_by_magnitude__half_precision_handles_zero_subnormal_infinite_and_not_a_number") {
  std::vector<std::uint16_t> values(8 * 400, to_half(0.5F));
  std::fill_n(values.begin(), 400, std::uint16_t{0});               // zeros
  std::fill_n(values.begin() + 400, 400, std::uint16_t{0x8001});    // the smallest negative subnormal
  std::fill_n(values.begin() + 800, 400, std::uint16_t{0x7C00});    // infinity
  std::fill_n(values.begin() + 1'200, 400, std::uint16_t{0x7E00});  // not a number
  const auto tags = tag(values, ElementType::kFloat16, 800);
  CHECK_FALSE(tags[0].is_important());
  CHECK_FALSE(tags[1].is_important());
  for (std::size_t i = 2; i < 8; ++i) CHECK(tags[i].is_important());
}

TEST_CASE("tag_by_magnitude__never_singles_out_what_is_not_a_number") {
  std::vector<float> values = striped<float>([](float v) { return v; });
  for (int i = 0; i < 400; ++i) values[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 800; i < 1'200; ++i) values[static_cast<std::size_t>(i)] = std::numeric_limits<float>::infinity();
  auto tags = tag(values, ElementType::kFloat32, 1'600);
  CHECK(tags[0].is_important());
  CHECK(tags[2].is_important());
  CHECK_FALSE(tags[4].is_important());  // the others are judged as before
  CHECK(tags[5].is_important());
  std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
  tags = tag(values, ElementType::kFloat32, 1'600);
  CHECK(std::all_of(tags.begin(), tags.end(), [](SegmentTag t) { return t.is_important(); }));
}

TEST_CASE("tag_by_magnitude__all_equal_or_all_zero_is_all_important") {
  for (const float value : {0.0F, 1.0F, -2.5F}) {
    const auto tags = tag(std::vector<float>(4'000, value), ElementType::kFloat32, 1'600);
    CHECK(std::all_of(tags.begin(), tags.end(), [](SegmentTag t) { return t.is_important(); }));
  }
}

TEST_CASE("tag_by_magnitude__integers_and_single_segments_are_important") {
  const auto integers = tag(std::vector<std::int32_t>(4'000, 1), ElementType::kInt32, 1'600);
  CHECK(std::all_of(integers.begin(), integers.end(), [](SegmentTag t) { return t.is_important(); }));
  CHECK(tag(std::vector<float>(10, 0.0F), ElementType::kFloat32, 1'600)[0].is_important());
  CHECK(tag(std::vector<float>(), ElementType::kFloat32, 1'600)[0].is_important());
}

TEST_CASE("tag_by_magnitude__the_last_segment_may_hold_a_single_element") {
  std::vector<float> values(401, 1.0F);
  values.back() = 100.0F;
  const auto tags = tag(values, ElementType::kFloat32, 1'600);
  REQUIRE(tags.size() == 2);
  CHECK(tags[1].is_important());
}

TEST_CASE("tag_by_magnitude__looks_at_five_percent_and_repeats_with_the_seed") {
  // One large element in each segment: a sample of 5 % sees it in about one segment of twenty.
  constexpr std::size_t kSegments = 2'000;
  std::vector<float> values(kSegments * 400, 1.0F);
  for (std::size_t s = 0; s < kSegments; ++s) values[s * 400 + 123] = 1e6F;
  // Every other element of the tensor pulls the median above the usual mean, so that only a seen element counts.
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 1.0F && i % 400 >= 200) values[i] = 1.5F;
  }
  const auto first = tag(values, ElementType::kFloat32, 1'600, 7);
  const auto again = tag(values, ElementType::kFloat32, 1'600, 7);
  const auto other = tag(values, ElementType::kFloat32, 1'600, 8);
  const auto important = [](const std::vector<SegmentTag>& tags) {
    return std::count_if(tags.begin(), tags.end(), [](SegmentTag t) { return t.is_important(); });
  };
  CHECK(std::equal(first.begin(), first.end(), again.begin(), [](auto a, auto b) { return a.bits == b.bits; }));
  CHECK_FALSE(std::equal(first.begin(), first.end(), other.begin(), [](auto a, auto b) { return a.bits == b.bits; }));
  CHECK(important(first) > static_cast<std::ptrdiff_t>(kSegments / 40));
  CHECK(important(first) < static_cast<std::ptrdiff_t>(kSegments / 10));
}

// ---- priority ------------------------------------------------------------------------------------------------------

TEST_CASE("class_of_layer__spreads_layers_evenly_front_first") {
  for (const std::uint32_t classes : {1U, 4U, 7U, 8U}) {
    for (const std::uint32_t layers : {1U, 3U, 7U, 8U, 50U, 1'000'000U}) {
      std::uint8_t last = 0;
      for (std::uint32_t i = 0; i < std::min(layers, 200U); ++i) {
        const std::uint8_t at = core::class_of_layer(i, layers, classes);
        CHECK(at == static_cast<std::uint8_t>(std::uint64_t{i} * classes / layers));
        CHECK(at >= last);
        last = at;
      }
      CHECK(core::class_of_layer(layers - 1, layers, classes) < classes);
      CHECK(core::class_of_layer(layers + 5, layers, classes) < classes);
    }
  }
  CHECK(core::class_of_layer(3, 0, 7) == 0);
}

TEST_CASE("segment_tag__critical_counts_as_important_and_goes_first") {
  const SegmentTag critical{SegmentTag::kCritical};
  const SegmentTag important = SegmentTag::important(5);
  const SegmentTag other{5};
  CHECK(critical.is_important());
  CHECK(critical.ecn() == base::Ecn::kEct0);
  CHECK(important.ecn() == base::Ecn::kEct0);
  CHECK(other.ecn() == base::Ecn::kNotEct);
  CHECK(critical.pass() < important.pass());
  CHECK(important.pass() < other.pass());
  CHECK(other.pass() < core::kPasses);
  CHECK(important.traffic_class() == 5);
}

TEST_CASE("dscp_map__default_keeps_control_apart_from_data_and_classes_apart") {
  const core::DscpMap map;
  for (std::size_t i = 0; i < map.data_classes; ++i) {
    CHECK(map.data[i] < 64);
    CHECK(map.data[i] != map.control);
    for (std::size_t j = 0; j < i; ++j) CHECK(map.data[i] != map.data[j]);
  }
}
