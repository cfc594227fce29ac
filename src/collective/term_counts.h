// How many ranks' terms each element has where a rank combines terms of which some may be missing: runs of elements
// with the same number. A mean divides by it.
//
// Absent on purpose: push-pull, whose services count by segment while they add (collective/summation.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/event.h"

namespace mlt::collective {

struct ElementRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// What is missing from a receive of `bytes`: ascending, and neighbours joined.
std::vector<ElementRange> missing_elements(const core::Completion& completion, std::size_t bytes,
                                           std::uint32_t element_bytes);

class TermCounts {
 public:
  struct Run {
    std::uint32_t first = 0;  // element; the run ends where the next begins
    std::uint16_t terms = 0;
  };

  TermCounts() = default;
  TermCounts(std::uint32_t elements, std::uint16_t terms);

  // terms = change(terms, whether the element is in one of `missing`), which ascend and do not overlap.
  template <typename Change>
  void update(std::span<const ElementRange> missing, Change change);
  // take(first, count, terms) of each run.
  template <typename Take>
  void for_each(Take take) const;
  const std::vector<Run>& runs() const { return runs_; }

 private:
  void append(std::uint32_t first, std::uint16_t terms) {
    if (runs_.empty() || runs_.back().terms != terms) runs_.push_back({first, terms});
  }

  std::uint32_t elements_ = 0;
  std::vector<Run> runs_;  // ascending; the first begins at 0; none without elements
};

template <typename Change>
void TermCounts::update(std::span<const ElementRange> missing, Change change) {
  const std::vector<Run> before = std::exchange(runs_, {});
  std::size_t run = 0, range = 0;
  for (std::uint32_t at = 0; at < elements_;) {
    while (run + 1 < before.size() && before[run + 1].first <= at) ++run;
    while (range < missing.size() && missing[range].first + missing[range].count <= at) ++range;
    const bool is_missing = range < missing.size() && missing[range].first <= at;
    append(at, static_cast<std::uint16_t>(change(before[run].terms, is_missing)));
    std::uint32_t end = run + 1 < before.size() ? before[run + 1].first : elements_;
    if (range < missing.size()) {
      end = std::min(end, is_missing ? missing[range].first + missing[range].count : missing[range].first);
    }
    at = end;
  }
}

template <typename Take>
void TermCounts::for_each(Take take) const {
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::uint32_t end = i + 1 < runs_.size() ? runs_[i + 1].first : elements_;
    take(runs_[i].first, end - runs_[i].first, runs_[i].terms);
  }
}

}  // namespace mlt::collective
