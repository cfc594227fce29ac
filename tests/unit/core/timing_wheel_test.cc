#include "core/timing_wheel.h"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using base::kNever;
using base::TimeNs;

TEST_CASE("timing_wheel__agrees_with_an_ordered_set") {
  constexpr std::uint32_t kSlots = 200;
  for (const TimeNs start : {TimeNs{0}, TimeNs{1} << 31, TimeNs{0x3FFF'FFFF'FFFF'0000}}) {
    core::TimingWheel wheel(kSlots);
    std::map<std::uint32_t, TimeNs> armed;
    std::set<std::pair<TimeNs, std::uint32_t>> ordered;
    base::Prng prng(static_cast<std::uint64_t>(start) + 9);
    TimeNs now = start;
    const auto disarm = [&](std::uint32_t slot) {
      if (const auto found = armed.find(slot); found != armed.end()) {
        ordered.erase({found->second, slot});
        armed.erase(found);
      }
    };
    for (int step = 0; step < 200'000; ++step) {
      const auto slot = static_cast<std::uint32_t>(prng.below(kSlots));
      const std::uint64_t action = prng.below(10);
      if (action == 0) {
        wheel.cancel(slot);
        disarm(slot);
      } else if (action == 1) {
        wheel.set(slot, kNever);
        disarm(slot);
      } else if (action < 8) {
        // From the past to five minutes ahead, every order of magnitude.
        const auto delay = static_cast<TimeNs>(prng.below(std::uint64_t{1} << prng.below(39)));
        const TimeNs at = prng.chance(0.05) ? now - delay % 1'000'000 : now + delay;
        disarm(slot);
        wheel.set(slot, at);
        armed[slot] = at;
        ordered.insert({at, slot});
      } else {
        now += static_cast<TimeNs>(prng.below(std::uint64_t{1} << prng.below(36)));
        std::uint32_t due = 0;
        while (wheel.pop_due(now, due)) {
          REQUIRE(!ordered.empty());
          REQUIRE(due == ordered.begin()->second);
          REQUIRE(ordered.begin()->first <= now);
          disarm(due);
        }
        REQUIRE((ordered.empty() || ordered.begin()->first > now));
        REQUIRE(wheel.next() > now);
      }
      REQUIRE((ordered.empty() ? wheel.next() == kNever : wheel.next() <= ordered.begin()->first));
    }
  }
}

// A driver that asks for the next timeout after each call, and calls back only then, never finds one in the past.
TEST_CASE("timing_wheel__next_is_in_the_future_until_time_reaches_it") {
  core::TimingWheel wheel(50);
  base::Prng prng(3);
  TimeNs now = 1'000'000'000;
  std::uint32_t due = 0;
  for (int step = 0; step < 300'000; ++step) {
    now += static_cast<TimeNs>(prng.below(20'000));
    if (wheel.next() <= now) {
      while (wheel.pop_due(now, due)) {
      }
    }
    for (std::uint64_t i = prng.below(4); i > 0; --i) {
      const auto slot = static_cast<std::uint32_t>(prng.below(50));
      if (prng.chance(0.2)) {
        wheel.cancel(slot);
      } else {
        wheel.set(slot, now + 1 + static_cast<TimeNs>(prng.below(std::uint64_t{1} << prng.below(39))));
      }
    }
    REQUIRE(wheel.next() > now);
  }
}

TEST_CASE("timing_wheel__wakes_early_a_few_times_only") {
  for (const TimeNs delay : {TimeNs{1}, TimeNs{1'000'000}, TimeNs{300'000'000'000}, kNever - 2'000'000'000}) {
    core::TimingWheel wheel(4);
    TimeNs now = 1'234'567'890;
    std::uint32_t slot = 0;
    CHECK_FALSE(wheel.pop_due(now, slot));
    const TimeNs at = now + delay;
    wheel.set(3, at);
    int wakes = 0;
    while (!wheel.pop_due(now, slot)) {
      REQUIRE(wheel.next() > now);
      REQUIRE(wheel.next() <= at);
      now = wheel.next();
      REQUIRE(++wakes <= 11);
    }
    CHECK(slot == 3);
    CHECK(now == at);
    CHECK(wheel.next() == kNever);
  }
}

TEST_CASE("timing_wheel__ties_go_to_the_smaller_slot_and_past_times_come_first") {
  core::TimingWheel wheel(8);
  std::uint32_t slot = 0;
  CHECK_FALSE(wheel.pop_due(5'000'000, slot));  // the wheel has turned
  for (const std::uint32_t s : {6U, 2U, 4U}) wheel.set(s, 6'000'000);
  wheel.set(7, 1'000);  // long ago
  CHECK(wheel.next() == 1'000);
  std::vector<std::uint32_t> order;
  while (wheel.pop_due(7'000'000, slot)) order.push_back(slot);
  CHECK(order == std::vector<std::uint32_t>{7, 2, 4, 6});
}
