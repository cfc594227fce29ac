// Round trip, rate and pacing, each alone: plain arithmetic over time that the test makes up.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "core/pacer.h"
#include "core/peer.h"
#include "core/rtt_estimator.h"
#include "core/timely.h"

using namespace mlt;
using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using base::TimeNs;

// ---- round trip ----------------------------------------------------------------------------------------------------

TEST_CASE("rtt_estimator__timeout_before_the_first_sample_and_after_steady_ones") {
  core::RttEstimator rtt;
  CHECK(rtt.timeout_ns(0) == core::RttEstimator::kInitialNs);
  for (int i = 0; i < 100; ++i) rtt.on_sample(kMillisecond);
  CHECK(rtt.smoothed_ns() == kMillisecond);
  CHECK(rtt.timeout_ns(0) >= kMillisecond);
  CHECK(rtt.timeout_ns(0) < kMillisecond + 100 * kMicrosecond);
}

TEST_CASE("rtt_estimator__timeout_doubles_within_its_limits") {
  core::RttEstimator rtt;
  rtt.on_sample(10 * kMicrosecond);
  CHECK(rtt.timeout_ns(0) == core::RttEstimator::kMinTimeoutNs);
  DurationNs last = 0;
  for (std::uint32_t repeats = 0; repeats < 100; ++repeats) {
    const DurationNs now = rtt.timeout_ns(repeats);
    CHECK(now >= last);
    CHECK(now <= core::RttEstimator::kMaxTimeoutNs);
    last = now;
  }
  CHECK(rtt.timeout_ns(1) == 2 * core::RttEstimator::kMinTimeoutNs);
  CHECK(last == core::RttEstimator::kMaxTimeoutNs);
  CHECK(rtt.timeout_ns(~std::uint32_t{0}) == core::RttEstimator::kMaxTimeoutNs);
}

TEST_CASE("rtt_estimator__the_longest_timeout_follows_the_smallest_sample_of_a_long_path") {
  core::RttEstimator rtt;
  for (int i = 0; i < 7; ++i) rtt.on_sample(100 * kMillisecond);
  CHECK(rtt.timeout_ns(0) == core::RttEstimator::kMaxTimeoutNs);  // all may have been late by chance
  rtt.on_sample(100 * kMillisecond);
  CHECK(rtt.timeout_ns(0) > 100 * kMillisecond);
  CHECK(rtt.timeout_ns(9) == 400 * kMillisecond);
  rtt.on_sample(20 * kMillisecond);
  CHECK(rtt.timeout_ns(9) == 80 * kMillisecond);
  rtt.on_sample(kMillisecond);
  for (int i = 0; i < 50; ++i) rtt.on_sample(2 * kSecond);  // a busy host
  CHECK(rtt.timeout_ns(0) == core::RttEstimator::kMaxTimeoutNs);
  core::RttEstimator longest;
  for (int i = 0; i < 8; ++i) longest.on_sample(kSecond);
  CHECK(longest.timeout_ns(9) == core::RttEstimator::kMaxLongPathTimeoutNs);
}

TEST_CASE("rtt_estimator__a_lossless_path_waits_for_the_scheduler") {
  core::RttEstimator rtt(true);
  CHECK(rtt.timeout_ns(0) == core::RttEstimator::kMinLosslessTimeoutNs);
  for (int i = 0; i < 8; ++i) rtt.on_sample(10 * kMicrosecond);
  CHECK(rtt.timeout_ns(0) == core::RttEstimator::kMinLosslessTimeoutNs);
  CHECK(rtt.timeout_ns(1) == 2 * core::RttEstimator::kMinLosslessTimeoutNs);
  CHECK(rtt.timeout_ns(~std::uint32_t{0}) == core::RttEstimator::kMaxLosslessTimeoutNs);
  for (int i = 0; i < 50; ++i) rtt.on_sample(300 * kMillisecond);  // a service with that much work
  CHECK(rtt.timeout_ns(0) >= 300 * kMillisecond);
  CHECK(rtt.timeout_ns(9) == core::RttEstimator::kMaxLosslessTimeoutNs);
}

// ---- TIMELY --------------------------------------------------------------------------------------------------------

namespace {

core::TimelyConfig config_of(double line) {
  core::TimelyConfig config;
  config.line_rate_bytes_per_second = line;
  config.alpha_bytes_per_second = line / 100;
  return config;
}

}  // namespace

TEST_CASE("timely__starts_at_line_rate_and_never_exceeds_it") {
  core::Timely timely(config_of(1.25e9));
  CHECK(timely.rate_bytes_per_second() == 1.25e9);
  for (TimeNs now = 0; now < kMillisecond; now += 20 * kMicrosecond) timely.on_rtt_sample(now, 20 * kMicrosecond);
  CHECK(timely.rate_bytes_per_second() == 1.25e9);
}

TEST_CASE("timely__is_queued_from_the_low_threshold_on") {
  core::Timely timely(config_of(1.25e9));
  CHECK_FALSE(timely.is_queued());
  timely.on_rtt_sample(0, 20 * kMicrosecond);
  CHECK_FALSE(timely.is_queued());
  timely.on_rtt_sample(10 * kMillisecond, timely.low_threshold_ns() - 1);
  CHECK_FALSE(timely.is_queued());
  timely.on_rtt_sample(20 * kMillisecond, timely.high_threshold_ns());
  CHECK(timely.is_queued());
}

TEST_CASE("timely__above_the_high_threshold_decreases_whatever_the_gradient") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 20 * kMicrosecond);
  // Rising to a peak, then falling: negative gradient, still far too high.
  TimeNs now = 10 * kMillisecond;
  timely.on_rtt_sample(now, 600 * kMicrosecond);
  const double after_peak = timely.rate_bytes_per_second();
  CHECK(after_peak < 1.25e9);
  for (DurationNs rtt = 590 * kMicrosecond; rtt > 550 * kMicrosecond; rtt -= 10 * kMicrosecond) {
    const double before = timely.rate_bytes_per_second();
    REQUIRE(rtt > timely.high_threshold_ns());  // it moves with the rate
    now += 10 * kMillisecond;
    timely.on_rtt_sample(now, rtt);
    CHECK(timely.rate_bytes_per_second() < before);
    // rate * (1 - beta * (1 - T_high / rtt)), never below 1 - beta of it.
    CHECK(timely.rate_bytes_per_second() >= before * 0.2 * 0.999);
  }
}

TEST_CASE("timely__below_the_low_threshold_increases_by_alpha") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 20 * kMicrosecond);
  timely.on_rtt_sample(10 * kMillisecond, 10 * kMillisecond);
  timely.on_rtt_sample(20 * kMillisecond, 20 * kMicrosecond);
  const double low = timely.rate_bytes_per_second();
  timely.on_rtt_sample(21 * kMillisecond, 20 * kMicrosecond);
  CHECK(timely.rate_bytes_per_second() == doctest::Approx(low + 1.25e7));
  core::TimelyConfig config = config_of(1.25e9);
  config.alpha_bytes_per_second = 0;  // the default: without a queue, a two-hundredth of the line rate
  core::Timely scaled(config);
  scaled.on_rtt_sample(0, 20 * kMicrosecond);
  scaled.on_rtt_sample(10 * kMillisecond, 10 * kMillisecond);
  const double before = scaled.rate_bytes_per_second();
  scaled.on_rtt_sample(20 * kMillisecond, 20 * kMicrosecond);
  CHECK(scaled.rate_bytes_per_second() == doctest::Approx(before + 6.25e6));
}

TEST_CASE("timely__between_the_thresholds_follows_the_gradient") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 100 * kMicrosecond);
  const DurationNs middle = (timely.low_threshold_ns() + timely.high_threshold_ns()) / 2;
  // Rising.
  timely.on_rtt_sample(kMillisecond, middle);
  const double risen = timely.rate_bytes_per_second();
  CHECK(risen < 1.25e9);
  // Falling, for long enough to turn the smoothed gradient.
  TimeNs now = kMillisecond;
  DurationNs rtt = middle;
  while (rtt > timely.low_threshold_ns() + 8 * kMicrosecond) {
    rtt -= 4 * kMicrosecond;
    now += kMillisecond;
    timely.on_rtt_sample(now, rtt);
  }
  const double before = timely.rate_bytes_per_second();
  timely.on_rtt_sample(now + kMillisecond, rtt - 2 * kMicrosecond);
  CHECK(timely.rate_bytes_per_second() > before);
}

TEST_CASE("timely__alpha_is_added_once_per_round_trip_however_many_samples_come") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 20 * kMicrosecond);
  timely.on_rtt_sample(10 * kMillisecond, 10 * kMillisecond);  // down, so that there is room to rise
  const double low = timely.rate_bytes_per_second();
  TimeNs now = 20 * kMillisecond;
  timely.on_rtt_sample(now, 20 * kMicrosecond);
  const double once = timely.rate_bytes_per_second();
  CHECK(once == doctest::Approx(low + 1.25e7));
  for (int sample = 0; sample < 10; ++sample) timely.on_rtt_sample(now += 2 * kMicrosecond, 20 * kMicrosecond);
  CHECK(timely.rate_bytes_per_second() == doctest::Approx(once + 1.25e7));
  // A batch of ACKs read at one moment speaks for no time at all.
  for (int sample = 0; sample < 10; ++sample) timely.on_rtt_sample(now, 20 * kMicrosecond);
  CHECK(timely.rate_bytes_per_second() == doctest::Approx(once + 1.25e7));
}

TEST_CASE("timely__hyper_active_increase_after_n_falling_samples") {
  const auto rises = [](std::uint32_t after) {
    core::TimelyConfig config = config_of(1.25e9);
    config.hyper_active_after = after;
    core::Timely timely(config);
    timely.on_rtt_sample(0, 100 * kMicrosecond);
    timely.on_rtt_sample(10 * kMillisecond, 10 * kMillisecond);  // down, so that there is room to rise
    // Falling by steps that saturate the gradient, inside the middle band: each sample adds alpha, or N of it.
    std::vector<double> steps;
    TimeNs now = 20 * kMillisecond;
    DurationNs rtt = timely.high_threshold_ns() - kMicrosecond;
    while (rtt > timely.low_threshold_ns() && steps.size() < 8) {
      const double before = timely.rate_bytes_per_second();
      timely.on_rtt_sample(now, rtt);
      steps.push_back((timely.rate_bytes_per_second() - before) / 1.25e7);
      now += kMillisecond;
      rtt -= 10 * kMicrosecond;
    }
    REQUIRE(steps.size() == 8);
    return steps;
  };
  for (const double step : rises(0)) CHECK(step == doctest::Approx(1));
  const std::vector<double> steps = rises(5);
  for (std::size_t i = 0; i < steps.size(); ++i) CHECK(steps[i] == doctest::Approx(i < 4 ? 1 : 5));
}

TEST_CASE("timely__decreases_at_most_once_per_round_trip") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 20 * kMicrosecond);
  const TimeNs now = 5 * kMillisecond;
  timely.on_rtt_sample(now, 2 * kMillisecond);
  const double once = timely.rate_bytes_per_second();
  for (TimeNs later = now; later < now + 2 * kMillisecond; later += 10 * kMicrosecond) {
    timely.on_rtt_sample(later, 2 * kMillisecond);
  }
  CHECK(timely.rate_bytes_per_second() == once);
  timely.on_rtt_sample(now + 2 * kMillisecond, 2 * kMillisecond);
  CHECK(timely.rate_bytes_per_second() < once);
}

TEST_CASE("timely__never_falls_below_its_floor") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 20 * kMicrosecond);
  for (TimeNs now = kSecond; now < 1'900 * kMillisecond; now += 40 * kMillisecond)
    timely.on_rtt_sample(now, 30 * kMillisecond);
  CHECK(timely.rate_bytes_per_second() >= 1.25e6);
  core::TimelyConfig config = config_of(1.25e9);
  config.min_rate_bytes_per_second = 5e8;
  core::Timely bounded(config);
  bounded.on_rtt_sample(0, 20 * kMicrosecond);
  for (TimeNs now = kSecond; now < 1'900 * kMillisecond; now += 40 * kMillisecond)
    bounded.on_rtt_sample(now, 30 * kMillisecond);
  CHECK(bounded.rate_bytes_per_second() == 5e8);
}

TEST_CASE("timely__thresholds_are_never_below_a_few_packets_and_a_run") {
  // 200 Mbit/s: a packet takes 60 us, and thresholds of 12.5 and 125 us would mean nothing.
  core::Timely slow(config_of(2.5e7));
  slow.on_rtt_sample(0, 100 * kMicrosecond);
  CHECK(slow.low_threshold_ns() - slow.base_rtt_ns() >= 3 * 60 * kMicrosecond);
  CHECK(slow.high_threshold_ns() - slow.base_rtt_ns() >= 30 * 60 * kMicrosecond);
  core::Timely fast(config_of(1.25e10));
  fast.on_rtt_sample(0, 100 * kMicrosecond);
  const DurationNs run = base::serialisation_ns(base::kMaxRunBytes, 1.25e10);
  CHECK(fast.low_threshold_ns() == fast.base_rtt_ns() + run + 12'500);
  CHECK(fast.high_threshold_ns() == fast.base_rtt_ns() + run + 125'000);
}

TEST_CASE("timely__base_is_the_smallest_of_the_last_windows_and_forgets_older_ones") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(0, 10 * kMicrosecond);
  timely.on_rtt_sample(kSecond, 50 * kMicrosecond);
  CHECK(timely.base_rtt_ns() == 10 * kMicrosecond);
  // The route changed for good: after two windows the old minimum is gone.
  for (TimeNs now = 2 * kSecond; now < 25 * kSecond; now += 100 * kMillisecond) {
    timely.on_rtt_sample(now, 80 * kMicrosecond);
  }
  CHECK(timely.base_rtt_ns() == 80 * kMicrosecond);
}

namespace {

// A sample every millisecond, each as long as `rtt_at` says.
template <typename RttAt>
void sample(core::Timely& timely, TimeNs from, TimeNs until, RttAt rtt_at) {
  for (TimeNs now = from; now < until; now += kMillisecond) timely.on_rtt_sample(now, rtt_at(now));
}

}  // namespace

TEST_CASE("timely__a_queue_that_stands_while_it_yields_is_anothers_and_counts_as_base") {
  core::Timely timely(config_of(1.25e7));
  timely.on_rtt_sample(kSecond, 300 * kMicrosecond);
  // TCP fills 512 KiB at 100 Mbit/s, whatever this flow does.
  bool yielded = false;
  double least = timely.rate_bytes_per_second();
  sample(timely, kSecond, 3 * kSecond, [&](TimeNs now) {
    yielded = yielded || (now > kSecond && timely.rate_bytes_per_second() < least / 2);
    least = std::min(least, timely.rate_bytes_per_second());
    return 40 * kMillisecond;
  });
  CHECK(yielded);
  CHECK(timely.base_rtt_ns() == 40 * kMillisecond);
  // It varies by what CUBIC gives way after a loss.
  const double stands = 40e6 - 0.3e6;
  CHECK(static_cast<double>(timely.low_threshold_ns()) >= 40e6 + 0.3 * stands);
  CHECK(static_cast<double>(timely.high_threshold_ns()) >= 40e6 + 0.5 * stands);
  // A shorter round trip lowers the base at once; an empty queue brings the true one back.
  timely.on_rtt_sample(3 * kSecond, 30 * kMillisecond);
  CHECK(timely.base_rtt_ns() == 30 * kMillisecond);
  timely.on_rtt_sample(3 * kSecond + kMillisecond, 2 * kMillisecond);
  CHECK(timely.base_rtt_ns() == 300 * kMicrosecond);
}

TEST_CASE("timely__a_queue_that_empties_while_it_yields_is_its_own_kinds") {
  core::Timely timely(config_of(1.25e7));
  timely.on_rtt_sample(kSecond, 300 * kMicrosecond);
  // Others yield at the same time; before and after, the queue is full.
  double usual = 0;
  bool emptied = false;
  sample(timely, kSecond, 3 * kSecond, [&](TimeNs now) {
    const double rate = timely.rate_bytes_per_second();
    const bool yields = now > 1'300 * kMillisecond && rate < usual / 2;
    if (!yields) usual = rate;
    emptied = emptied || yields;
    return yields ? kMillisecond : 10 * kMillisecond;
  });
  CHECK(emptied);
  CHECK(timely.base_rtt_ns() == 300 * kMicrosecond);
}

TEST_CASE("timely__one_short_round_trip_in_250_ms_shows_that_no_queue_stands") {
  core::Timely timely(config_of(1.25e7));
  timely.on_rtt_sample(kSecond, 300 * kMicrosecond);
  sample(timely, kSecond, 9 * kSecond,
         [](TimeNs now) { return now % (200 * kMillisecond) == 0 ? 2 * kMillisecond : 5 * kMillisecond; });
  CHECK(timely.base_rtt_ns() == 300 * kMicrosecond);
}

TEST_CASE("timely__time_without_samples_is_no_standing_queue") {
  core::Timely timely(config_of(1.25e7));
  timely.on_rtt_sample(kSecond, 300 * kMicrosecond);
  for (TimeNs now = kSecond; now < 9 * kSecond; now += 400 * kMillisecond) {
    timely.on_rtt_sample(now, 5 * kMillisecond);
  }
  CHECK(timely.base_rtt_ns() == 300 * kMicrosecond);
}

namespace {

// So many bytes a second arrive from `from` to `until`; a sample every 100 us.
void deliver(core::Timely& timely, TimeNs from, TimeNs until, double bytes_per_second, DurationNs rtt_ns) {
  for (TimeNs now = from; now < until; now += 100 * kMicrosecond) {
    timely.on_delivered(now, static_cast<std::uint64_t>(bytes_per_second * 1e-4));
    timely.on_rtt_sample(now, rtt_ns);
  }
}

}  // namespace

TEST_CASE("timely__above_the_high_threshold_comes_at_once_near_what_is_delivered") {
  core::Timely timely(config_of(1.25e10));
  timely.on_rtt_sample(kSecond, 20 * kMicrosecond);
  // A port of 200 Mbit/s queues 4 ms of what came at 100 Gbit/s.
  deliver(timely, kSecond, kSecond + 9 * kMillisecond, 2.5e7, 4 * kMillisecond);
  CHECK(timely.rate_bytes_per_second() <= 2 * 2.5e7 * 1.01);
  // The queue is still there, and round trips say so; sending less than half of the port's rate has no use.
  deliver(timely, kSecond + 9 * kMillisecond, kSecond + 100 * kMillisecond, 2.5e7, 40 * kMillisecond);
  CHECK(timely.rate_bytes_per_second() >= 2.5e7 / 2 * 0.9);
}

TEST_CASE("timely__a_flow_whose_packets_were_dropped_keeps_30_packets_per_queueing_delay") {
  core::Timely timely(config_of(1.25e10));
  timely.on_rtt_sample(kSecond, 20 * kMicrosecond);
  deliver(timely, kSecond, kSecond + 9 * kMillisecond, 1e5, 4 * kMillisecond);
  // Less some decreases between the thresholds, which come after it.
  CHECK(timely.rate_bytes_per_second() >= 30 * 1'500 / 0.004 / 2);
}

TEST_CASE("timely__a_flow_that_sends_little_or_loses_much_is_not_limited") {
  for (const double part : {0.01, 0.5, 1.0}) {
    for (const bool short_messages : {false, true}) {
      CAPTURE(part);
      CAPTURE(short_messages);
      core::Timely timely(config_of(1.25e9));
      timely.on_rtt_sample(kSecond, 20 * kMicrosecond);
      deliver(timely, kSecond, kSecond + 50 * kMillisecond, 1e7, 10 * kMillisecond);
      const double low = timely.rate_bytes_per_second();
      REQUIRE(low < 1e8);
      // The queue is gone.
      for (TimeNs now = 2 * kSecond; now < 2 * kSecond + 300 * kMillisecond; now += 100 * kMicrosecond) {
        if (short_messages) timely.on_resumed();
        timely.on_delivered(now, static_cast<std::uint64_t>(part * timely.rate_bytes_per_second() * 1e-4));
        timely.on_rtt_sample(now, 20 * kMicrosecond);
      }
      CHECK(timely.rate_bytes_per_second() == 1.25e9);
    }
  }
}

TEST_CASE("timely__short_messages_are_not_excused_by_what_was_delivered_once") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(kSecond, 20 * kMicrosecond);
  deliver(timely, kSecond, kSecond + 50 * kMillisecond, 1.2e9, 20 * kMicrosecond);
  // Then messages that end before a window does, into a queue of 10 ms.
  for (TimeNs now = 2 * kSecond; now < 2'300 * kMillisecond; now += kMillisecond) {
    timely.on_resumed();
    timely.on_delivered(now, 10'000);
    timely.on_rtt_sample(now, 10 * kMillisecond);
  }
  CHECK(timely.rate_bytes_per_second() < 1e7);
}

TEST_CASE("timely__between_the_thresholds_leaves_most_of_what_is_delivered") {
  core::Timely timely(config_of(1.25e9));
  timely.on_rtt_sample(kSecond, 20 * kMicrosecond);
  const DurationNs middle = timely.high_threshold_ns() - 10 * kMicrosecond;
  deliver(timely, kSecond, 2 * kSecond, 1e9, middle);
  CHECK(timely.rate_bytes_per_second() >= 0.85 * 1e9 * 0.99);
}

// ---- delivery rate -------------------------------------------------------------------------------------------------

// Packets leave 100 us apart; each time, what left during `held` arrives together, so that delay falls as time passes.
void hold_and_release(core::Timely& timely, TimeNs& sent, DurationNs base, DurationNs held, int times) {
  for (int i = 0; i < times; ++i) {
    for (DurationNs late = held; late >= 0; late -= 100 * kMicrosecond, sent += 100 * kMicrosecond) {
      timely.on_rtt_sample(sent + base + late, base + late);
    }
  }
}

TEST_CASE("timely__packets_that_something_holds_back_are_no_queue") {
  core::TimelyConfig config;
  config.line_rate_bytes_per_second = 1.25e9;
  core::Timely held(config);
  TimeNs sent = kMillisecond;
  held.on_rtt_sample(sent, 20 * kMicrosecond);
  const DurationNs before = held.high_threshold_ns() - held.base_rtt_ns();
  hold_and_release(held, sent, 20 * kMicrosecond, kMillisecond, 1'000);
  CHECK(held.low_threshold_ns() - held.base_rtt_ns() > 900 * kMicrosecond);
  CHECK(held.rate_bytes_per_second() == 1.25e9);
  // Once nothing is held back any more, the thresholds come down again.
  for (int i = 0; i < 1'000; ++i, sent += 100 * kMicrosecond) held.on_rtt_sample(sent, 20 * kMicrosecond);
  CHECK(held.high_threshold_ns() - held.base_rtt_ns() <= before + kMicrosecond);
}

TEST_CASE("timely__a_queue_that_empties_as_fast_as_this_flow_lets_it_is_no_jitter") {
  core::TimelyConfig config;
  config.line_rate_bytes_per_second = 1.25e9;
  core::Timely timely(config);
  TimeNs sent = kMillisecond;
  timely.on_rtt_sample(sent + 20 * kMicrosecond, 20 * kMicrosecond);
  for (int i = 0; i < 100; ++i) {
    // It fills and empties by nine tenths of the time between two departures, as with a tenth of the port's rate.
    for (const DurationNs step : {90 * kMicrosecond, -90 * kMicrosecond}) {
      DurationNs delay = step > 0 ? 0 : kMillisecond;
      for (int packet = 0; packet < 11; ++packet, delay += step, sent += 100 * kMicrosecond) {
        timely.on_rtt_sample(sent + 20 * kMicrosecond + delay, 20 * kMicrosecond + delay);
      }
    }
  }
  CHECK(timely.rate_bytes_per_second() < 1.25e9 / 2);
  CHECK(timely.low_threshold_ns() - timely.base_rtt_ns() < 900 * kMicrosecond);
}

TEST_CASE("delivery_rate__is_the_larger_of_two_windows_and_begins_anew_after_a_pause") {
  core::DeliveryRate rate;
  const auto report = [&rate](TimeNs at, std::uint64_t bytes) {
    rate.on_delivered(at, bytes);
    rate.end_window(kMillisecond);
    return rate.bytes_per_second();
  };
  CHECK(report(kSecond, 5'000) == 0);  // begins
  CHECK(report(kSecond + kMillisecond / 2, 1'000) == 0);
  CHECK(report(kSecond + kMillisecond, 1'000) == doctest::Approx(2e6));
  CHECK(report(kSecond + 2 * kMillisecond, 500) == doctest::Approx(2e6));
  CHECK(report(kSecond + 3 * kMillisecond, 500) == doctest::Approx(5e5));
  // A pause is no part of any window.
  rate.on_resumed();
  CHECK(report(kSecond + 9 * kMillisecond, 1'000) == doctest::Approx(5e5));
  CHECK(report(kSecond + 10 * kMillisecond, 3'000) == doctest::Approx(3e6));
  // After a long one nothing is known.
  rate.on_resumed();
  CHECK(report(2 * kSecond, 1'000) == 0);
  // What arrived in one batch after a pause of this host tells by when it arrived, not by when it was read.
  rate.on_delivered(2 * kSecond + kMillisecond, 1'000);
  rate.on_delivered(2 * kSecond + 2 * kMillisecond, 1'000);
  rate.end_window(kMillisecond);
  CHECK(rate.bytes_per_second() == doctest::Approx(1e6));
}

// ---- pacer ---------------------------------------------------------------------------------------------------------

TEST_CASE("pacer__keeps_the_mean_rate_even_if_woken_late") {
  base::Prng prng(4);
  core::Pacer pacer;
  const double rate = 1.25e8;
  TimeNs now = kSecond;
  const TimeNs start = now;
  std::uint64_t sent = 0;
  while (now < start + 100 * kMillisecond) {
    while (pacer.may_send(now)) {
      pacer.on_sent(now, 1'500, rate);
      sent += 1'500;
    }
    now = pacer.next_ns() + static_cast<TimeNs>(prng.below(100'000));  // late by up to 100 us
  }
  const double mean = static_cast<double>(sent) / (static_cast<double>(now - start) * 1e-9);
  CHECK(mean > 0.97 * rate);
  CHECK(mean < 1.03 * rate);
}

namespace {

// Bytes that leave at once, a second after the first.
std::uint64_t burst_after_a_second(double rate, bool is_awaited) {
  core::Pacer pacer;
  pacer.on_sent(0, 1'500, rate);
  const TimeNs now = kSecond;
  if (is_awaited) pacer.on_refused();
  std::uint64_t burst = 0;
  while (pacer.may_send(now)) {
    pacer.on_sent(now, 1'500, rate);
    burst += 1'500;
  }
  return burst;
}

}  // namespace

TEST_CASE("pacer__idle_time_is_not_saved_up") {
  CHECK(burst_after_a_second(1.25e8, false) == 25'500);
  CHECK(burst_after_a_second(25e6, false) == 9'000);
}

TEST_CASE("pacer__a_thread_that_lost_its_core_makes_up_for_20_packets") {
  CHECK(burst_after_a_second(1.25e9, true) == 250'500);
  CHECK(burst_after_a_second(25e6, true) == 31'500);
}

TEST_CASE("pacer__a_sender_that_has_made_up_for_a_late_thread_saves_up_no_idle_time") {
  core::Pacer pacer;
  const double rate = 25e6;
  pacer.on_sent(0, 1'500, rate);
  pacer.on_refused();
  TimeNs now = kMillisecond;
  for (int packet = 0; packet < 10; ++packet) {
    REQUIRE(pacer.may_send(now));
    pacer.on_sent(now, 1'500, rate);
  }
  pacer.on_idle();  // before it has made up for all
  now = kSecond;
  std::uint64_t burst = 0;
  while (pacer.may_send(now)) {
    pacer.on_sent(now, 1'500, rate);
    burst += 1'500;
  }
  CHECK(burst == 9'000);
}
