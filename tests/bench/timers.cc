// Nanoseconds of one re-arming, with the question for the next timeout and a look for what is due, of the two timer
// tables: support/timer_table.h (a heap, which the endpoint used before) and core/timing_wheel.h. Prints one JSON
// object per number of armed timers.
//
// The load is an endpoint's: most timers are operations that expire in minutes and are re-armed for a question in
// some hundred microseconds now and then; time passes by two microseconds per step.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "base/prng.h"
#include "core/timing_wheel.h"
#include "support/timer_table.h"

namespace {

using namespace mlt;

template <typename Timers>
double nanoseconds_per_step(std::uint32_t count) {
  constexpr int kSteps = 400'000;
  std::vector<double> rounds;
  for (int round = 0; round < 7; ++round) {
    Timers timers(count);
    base::Prng prng(7);
    base::TimeNs now = base::kSecond;
    std::uint32_t slot = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      timers.set(i, now + 300 * base::kSecond + static_cast<base::TimeNs>(prng.below(base::kSecond)));
    }
    std::uint64_t due = 0;
    base::TimeNs sum = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < kSteps; ++step) {
      const std::uint64_t drawn = prng.next();
      const auto which = static_cast<std::uint32_t>((drawn >> 32) % count);
      const bool soon = (drawn & 3U) == 0;
      timers.set(which, now + (soon ? 250 * base::kMicrosecond + static_cast<base::TimeNs>(drawn >> 8 & 0xFFFF)
                                    : 300 * base::kSecond + static_cast<base::TimeNs>(drawn >> 8 & 0xFFFFFF)));
      now += 2 * base::kMicrosecond;
      sum += timers.next() == base::kNever ? 0 : 1;
      while (timers.pop_due(now, slot)) {
        ++due;
        timers.set(slot, now + 300 * base::kSecond);
      }
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (due == 0 || sum == 0) return -1;  // the loop must not be optimised away
    rounds.push_back(took.count() / kSteps);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

}  // namespace

int main() {
  for (const std::uint32_t count : {32U, 1'000U, 10'000U}) {
    std::printf("{\"timers\": %u, \"heap_ns\": %.1f, \"wheel_ns\": %.1f}\n", count,
                nanoseconds_per_step<core::TimerTable>(count), nanoseconds_per_step<core::TimingWheel>(count));
  }
}
