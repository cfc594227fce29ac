#include "io/control/liveness.h"

#include <doctest/doctest.h>

using namespace mlt;
using io::Liveness;
using io::LivenessLimits;

namespace {

constexpr base::DurationNs kBeat = base::kSecond / 2;
constexpr LivenessLimits kLimits{kBeat, 3 * base::kSecond, 0};
constexpr base::TimeNs kStart = 100 * base::kSecond;

Liveness up() {
  Liveness liveness;
  liveness.on_up(kStart);
  liveness.update(kStart, false, false);
  return liveness;
}

}  // namespace

TEST_CASE("liveness__nobody_watches_an_idle_peer_that_is_no_neighbour") {
  Liveness liveness = up();
  liveness.update(kStart + 60 * base::kSecond, false, false);
  CHECK(liveness.silent_at(kLimits) == base::kNever);
  CHECK(liveness.ask_at(kLimits) == base::kNever);
  CHECK(liveness.heartbeat_at(kLimits) == base::kNever);
}

TEST_CASE("liveness__silence_counts_from_when_the_peer_was_needed") {
  Liveness liveness = up();
  const base::TimeNs needed = kStart + 60 * base::kSecond;
  liveness.update(needed, false, true);
  CHECK(liveness.ask_at(kLimits) <= needed);  // nothing was heard for a minute
  CHECK(liveness.silent_at(kLimits) == needed + kLimits.dead_after_ns);
  liveness.update(needed + base::kSecond, false, true);
  CHECK(liveness.silent_at(kLimits) == needed + kLimits.dead_after_ns);
  liveness.on_heard(needed + base::kSecond);
  CHECK(liveness.silent_at(kLimits) == needed + base::kSecond + kLimits.dead_after_ns);
  liveness.update(needed + base::kSecond, false, false);
  CHECK(liveness.silent_at(kLimits) == base::kNever);
}

TEST_CASE("liveness__asks_again_every_two_periods_until_something_comes") {
  Liveness liveness = up();
  liveness.update(kStart, true, false);
  CHECK(liveness.ask_at(kLimits) == kStart + 2 * kBeat);
  liveness.on_asked(kStart + 2 * kBeat);
  CHECK(liveness.ask_at(kLimits) == kStart + 4 * kBeat);
  liveness.on_heard(kStart + 3 * kBeat);
  CHECK(liveness.ask_at(kLimits) == kStart + 5 * kBeat);
}

TEST_CASE("liveness__a_neighbour_gets_a_heartbeat_a_period_after_the_last_message") {
  Liveness liveness = up();
  liveness.update(kStart, true, false);
  CHECK(liveness.heartbeat_at(kLimits) == kStart + kBeat);
  liveness.on_message_sent(kStart + kBeat / 2);
  CHECK(liveness.heartbeat_at(kLimits) == kStart + kBeat / 2 + kBeat);
}

TEST_CASE("liveness__a_message_that_nothing_followed_is_a_reason_to_watch") {
  Liveness liveness = up();
  const base::TimeNs sent = kStart + 10 * base::kSecond;
  liveness.on_message_sent(sent);
  liveness.update(sent, false, false);
  CHECK(liveness.silent_at(kLimits) == sent + kLimits.dead_after_ns);
  liveness.on_heard(sent + 1);
  liveness.update(sent + 1, false, false);
  CHECK(!liveness.is_watched());
}

TEST_CASE("liveness__who_was_suspected_has_half_the_limit_to_answer_or_the_whole_since_it_was_heard") {
  Liveness liveness = up();
  const base::TimeNs told = kStart + 60 * base::kSecond;
  liveness.suspect(told, kLimits);
  liveness.update(told, false, false);
  CHECK(liveness.silent_at(kLimits) == told + kLimits.dead_after_ns / 2);
  liveness.on_heard(told + 1);
  liveness.update(told + 1, false, false);
  CHECK(!liveness.is_watched());
  liveness.suspect(told + 2, kLimits);
  liveness.update(told + 2, false, false);
  CHECK(liveness.silent_at(kLimits) == told + 1 + kLimits.dead_after_ns);
}

TEST_CASE("liveness__grace_after_coming_up_and_excuse_for_time_without_a_turn") {
  Liveness liveness = up();
  const LivenessLimits graceful{kBeat, 3 * base::kSecond, 20 * base::kSecond};
  liveness.update(kStart, true, false);
  CHECK(liveness.silent_at(graceful) == kStart + 20 * base::kSecond);
  liveness.excuse(kStart + 10 * base::kSecond, 9 * base::kSecond);
  CHECK(liveness.silent_at(kLimits) == kStart + 12 * base::kSecond);
}

TEST_CASE("liveness__a_host_that_acknowledges_postpones_silence_up_to_the_suspension_limit") {
  LivenessLimits limits = kLimits;
  limits.suspended_after_ns = 10 * base::kSecond;
  Liveness liveness = up();
  liveness.update(kStart, true, false);
  base::TimeNs now = liveness.silent_at(limits);
  CHECK(now == kStart + 3 * base::kSecond);
  CHECK(liveness.may_be_suspended(now, limits));
  // Looked at again when the last acknowledgement would be too old.
  liveness.on_acknowledged(now, base::kSecond, limits);
  CHECK(liveness.silent_at(limits) == now + 2 * base::kSecond);
  now = liveness.silent_at(limits);
  liveness.on_acknowledged(now, limits.dead_after_ns, limits);
  CHECK(liveness.silent_at(limits) > now);
  for (int i = 0; i < 4; ++i) liveness.on_acknowledged(now = liveness.silent_at(limits), 0, limits);
  CHECK(now == kStart + limits.suspended_after_ns);
  CHECK(!liveness.may_be_suspended(now, limits));
  CHECK(!liveness.may_be_suspended(kStart, kLimits));  // without such a limit
  liveness.on_heard(now);
  CHECK(liveness.silent_at(limits) == now + limits.dead_after_ns);
}

TEST_CASE("liveness__a_peer_that_this_side_was_told_of_has_only_what_its_datagrams_give") {
  LivenessLimits limits = kLimits;
  limits.suspended_after_ns = 10 * base::kSecond;
  Liveness liveness = up();
  liveness.update(kStart, true, false);
  const base::TimeNs told = kStart + 4 * base::kSecond;
  liveness.on_acknowledged(kStart + 3 * base::kSecond, 0, limits);
  CHECK(!liveness.is_suspected());
  liveness.suspect(told, limits);
  CHECK(liveness.is_suspected());
  CHECK(liveness.silent_at(limits) <= told + limits.dead_after_ns / 2);
  liveness.on_acknowledged(told, base::kSecond, limits);  // a datagram came a second ago
  CHECK(liveness.silent_at(limits) == told + limits.dead_after_ns - base::kSecond);
}
