#include "io/doorbell.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <thread>

using namespace mlt;

namespace {

bool is_rung(const io::Doorbell& bell, int wait_ms) {
  pollfd ready{bell.fd(), POLLIN, 0};
  return ::poll(&ready, 1, wait_ms) == 1;
}

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

// Two threads hand a number back and forth, each asleep while the other has it. A lost wake-up is a sleep without end.
TEST_CASE("doorbell__loses_no_wake_up") {
  constexpr int kTurns = 20'000;
  io::Doorbell bells[2];
  std::atomic<int> turn{0};
  bool lost[2] = {false, false};
  const auto play = [&](int me) {
    while (turn.load() < kTurns && !lost[me]) {
      bells[me].arm();
      if (turn.load() % 2 != me && turn.load() < kTurns) {
        lost[me] = !is_rung(bells[me], 5'000);
        continue;
      }
      if (turn.load() >= kTurns) break;
      turn.fetch_add(1);
      bells[1 - me].ring();
    }
    bells[1 - me].ring();
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  CHECK(!lost[0]);
  CHECK(!lost[1]);
  CHECK(turn.load() == kTurns);
}
