#include "sim/event_heap.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using sim::EventHeap;
using sim::EventKind;

TEST_CASE("event_heap__orders_by_time_then_by_scheduling") {
  EventHeap heap;
  base::Prng prng(3);
  std::vector<std::pair<base::TimeNs, std::uint32_t>> expected;
  for (std::uint32_t i = 0; i < 5'000; ++i) {
    const auto at = static_cast<base::TimeNs>(prng.below(200));  // many equal times
    heap.push(at, EventKind::kAction, 0, i);
    expected.emplace_back(at, i);
  }
  std::stable_sort(expected.begin(), expected.end(), [](auto a, auto b) { return a.first < b.first; });
  for (const auto& [at, number] : expected) {
    REQUIRE_FALSE(heap.empty());
    CHECK(heap.next_at() == at);
    const sim::Event event = heap.pop();
    CHECK(event.at == at);
    CHECK(event.argument == number);
  }
  CHECK(heap.empty());
  CHECK(heap.next_at() == base::kNever);
}

TEST_CASE("event_heap__stays_ordered_while_it_is_used") {
  EventHeap heap;
  base::Prng prng(4);
  base::TimeNs now = 0;
  for (int i = 0; i < 20'000; ++i) {
    heap.push(now + static_cast<base::TimeNs>(prng.below(1'000)), EventKind::kTurn, 1, 2);
    if (prng.chance(0.6) && !heap.empty()) {
      const sim::Event event = heap.pop();
      CHECK(event.at >= now);
      now = event.at;
    }
  }
}
