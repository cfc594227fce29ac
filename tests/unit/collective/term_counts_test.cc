// Counts of terms against a count for each element.
#include "collective/term_counts.h"

#include <doctest/doctest.h>

#include "base/prng.h"

using namespace mlt::collective;

namespace {

// One number for each element.
std::vector<std::uint16_t> spread(const TermCounts& counts) {
  std::vector<std::uint16_t> all;
  counts.for_each([&](std::uint32_t first, std::uint32_t count, std::uint16_t terms) {
    REQUIRE(first == all.size());
    REQUIRE(count > 0);
    all.insert(all.end(), count, terms);
  });
  return all;
}

std::vector<ElementRange> random_ranges(mlt::base::Prng& prng, std::uint32_t elements) {
  std::vector<ElementRange> ranges;
  for (std::uint32_t at = 0; at < elements;) {
    const auto gap = static_cast<std::uint32_t>(prng.below(12));
    const auto count = static_cast<std::uint32_t>(1 + prng.below(9));
    if (at + gap + count > elements) break;
    ranges.push_back({at + gap, count});
    at += gap + count;
  }
  return ranges;
}

}  // namespace

TEST_CASE("missing_elements__joins_neighbours_and_cuts_the_last_segment") {
  const std::vector<std::uint64_t> bitmap = {~std::uint64_t{0b1100110}};
  mlt::core::Completion completion;
  completion.segment_count = 7;
  completion.segment_bytes = 24;
  CHECK(missing_elements(completion, 150, 2).empty());
  completion.received_bitmap = bitmap;
  const auto missing = missing_elements(completion, 150, 2);
  REQUIRE(missing.size() == 2);
  CHECK(missing[0].first == 12);
  CHECK(missing[0].count == 24);
  CHECK(missing[1].first == 60);
  CHECK(missing[1].count == 15);
}

TEST_CASE("term_counts__are_those_of_a_count_for_each_element_whatever_is_missing") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto elements = static_cast<std::uint32_t>(prng.below(200));
    TermCounts counts(elements, 1);
    std::vector<std::uint16_t> model(elements, 1);
    for (std::uint16_t hop = 1; hop < 6; ++hop) {
      const auto missing = random_ranges(prng, elements);
      const auto change = [](std::uint32_t terms, bool is_missing) { return is_missing ? 1 : terms + 1; };
      counts.update(missing, change);
      std::size_t range = 0;
      for (std::uint32_t i = 0; i < elements; ++i) {
        while (range < missing.size() && missing[range].first + missing[range].count <= i) ++range;
        const bool is_missing = range < missing.size() && missing[range].first <= i;
        model[i] = static_cast<std::uint16_t>(change(model[i], is_missing));
      }
      REQUIRE(spread(counts) == model);
      for (std::size_t i = 1; i < counts.runs().size(); ++i) {
        REQUIRE(counts.runs()[i].terms != counts.runs()[i - 1].terms);
      }
    }
  }
}
