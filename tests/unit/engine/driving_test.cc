#include "engine/driving.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/command_queue.h"
#include "engine/deadline.h"
#include "io/os/clock.h"
#include "support/soon.h"

using namespace mlt;
using engine::Driving;
using engine::Waiter;
using test::soon;

namespace {

using base::kSecond;

// A loop whose datagrams are the counts of a descriptor, each handled by `on_datagram` in a turn.
struct CountingLoop final : engine::DrivenLoop {
  bool step(bool) override {
    stepped_by.store(std::this_thread::get_id());
    const base::TimeNs now = io::monotonic_now();
    bool busy = commands.run(io::monotonic_now);
    std::uint64_t count = 0;
    if (::read(datagrams.get(), &count, sizeof count) == sizeof count) {
      busy = true;
      if (on_datagram) on_datagram();
    }
    if (due.load() <= now) {
      busy = true;
      due.store(base::kNever);
      if (on_due) on_due();
    }
    return busy;
  }
  bool run_posts() override {
    commands.run(io::monotonic_now);
    if (const auto hook = std::exchange(after_posts, nullptr)) hook();
    return false;
  }
  base::TimeNs next_timeout() const override { return due.load(); }
  bool datagrams_may_wait(base::TimeNs now) const override {
    return may_wait.load() && due.load() != base::kNever && now < due.load();
  }
  Descriptors descriptors() const override { return {datagrams.get(), -1}; }
  bool prepare_to_wait() override { return true; }
  bool has_posts() const override { return commands.has_waiting(); }
  bool has_operations() const override { return true; }

  void deliver() const {
    const std::uint64_t one = 1;
    REQUIRE(::write(datagrams.get(), &one, sizeof one) == sizeof one);
  }

  io::UniqueFd datagrams{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  engine::CommandQueue commands{100'000};
  std::function<void()> on_datagram;
  std::function<void()> on_due;
  std::function<void()> after_posts;  // once, with the lock
  std::atomic<base::TimeNs> due{base::kNever};
  std::atomic<bool> may_wait{false};
  std::atomic<std::thread::id> stepped_by{};
};

struct DrivingWorld {
  explicit DrivingWorld(base::DurationNs spin_bound_ns = 0)
      : driving(loop, spin_bound_ns), io_thread([this] { driving.run(); }) {}
  ~DrivingWorld() { close(); }
  void close() {
    driving.close();
    if (io_thread.joinable()) io_thread.join();
  }
  void post(engine::CommandQueue::Command command) {
    if (driving.try_begin_post()) {
      command(io::monotonic_now());
      driving.finish_post();
      return;
    }
    REQUIRE(loop.commands.push(std::move(command)));
    driving.run_queued();
  }

  CountingLoop loop;
  Driving driving;
  std::thread io_thread;
};

// Time for a thread to fall asleep, or for what must not happen: no event shows either.
void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST_CASE("driving__a_waiter_runs_the_turn_that_ends_its_wait") {
  DrivingWorld world;
  Waiter waiter;
  std::thread::id ended_by;
  world.loop.on_datagram = [&] {
    ended_by = std::this_thread::get_id();
    world.driving.notify(waiter);
  };
  std::thread sender([&] {
    // The I/O thread slept on the descriptors when the wait began: a datagram wakes it as well, and it may be first.
    soon([&] { return world.driving.counts().driven_by_waiters.load() == 1; });
    sleep_ms(20);
    world.loop.deliver();
  });
  CHECK(world.driving.wait(waiter, engine::deadline_after(5 * kSecond)));
  sender.join();
  CHECK(world.driving.counts().driven_by_waiters == 1);
}

TEST_CASE("driving__a_waiter_that_polls_offers_its_cpu_and_one_that_sleeps_need_not") {
  for (const bool polls : {false, true}) {
    DrivingWorld world(polls ? kSecond : 0);
    Waiter waiter;
    CHECK_FALSE(world.driving.wait(waiter, engine::deadline_after(20 * base::kMillisecond)));
    CHECK((world.driving.counts().yields > 0) == polls);
  }
}

TEST_CASE("driving__datagrams_that_may_wait_are_read_with_the_next_timer") {
  for (const bool waits : {false, true}) {
    DrivingWorld world;
    std::atomic<base::TimeNs> read_at{0};
    Waiter waiter;
    world.loop.on_datagram = [&] {
      read_at.store(io::monotonic_now());
      world.driving.notify(waiter);
    };
    const base::TimeNs due = io::monotonic_now() + 300 * base::kMillisecond;
    world.post([&](base::TimeNs) {
      world.loop.may_wait.store(true);
      world.loop.due.store(due);
    });
    std::thread sender([&] {
      sleep_ms(50);
      world.loop.deliver();
    });
    if (waits) CHECK(world.driving.wait(waiter, engine::deadline_after(5 * kSecond)));
    CHECK(soon([&] { return read_at.load() != 0; }));
    CHECK(read_at.load() >= due);
    sender.join();
    world.close();
  }
}

TEST_CASE("driving__what_is_queued_is_run_though_its_caller_did_not_get_the_lock") {
  DrivingWorld world;
  REQUIRE(soon([&] { return world.loop.stepped_by.load() != std::thread::id(); }));
  constexpr int kThreads = 4;
  constexpr int kCommands = 20'000;
  std::atomic<int> stranded{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kThreads; ++i) {
    callers.emplace_back([&] {
      for (int n = 0; n < kCommands && stranded == 0; ++n) {
        std::atomic<bool> ran{false};
        REQUIRE(world.loop.commands.push([&](base::TimeNs) { ran.store(true); }));
        world.driving.run_queued();
        // Nothing else wakes the I/O thread: the holder of the lock runs it, or no thread does.
        const base::TimeNs deadline = io::monotonic_now() + 2 * kSecond;
        while (!ran.load()) {
          if (io::monotonic_now() < deadline) continue;
          ++stranded;
          world.loop.deliver();
          while (!ran.load()) std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(stranded == 0);
}

TEST_CASE("driving__the_holder_of_the_lock_runs_what_is_queued_while_it_has_it") {
  DrivingWorld world;
  REQUIRE(soon([&] { return world.driving.counts().sleeps > 0; }));
  bool ran = false;
  world.loop.after_posts = [&] {
    std::thread([&] {
      REQUIRE(world.loop.commands.push([&](base::TimeNs) { ran = true; }));
      world.driving.run_queued();
      CHECK_FALSE(ran);
    }).join();
  };
  world.post([](base::TimeNs) {});
  CHECK(ran);  // no other thread is awake
}

TEST_CASE("driving__who_leaves_hands_the_seat_to_another_waiter") {
  DrivingWorld world;
  Waiter first;
  Waiter second;
  std::atomic<int> datagrams{0};
  world.loop.on_datagram = [&] { world.driving.notify(datagrams++ == 0 ? first : second); };
  std::thread one([&] { CHECK(world.driving.wait(first, engine::deadline_after(20 * kSecond))); });
  REQUIRE(soon([&] { return world.driving.counts().driven_by_waiters == 1; }));
  std::thread two([&] { CHECK(world.driving.wait(second, engine::deadline_after(20 * kSecond))); });
  sleep_ms(20);
  CHECK(world.driving.counts().driven_by_waiters == 1);  // the second only sleeps
  world.loop.deliver();
  one.join();
  CHECK(soon([&] { return world.driving.counts().driven_by_waiters == 2; }));
  world.loop.deliver();
  two.join();
}

TEST_CASE("driving__a_waiter_that_is_done_passes_the_seat_on_that_it_was_offered") {
  // All end at once, in any order: a thread that is left drives, and none waits for a free seat.
  DrivingWorld world;
  for (int round = 0; round < 200; ++round) {
    std::array<Waiter, 3> waiters;
    std::vector<std::thread> threads;
    for (Waiter& waiter : waiters) {
      threads.emplace_back([&] { CHECK(world.driving.wait(waiter, engine::deadline_after(20 * kSecond))); });
    }
    for (Waiter& waiter : waiters) world.driving.notify(waiter);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_CASE("driving__the_io_thread_takes_over_from_a_waiter_that_had_the_seat_for_long") {
  DrivingWorld world;
  Waiter waiter;
  CHECK_FALSE(world.driving.wait(waiter, engine::deadline_after(kSecond / 10)));  // it rests by then
  std::atomic<int> datagrams{0};
  world.loop.on_datagram = [&] { ++datagrams; };
  world.loop.deliver();
  CHECK(soon([&] { return datagrams == 1; }));
  CHECK(world.loop.stepped_by.load() == world.io_thread.get_id());
}

TEST_CASE("driving__the_io_thread_takes_over_after_a_lease_from_waits_that_were_short") {
  DrivingWorld world;
  std::atomic<int> datagrams{0};
  world.loop.on_datagram = [&] { ++datagrams; };
  for (int round = 0; round < 20; ++round) {
    Waiter waiter;
    for (int i = 0; i < 50; ++i) CHECK_FALSE(world.driving.wait(waiter, engine::deadline_after(0)));
    world.loop.deliver();
    CHECK(soon([&] { return datagrams == round + 1; }));
  }
}

TEST_CASE("driving__the_io_thread_takes_over_in_a_crowd_from_waits_short_and_long") {
  DrivingWorld world;
  world.post([&](base::TimeNs) { world.driving.set_crowded(true); });
  std::atomic<int> datagrams{0};
  world.loop.on_datagram = [&] { ++datagrams; };
  int round = 0;
  for (const base::DurationNs waited : {base::DurationNs{0}, kSecond / 500, kSecond / 50, kSecond / 10}) {
    CAPTURE(waited);
    Waiter waiter;
    CHECK_FALSE(world.driving.wait(waiter, engine::deadline_after(waited)));
    world.loop.deliver();
    CHECK(soon([&] { return datagrams == round + 1; }));
    ++round;
  }
}

TEST_CASE("driving__in_a_crowd_the_io_thread_looks_twice_at_a_wait_at_most") {
  DrivingWorld world;
  world.post([&](base::TimeNs) { world.driving.set_crowded(true); });
  constexpr std::uint64_t kWaits = 20;
  for (std::uint64_t i = 0; i < kWaits; ++i) {
    const std::uint64_t before = world.driving.counts().driven_by_waiters.load();
    std::thread waits([&] {
      Waiter waiter;
      CHECK_FALSE(world.driving.wait(waiter, engine::deadline_after(kSecond / 25)));
    });
    CHECK(soon([&] { return world.driving.counts().driven_by_waiters.load() > before; }));
    world.loop.deliver();  // wakes both
    waits.join();
  }
  // Once when it is woken, once when the seat has been taken for long, and some between two waits.
  CHECK(world.driving.counts().parks.load() <= 5 * kWaits / 2);
}

TEST_CASE("driving__in_a_crowd_a_timer_is_late_by_one_lease_after_waits") {
  DrivingWorld world;
  world.post([&](base::TimeNs) { world.driving.set_crowded(true); });
  std::atomic<base::TimeNs> handled{0};
  world.loop.on_due = [&] { handled.store(io::monotonic_now()); };
  const auto parks = [&] { return world.driving.counts().parks.load(); };
  const auto wait = [&](base::DurationNs waited) {
    Waiter waiter;
    CHECK_FALSE(world.driving.wait(waiter, engine::deadline_after(waited)));
  };
  std::vector<base::DurationNs> late;
  for (int attempt = 0; attempt < 12; ++attempt) {
    // Leases grow while waits follow each other. The last wait ends soon after the I/O thread has looked.
    for (const std::uint64_t first = parks(); parks() < first + 6;) {
      world.loop.deliver();
      wait(kSecond / 125);
    }
    for (const std::uint64_t last = parks(); parks() == last;) wait(kSecond / 1'000);
    handled = 0;
    const base::TimeNs due = io::monotonic_now();
    world.post([&](base::TimeNs) { world.loop.due.store(due); });
    CHECK(soon([&] { return handled.load() != 0; }));
    late.push_back(handled.load() - due);
  }
  // Not the worst: a busy host is late by itself.
  std::ranges::sort(late);
  CHECK(late[3] < kSecond / 1'000 * 11);
}

TEST_CASE("driving__a_post_wakes_a_sleeper_only_for_what_is_due_before_it_wakes_by_itself") {
  DrivingWorld world;
  Waiter waiter;
  std::atomic<int> notified{0};
  world.loop.on_due = [&] {
    world.driving.notify(waiter);
    ++notified;
  };
  int expected = 0;
  for (const bool has_waiter : {true, false}) {
    waiter.done = false;
    std::thread waits;
    if (has_waiter) {
      waits = std::thread([&] { CHECK(world.driving.wait(waiter, engine::deadline_after(20 * kSecond))); });
    }
    sleep_ms(30);
    const std::uint64_t wakes = world.driving.counts().wakes;
    for (int i = 0; i < 10; ++i) world.post([](base::TimeNs) {});
    CHECK(world.driving.counts().wakes == wakes);
    world.post([&](base::TimeNs now) { world.loop.due.store(now + 5 * base::kMillisecond); });
    ++expected;
    CHECK(soon([&] { return notified == expected; }));
    if (waits.joinable()) waits.join();
    sleep_ms(5);
  }
}

TEST_CASE("wait__ends_in_time_while_another_thread_drives_and_while_it_drives_itself") {
  DrivingWorld world;
  Waiter driver;
  std::thread drives([&] { CHECK(world.driving.wait(driver, engine::deadline_after(20 * kSecond))); });
  REQUIRE(soon([&] { return world.driving.counts().driven_by_waiters == 1; }));
  Waiter late;
  const base::TimeNs began = io::monotonic_now();
  CHECK_FALSE(world.driving.wait(late, engine::deadline_after(kSecond / 50)));
  CHECK(io::monotonic_now() - began >= kSecond / 50);
  world.driving.notify(driver);  // from a thread that does not drive, while it sleeps on the descriptors
  drives.join();
  CHECK_FALSE(world.driving.wait(late, engine::deadline_after(kSecond / 50)));
  CHECK(io::monotonic_now() - began < 5 * kSecond);
}

TEST_CASE("close__ends_all_driving_and_leaves_waiters_to_be_notified") {
  for (int round = 0; round < 20; ++round) {
    DrivingWorld world;
    std::array<Waiter, 3> waiters;
    std::vector<std::thread> threads;
    for (Waiter& waiter : waiters) {
      threads.emplace_back([&] { CHECK(world.driving.wait(waiter, std::nullopt)); });
    }
    if (round % 2 == 0) soon([&] { return world.driving.counts().driven_by_waiters > 0; });
    world.close();
    world.loop.stepped_by = std::thread::id();
    CHECK_FALSE(world.driving.try_begin_post());
    world.driving.poll();
    CHECK(world.loop.stepped_by.load() == std::thread::id());
    for (Waiter& waiter : waiters) world.driving.notify(waiter);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_CASE("adaptive_spin__follows_the_length_of_waits_within_its_bound") {
  constexpr base::DurationNs kBound = 50 * base::kMicrosecond;
  engine::AdaptiveSpin spin(kBound);
  CHECK(spin.window_ns() == kBound);
  for (int i = 0; i < 10; ++i) spin.ended(0, 10 * kBound, true, true);
  CHECK(spin.window_ns() == 0);
  CHECK_FALSE(spin.goes_on(1, 0, false));
  spin.ended(0, kBound / 2, false, true);
  CHECK(spin.window_ns() == engine::AdaptiveSpin::kFirstNs);
  for (int i = 0; i < 10; ++i) spin.ended(0, kBound, false, true);
  CHECK(spin.window_ns() == kBound);
  spin.ended(0, kBound / 2, true, false);
  CHECK(spin.window_ns() == kBound);
  CHECK(spin.won() == 1);
  CHECK(spin.lost() == 10);
}

TEST_CASE("adaptive_spin__rests_after_it_lost_its_cpu_and_not_for_a_brief_interruption") {
  constexpr base::DurationNs kLost = engine::Crowd::kLostCpuNs;
  constexpr base::DurationNs kRest = engine::Crowd::kRestNs;
  engine::AdaptiveSpin spin(base::kSecond);
  base::TimeNs now = base::kSecond;
  CHECK(spin.goes_on(now, 0, false));
  now += kLost;  // a parked I/O thread had a turn
  CHECK(spin.goes_on(now, kLost, true));
  now += kLost + 1;
  CHECK_FALSE(spin.goes_on(now, 2 * kLost + 1, true));
  CHECK_FALSE(spin.goes_on(now + kRest - 1, 0, false));
  CHECK(spin.goes_on(now + kRest, 0, false));
  // Work in between: the time since the last poll is no sign of other threads.
  CHECK(spin.goes_on(now + 2 * kRest, 0, false));
}

TEST_CASE("adaptive_spin__rests_after_it_lost_its_cpu_even_if_work_came_meanwhile") {
  constexpr base::DurationNs kLost = engine::Crowd::kLostCpuNs;
  constexpr base::DurationNs kRest = engine::Crowd::kRestNs;
  for (const bool is_lost : {false, true}) {
    CAPTURE(is_lost);
    engine::AdaptiveSpin spin(base::kSecond);
    base::TimeNs now = base::kSecond;
    CHECK(spin.goes_on(now, 0, false));
    now += is_lost ? kLost + 1 : kLost;
    spin.ended(now, kLost, true, false);
    CHECK(spin.goes_on(now, 0, false) != is_lost);
    CHECK(spin.goes_on(now + kRest - 1, 0, false) != is_lost);
    CHECK(spin.goes_on(now + kRest, 0, false));
    // It slept: how long that was says nothing.
    spin.ended(now + 2 * kRest, kRest, true, true);
    CHECK(spin.goes_on(now + 2 * kRest, 0, false));
  }
}

// Time without polling after the thread lost its CPU at `now`; `now` becomes the end of that.
base::DurationNs rest_after_loss(engine::AdaptiveSpin& spin, base::TimeNs& now) {
  CHECK(spin.goes_on(now, 0, false));
  now += engine::Crowd::kLostCpuNs + 1;
  const base::TimeNs begin = now;
  CHECK_FALSE(spin.goes_on(now, 0, true));
  while (!spin.goes_on(now, 0, false)) now += base::kMillisecond;
  return now - begin;
}

TEST_CASE("adaptive_spin__rests_longer_each_time_where_it_keeps_losing_its_cpu") {
  constexpr base::DurationNs kRest = engine::Crowd::kRestNs;
  engine::AdaptiveSpin spin(base::kSecond);
  base::TimeNs now = base::kSecond;
  CHECK(rest_after_loss(spin, now) == kRest);
  for (base::DurationNs rest = 2 * kRest; rest < engine::Crowd::kMaxRestNs; rest *= 2) {
    CHECK(rest_after_loss(spin, now) == rest);
  }
  for (int i = 0; i < 3; ++i) CHECK(rest_after_loss(spin, now) == engine::Crowd::kMaxRestNs);
  now += engine::Crowd::kSoon * engine::Crowd::kMaxRestNs;  // the others are gone
  CHECK(rest_after_loss(spin, now) == kRest);
}

// The peer was woken on the CPU of the thread that polls: its reply comes once that thread sleeps, however long it
// polls.
TEST_CASE("adaptive_spin__rests_where_the_peer_waits_for_the_cpu_of_the_polling_thread") {
  constexpr base::DurationNs kReply = engine::AdaptiveSpin::kReplyNs / 2;
  for (const bool wins_between : {false, true}) {
    CAPTURE(wins_between);
    engine::AdaptiveSpin spin(200 * base::kMicrosecond);
    base::TimeNs now = base::kSecond;
    int waits = 0;
    for (; waits < 100 && spin.goes_on(now, 0, false); ++waits) {
      const base::DurationNs idle = spin.window_ns() + kReply;
      spin.ended(now + idle, idle, true, true);
      now += idle;
      if (wins_between) spin.ended(now, base::kMicrosecond, true, false);
    }
    CHECK(waits >= 3);
    CHECK(waits <= 12);
    CHECK_FALSE(spin.goes_on(now + engine::Crowd::kRestNs - 1, 0, false));
    CHECK(spin.goes_on(now + engine::Crowd::kRestNs, 0, false));
  }
}

TEST_CASE("adaptive_spin__never_rests_from_waits_of_one_length_within_its_bound") {
  for (const base::DurationNs wait : {5, 60, 150, 199}) {
    CAPTURE(wait);
    engine::AdaptiveSpin spin(200 * base::kMicrosecond);
    for (int i = 0; i < 20; ++i) spin.ended(0, base::kSecond, false, true);  // closed: it grows again
    for (int i = 0; i < 200; ++i) {
      const base::DurationNs idle = wait * base::kMicrosecond;
      CHECK(spin.goes_on(base::kSecond, 0, false) == (spin.window_ns() > 0));
      const bool is_won = idle < spin.window_ns();
      spin.ended(0, idle, spin.window_ns() > 0, !is_won);
    }
    CHECK(spin.won() > 190);
  }
}

TEST_CASE("adaptive_spin__tries_again_after_a_while_and_never_with_a_bound_of_nothing") {
  engine::AdaptiveSpin spin(50 * base::kMicrosecond);
  engine::AdaptiveSpin off(0);
  std::uint32_t tried = 0;
  constexpr std::uint32_t kWaits = 10 * engine::AdaptiveSpin::kRestWaits;
  for (std::uint32_t i = 0; i < kWaits; ++i) {
    spin.ended(0, base::kSecond, false, true);
    off.ended(0, 1, false, false);
    tried += spin.window_ns() > 0;
    CHECK(off.window_ns() == 0);
  }
  CHECK(tried >= 5 * engine::AdaptiveSpin::kTrialWaits);
  CHECK(tried < kWaits / 4);
}

TEST_CASE("adaptive_spin__does_not_poll_in_a_crowd_and_goes_on_as_before_after_it") {
  engine::AdaptiveSpin spin(50 * base::kMicrosecond);
  const auto polls = [&] { return spin.goes_on(base::kSecond, 10 * base::kMicrosecond, false); };
  CHECK(polls());
  spin.set_crowded(true);
  for (std::uint32_t i = 0; i < 10 * engine::AdaptiveSpin::kRestWaits; ++i) {
    CHECK_FALSE(polls());
    spin.ended(base::kSecond, base::kSecond, false, true);
  }
  spin.set_crowded(false);
  CHECK(polls());
}
