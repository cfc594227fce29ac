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
using core::SegmentPriority;
using wire::ElementType;

namespace {

template <typename T>
std::vector<SegmentPriority> tag(const std::vector<T>& values, ElementType element, std::uint32_t segment_bytes,
                                 std::uint64_t seed = 1, std::uint8_t traffic_class = 3) {
  const auto bytes = std::as_bytes(std::span(values));
  const SegmentGrid grid(static_cast<std::uint32_t>(bytes.size()), segment_bytes);
  std::vector<SegmentPriority> priorities(grid.count());
  core::MagnitudeClassifier(bytes, element, grid, traffic_class, seed, priorities).set(0, grid.count());
  return priorities;
}

std::size_t count_important(const std::vector<SegmentPriority>& priorities) {
  return static_cast<std::size_t>(
      std::count_if(priorities.begin(), priorities.end(), [](SegmentPriority t) { return t.is_important(); }));
}

bool same(const std::vector<SegmentPriority>& a, const std::vector<SegmentPriority>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto x, auto y) { return x.bits == y.bits; });
}

// Gradients as they are found: bell-shaped, with heavy tails, of scales that differ from row to row or layer to layer,
// in order; and what a sample might trip over.
struct Shape {
  const char* name;
  float (*value)(base::Prng& prng, std::size_t i, std::size_t count);
  double max_wrong;  // priorities that may differ from those of the whole tensor
};

float bell(base::Prng& prng) {  // near enough to normal
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += prng.uniform();
  return static_cast<float>(sum);
}

// A factor that stays the same for `length` elements.
float scale_of(std::size_t i, std::size_t length) {
  base::Prng prng(i / length);
  return std::exp(2 * bell(prng));
}

const Shape kShapes[] = {
    {"bell", [](base::Prng& prng, std::size_t, std::size_t) { return bell(prng); }, 0.2},
    {"heavy tails",
     [](base::Prng& prng, std::size_t, std::size_t) {
       return bell(prng) / static_cast<float>(std::pow(prng.uniform() + 1e-9, 0.7));
     },
     0.05},
    {"rows", [](base::Prng& prng, std::size_t i, std::size_t) { return scale_of(i, 1'024) * bell(prng); }, 0.06},
    {"layers",
     [](base::Prng& prng, std::size_t i, std::size_t count) {
       return bell(prng) * std::pow(10.0F, -4.0F * static_cast<float>(i * 12 / count) / 11.0F);
     },
     0.06},
    {"used one row in ten",
     [](base::Prng& prng, std::size_t i, std::size_t) { return i / 1'024 % 10 == 3 ? bell(prng) : 0.0F; }, 0.0},
    {"in order", [](base::Prng&, std::size_t i, std::size_t) { return static_cast<float>(i); }, 0.01},
    {"segments small and large in turn",
     [](base::Prng& prng, std::size_t i, std::size_t) { return (i / 358 % 2 == 0 ? 1.0F : 2.0F) + 0.05F * bell(prng); },
     0.0},
};

std::vector<float> fill(const Shape& shape, std::size_t count) {
  base::Prng prng(17);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = shape.value(prng, i, count);
  return values;
}

double exact_median(std::vector<float> values) {
  for (float& value : values) value = std::fabs(value);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

// How far the rank of `median` among the magnitudes is from the middle.
double rank_error(const std::vector<float>& values, float median) {
  std::size_t below = 0;
  std::size_t not_above = 0;
  for (const float value : values) {
    below += std::fabs(value) < median ? 1U : 0U;
    not_above += std::fabs(value) <= median ? 1U : 0U;
  }
  const double size = static_cast<double>(values.size());
  return std::max({0.0, static_cast<double>(below) / size - 0.5, 0.5 - static_cast<double>(not_above) / size});
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

void check_striped(const std::vector<SegmentPriority>& priorities) {
  REQUIRE(priorities.size() == 40);
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    CHECK(priorities[i].is_important() == (i % 2 == 1));
    CHECK(priorities[i].traffic_class() == 3);
    CHECK_FALSE(priorities[i].is_critical());
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

TEST_CASE("magnitude_classifier__finds_the_large_segments_of_every_floating_type") {
  check_striped(tag(striped<float>([](float v) { return v; }), ElementType::kFloat32, 1'600));
  check_striped(tag(striped<double>([](float v) { return static_cast<double>(v); }), ElementType::kFloat64, 3'200));
  check_striped(tag(striped<std::uint16_t>(to_half), ElementType::kFloat16, 800));
  check_striped(tag(striped<std::uint16_t>(to_bfloat), ElementType::kBfloat16, 800));
}

TEST_CASE("magnitude_classifier__half_precision_handles_zero_subnormal_infinite_and_not_a_number") {
  std::vector<std::uint16_t> values(8 * 400, to_half(0.5F));
  std::fill_n(values.begin(), 400, std::uint16_t{0});               // zeros
  std::fill_n(values.begin() + 400, 400, std::uint16_t{0x8001});    // the smallest negative subnormal
  std::fill_n(values.begin() + 800, 400, std::uint16_t{0x7C00});    // infinity
  std::fill_n(values.begin() + 1'200, 400, std::uint16_t{0x7E00});  // not a number
  const auto priorities = tag(values, ElementType::kFloat16, 800);
  CHECK_FALSE(priorities[0].is_important());
  CHECK_FALSE(priorities[1].is_important());
  for (std::size_t i = 2; i < 8; ++i) CHECK(priorities[i].is_important());
}

TEST_CASE("magnitude_classifier__never_singles_out_what_is_not_a_number") {
  std::vector<float> values = striped<float>([](float v) { return v; });
  for (int i = 0; i < 400; ++i) values[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 800; i < 1'200; ++i) values[static_cast<std::size_t>(i)] = std::numeric_limits<float>::infinity();
  auto priorities = tag(values, ElementType::kFloat32, 1'600);
  CHECK(priorities[0].is_important());
  CHECK(priorities[2].is_important());
  CHECK_FALSE(priorities[4].is_important());  // the others are classified as before
  CHECK(priorities[5].is_important());
  std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
  priorities = tag(values, ElementType::kFloat32, 1'600);
  CHECK(count_important(priorities) == priorities.size());
}

TEST_CASE("magnitude_classifier__all_equal_or_all_zero_is_all_important") {
  for (const float value : {0.0F, 1.0F, -2.5F}) {
    const auto priorities = tag(std::vector<float>(4'000, value), ElementType::kFloat32, 1'600);
    CHECK(count_important(priorities) == priorities.size());
  }
}

TEST_CASE("magnitude_classifier__integers_and_single_segments_are_important") {
  const auto integers = tag(std::vector<std::int32_t>(4'000, 1), ElementType::kInt32, 1'600);
  CHECK(std::all_of(integers.begin(), integers.end(), [](SegmentPriority t) { return t.is_important(); }));
  CHECK(tag(std::vector<float>(10, 0.0F), ElementType::kFloat32, 1'600)[0].is_important());
  CHECK(tag(std::vector<float>(), ElementType::kFloat32, 1'600)[0].is_important());
}

TEST_CASE("magnitude_classifier__the_last_segment_may_hold_a_single_element") {
  std::vector<float> values(401, 1.0F);
  values.back() = 100.0F;
  const auto priorities = tag(values, ElementType::kFloat32, 1'600);
  REQUIRE(priorities.size() == 2);
  CHECK(priorities[1].is_important());
}

TEST_CASE("magnitude_classifier__a_shorter_last_segment_is_sampled_all_over_too") {
  // Nearly a whole segment, whose first half is zero: one group alone would see nothing but zeros.
  constexpr std::size_t kWhole = 8'960 / sizeof(float);
  std::vector<float> values(10 * kWhole + kWhole - 16, 1.0F);
  std::fill_n(values.begin() + 10 * kWhole, kWhole / 2, 0.0F);
  std::fill(values.begin() + 10 * kWhole + kWhole / 2, values.end(), 1'000.0F);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto priorities = tag(values, ElementType::kFloat32, 8'960, seed);
    REQUIRE(priorities.size() == 11);
    CHECK(priorities[10].is_important());
  }
}

TEST_CASE("magnitude_classifier__looks_at_a_sample_and_repeats_with_the_seed") {
  // One large element in each segment: a sample of two groups of 16 in 400 sees it in about one segment of twelve.
  constexpr std::size_t kSegments = 2'000;
  std::vector<float> values(kSegments * 400, 1.0F);
  for (std::size_t s = 0; s < kSegments; ++s) values[s * 400 + 123] = 1e6F;
  // Three fifths of the tensor pull the median above the usual mean, so that only a seen element counts.
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 1.0F && i % 5 > 1) values[i] = 1.5F;
  }
  const auto first = tag(values, ElementType::kFloat32, 1'600, 7);
  CHECK(same(first, tag(values, ElementType::kFloat32, 1'600, 7)));
  CHECK_FALSE(same(first, tag(values, ElementType::kFloat32, 1'600, 8)));
  CHECK(count_important(first) > kSegments / 20);
  CHECK(count_important(first) < kSegments / 8);
}

TEST_CASE("magnitude_classifier__a_constant_tensor_is_all_important_whatever_its_sums_round_to") {
  for (const float value : {0.1F, 1e-20F, 3.3e7F, 1.0F / 3.0F}) {
    for (const std::uint32_t segment_bytes : {64U, 1'432U, 8'960U}) {
      CAPTURE(value);
      CAPTURE(segment_bytes);
      const auto priorities = tag(std::vector<float>(100'001, value), ElementType::kFloat32, segment_bytes);
      CHECK(count_important(priorities) == priorities.size());
    }
  }
}

TEST_CASE("magnitude_classifier__agrees_with_the_whole_tensor_as_far_as_a_sample_can") {
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.name);
    const std::vector<float> values = fill(shape, 1 << 20);
    const double median = exact_median(values);
    const auto priorities = tag(values, ElementType::kFloat32, 1'432);
    std::size_t wrong = 0;
    for (std::size_t s = 0; s < priorities.size(); ++s) {
      const std::size_t end = std::min(values.size(), (s + 1) * 358);
      double sum = 0;
      for (std::size_t i = s * 358; i < end; ++i) sum += static_cast<double>(std::fabs(values[i]));
      wrong +=
          priorities[s].is_important() != (sum >= median * static_cast<double>(end - s * 358) * (1 - 1e-6)) ? 1U : 0U;
    }
    CHECK(static_cast<double>(wrong) <= shape.max_wrong * static_cast<double>(priorities.size()));
  }
}

TEST_CASE("sampled_median__its_rank_is_within_three_percent_and_no_period_hides_from_it") {
  for (const std::size_t count : {30'000U, 1U << 18, 1U << 20}) {
    CAPTURE(count);
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.name);
      const std::vector<float> values = fill(shape, count);
      const double most = count < 100'000 ? 0.06 : 0.03;
      CHECK(rank_error(values, core::sampled_median(std::as_bytes(std::span(values)), ElementType::kFloat32, 5)) <
            most);
    }
    // As long as the parts that each sample is drawn from, a little longer, twice as long: 40 % of the tensor is 2.
    const std::size_t part = core::median_part(count);
    for (const std::size_t period : {part, part + 1, 2 * part}) {
      std::vector<float> values(count, 1.0F);
      for (std::size_t i = 0; i < count; ++i) values[i] = i % period * 10 < period * 4 ? 2.0F : 1.0F;
      CHECK(core::sampled_median(std::as_bytes(std::span(values)), ElementType::kFloat32, 5) == 1.0F);
    }
  }
}

TEST_CASE("sampled_median__of_few_elements_is_that_of_all_of_them") {
  const auto median = [](std::vector<float> values) {
    return core::sampled_median(std::as_bytes(std::span(values)), ElementType::kFloat32, 5);
  };
  CHECK(median({-3.0F}) == 3.0F);
  CHECK(median({1.0F, 2.0F, 9.0F}) == 2.0F);
  CHECK(median({9.0F, 1.0F, -2.0F}) == 2.0F);
}

TEST_CASE("median_part__leaves_no_more_samples_than_there_is_room_for_and_no_fewer_than_a_median_needs") {
  for (std::size_t elements = 1; elements < (std::size_t{1} << 31); elements += 1 + elements / 7) {
    CAPTURE(elements);
    const std::size_t samples = elements / core::median_part(elements);
    CHECK(samples <= core::kMaxMedianSamples);
    CHECK(samples >= std::min(elements, core::kMinMedianSamples));
  }
}

TEST_CASE("magnitude_classifier__the_same_priorities_in_any_order_and_portions") {
  const std::vector<float> values = fill(kShapes[2], 100'001);
  const auto bytes = std::as_bytes(std::span(values));
  for (const std::uint32_t segment_bytes : {8U, 56U, 64U, 136U, 1'432U, 8'960U}) {
    CAPTURE(segment_bytes);
    const SegmentGrid grid(static_cast<std::uint32_t>(bytes.size()), segment_bytes);
    const auto whole = tag(values, ElementType::kFloat32, segment_bytes);
    CHECK(count_important(whole) > 0);
    CHECK(count_important(whole) < whole.size());
    std::vector<SegmentPriority> priorities(grid.count());
    const core::MagnitudeClassifier classifier(bytes, ElementType::kFloat32, grid, 3, 1, priorities);
    for (std::uint32_t end = grid.count(), portion = 1; end > 0; portion = portion % 97 + 1) {
      const std::uint32_t count = std::min(end, portion);
      end -= count;
      classifier.set(end, count);
    }
    CHECK(same(whole, priorities));
  }
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
  const SegmentPriority critical{SegmentPriority::kCritical};
  const SegmentPriority important = SegmentPriority::important(5);
  const SegmentPriority other{5};
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
