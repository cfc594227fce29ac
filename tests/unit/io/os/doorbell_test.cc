#include "io/os/doorbell.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

using namespace mlt;

namespace {

template <typename Bell>
bool is_rung(const Bell& bell, int wait_ms) {
  pollfd ready{bell.fd(), POLLIN, 0};
  return ::poll(&ready, 1, wait_ms) == 1;
}

// Holds a ringer's write back, as if its thread had lost the CPU there, and runs others' steps before or after a read.
class SteppedDescriptor : public io::BellDescriptor {
 public:
  void write_one() {
    if (std::exchange(hold_next_write, false)) return;
    io::BellDescriptor::write_one();
  }
  void finish_held_write() { io::BellDescriptor::write_one(); }
  std::uint64_t read_all() {
    if (before_read) std::exchange(before_read, nullptr)();
    const std::uint64_t written = io::BellDescriptor::read_all();
    if (after_read) std::exchange(after_read, nullptr)();
    return written;
  }

  bool hold_next_write = false;
  std::function<void()> before_read, after_read;
};

struct SteppedBell : io::BasicDoorbell<SteppedDescriptor> {
  SteppedDescriptor& steps() { return descriptor_; }
};

}  // namespace

TEST_CASE("doorbell__writes_its_descriptor_once_until_it_is_armed_again") {
  io::Doorbell bell;
  REQUIRE(bell.is_open());
  CHECK(!is_rung(bell, 0));
  for (int i = 0; i < 3; ++i) bell.ring();
  CHECK(bell.rings() == 1);
  CHECK(is_rung(bell, 0));
  CHECK(is_rung(bell, 0));  // and stays readable
  bell.arm();
  CHECK(!is_rung(bell, 0));
  bell.arm();  // nothing to take out: it does not block, nor lose the next
  bell.ring();
  CHECK(is_rung(bell, 0));
  CHECK(bell.rings() == 2);
}

// One ringer loses its CPU before its write, and the sleeper arms again meanwhile. That write and a second ringer's
// then come while the sleeper is in arm(), on either side of its read.
TEST_CASE("doorbell__is_armed_again_wherever_a_late_write_and_another_ring_come") {
  enum Place { kBeforeRead, kAfterRead, kLater, kPlaces };
  for (int late = 0; late < kPlaces; ++late) {
    for (int second = 0; second < kPlaces; ++second) {
      CAPTURE(late);
      CAPTURE(second);
      SteppedBell bell;
      REQUIRE(bell.is_open());
      bell.steps().hold_next_write = true;
      bell.ring();
      bell.arm();
      CHECK(!is_rung(bell, 0));
      const auto others = [&, late, second](int place) {
        if (late == place) bell.steps().finish_held_write();
        if (second == place) bell.ring();
      };
      bell.steps().before_read = [&] { others(kBeforeRead); };
      bell.steps().after_read = [&] { others(kAfterRead); };
      bell.arm();
      others(kLater);
      CHECK(bell.rings() == 2);
      // What was published before here, the sleeper finds at its second look. What comes now must wake it.
      bell.ring();
      CHECK(is_rung(bell, 0));
      // No write stays behind to end every sleep, nor is a later ring lost.
      for (int i = 0; i < 2; ++i) bell.arm();
      CHECK(!is_rung(bell, 0));
      bell.ring();
      CHECK(is_rung(bell, 0));
    }
  }
}

// Three ringers give one sleeper turns, and each sleeps until its turn is taken. A lost wake-up is a sleep without end.
TEST_CASE("doorbell__loses_no_wake_up") {
  constexpr std::size_t kRingers = 3;
  constexpr int kTurns = 7'000;
  struct Ringer {
    io::Doorbell bell;
    std::atomic<int> given{0}, taken{0};
  };
  io::Doorbell bell;
  std::array<Ringer, kRingers> ringers;
  std::atomic<bool> lost{false};
  const auto give = [&](Ringer& me) {
    for (int turn = 1; turn <= kTurns && !lost.load(); ++turn) {
      me.given.store(turn);
      bell.ring();
      while (me.taken.load() < turn && !lost.load()) {
        me.bell.arm();
        if (me.taken.load() < turn && !is_rung(me.bell, 5'000)) lost.store(true);
      }
    }
  };
  std::array<std::thread, kRingers> threads;
  for (std::size_t i = 0; i < kRingers; ++i) threads[i] = std::thread([&, i] { give(ringers[i]); });
  std::size_t left = kRingers * kTurns;
  while (left > 0 && !lost.load()) {
    bell.arm();
    bool any = false;
    for (Ringer& ringer : ringers) {
      if (ringer.given.load() == ringer.taken.load()) continue;
      ringer.taken.fetch_add(1);
      ringer.bell.ring();
      --left;
      any = true;
    }
    if (!any && !is_rung(bell, 5'000)) lost.store(true);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!lost.load());
  CHECK(left == 0);
}
