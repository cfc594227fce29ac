#include "core/reply_wait.h"

#include <doctest/doctest.h>

namespace {

using namespace mlt;
using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using base::TimeNs;

constexpr DurationNs kWay = 40 * kMicrosecond;
constexpr DurationNs kAllowance = core::ReplyWait::kClockAllowanceNs;

// Replies of a peer whose clock is ahead by `ahead_ns`, and wraps after four seconds.
struct Replies {
  DurationNs wait(TimeNs made, DurationNs extra, DurationNs sure_ns = 0, std::uint32_t path = 0) {
    return wait_.on_reply(made + kWay + extra, path, static_cast<std::uint32_t>(made + ahead_ns), sure_ns).wait_ns;
  }
  core::ReplyWait wait_;
  DurationNs ahead_ns = 3 * kSecond;
};

}  // namespace

TEST_CASE("on_reply__waits_are_what_exceeds_the_smallest_of_late_whatever_the_clocks_say") {
  for (const DurationNs ahead : {DurationNs{0}, 3 * kSecond, -3 * kSecond}) {
    CAPTURE(ahead);
    Replies replies;
    replies.ahead_ns = ahead;
    TimeNs made = 5 * kSecond;
    CHECK(replies.wait(made, 300 * kMicrosecond) == 0);  // nothing to compare it with
    CHECK(replies.wait(made += kMillisecond, 0) == 0);
    CHECK(replies.wait(made += kMillisecond, 300 * kMicrosecond) == 300 * kMicrosecond - kAllowance);
    CHECK(replies.wait(made += kMillisecond, kAllowance) == 0);
  }
}

TEST_CASE("on_reply__a_longer_way_is_no_wait_for_long") {
  Replies replies;
  TimeNs made = kSecond;
  replies.wait(made, 0);
  DurationNs last = kSecond;
  for (; made < kSecond + 250 * kMillisecond; made += kMillisecond) last = replies.wait(made, kMillisecond);
  CHECK(last == 0);
  // Another path, and a pause, begin anew.
  CHECK(replies.wait(made += kMillisecond, 0) == 0);
  CHECK(replies.wait(made += kMillisecond, 2 * kMillisecond, 0, 1) == 0);
  CHECK(replies.wait(made += kMillisecond, 0, 0, 1) == 0);
  CHECK(replies.wait(made += kSecond, 2 * kMillisecond, 0, 1) == 0);
}

TEST_CASE("on_reply__clocks_that_drift_make_no_wait") {
  Replies replies;
  for (TimeNs made = kSecond; made < 20 * kSecond; made += 10 * kMillisecond) {
    replies.ahead_ns = -made / 11'000;  // 90 ppm too slow
    CHECK(replies.wait(made, 0) == 0);
  }
}

TEST_CASE("on_reply__of_replies_that_are_held_back_and_released_only_a_little_of_the_wait_counts") {
  Replies replies;
  constexpr DurationNs kSure = 100 * kMicrosecond;
  DurationNs longest = 0;
  TimeNs made = kSecond;
  for (int i = 0; i < 1'000; ++i) {
    for (DurationNs held = kMillisecond; held >= 0; held -= 100 * kMicrosecond) {
      longest = std::max(i < 100 ? 0 : longest, replies.wait(made += 100 * kMicrosecond, held, kSure));
    }
  }
  CHECK(longest == kSure);
  // A queue, which empties more slowly than time passes, hides nothing.
  for (int i = 0; i < 200; ++i) {
    for (DurationNs queued = kMillisecond; queued >= 0; queued -= 100 * kMicrosecond) {
      longest = std::max(i < 100 ? 0 : longest, replies.wait(made += 200 * kMicrosecond, queued, kSure));
    }
  }
  CHECK(longest > 900 * kMicrosecond);
}

TEST_CASE("on_reply__a_reply_that_does_not_say_when_it_was_made_did_not_wait") {
  core::ReplyWait wait;
  CHECK(wait.on_reply(kSecond, 0, 0, kSecond).wait_ns == 0);
  CHECK(wait.on_reply(2 * kSecond, 0, 0, kSecond).wait_ns == 0);
}
