#include "core/early_data_limit.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using mlt::core::EarlyDataLimit;
using mlt::core::SendState;

struct EarlyDataLimitWorld {
  EarlyDataLimitWorld() { limit.reset(1, 10, 3); }

  SendState& send(std::uint16_t peer = 1, std::uint32_t priority = 0) {
    SendState& state = sends.take();
    REQUIRE(state.machine.on(mlt::core::SendEvent::k_post, counters));
    state.request.peer = peer;
    state.request.order = priority;
    state.post_number = posts++;
    return state;
  }
  std::vector<SendState*> wake(std::uint16_t peer = 1) {
    std::vector<SendState*> woken;
    limit.wake(peer, [&](SendState& state) {
      CHECK_FALSE(state.waits_for_space);
      woken.push_back(&state);
    });
    return woken;
  }
  mlt::core::Usage usage(std::uint16_t peer = 1) {
    mlt::core::Usage usage;
    limit.add_usage(peer, usage);
    return usage;
  }

  mlt::core::Counters counters;
  mlt::core::TransferSlots<SendState> sends{16};
  EarlyDataLimit limit{3, sends};
  std::uint64_t posts = 0;
};

TEST_CASE("allowed__as_many_segments_and_transfers_as_the_peer_offered") {
  EarlyDataLimitWorld world;
  SendState &a = world.send(), &b = world.send(), &c = world.send(), &d = world.send();
  CHECK(world.limit.allowed(a) == 10);
  world.limit.count_sent(a, 4);
  world.limit.count_sent(b, 1);
  world.limit.count_sent(c, 1);
  CHECK(world.limit.allowed(a) == 4);
  CHECK(world.limit.allowed(d) == 0);  // a fourth transfer
  world.limit.count_sent(a, 4);
  CHECK(world.limit.allowed(a) == 0);
  CHECK(world.limit.allowed(world.send(2)) == 1);  // another peer, which offered nothing
  CHECK(world.usage().early_sent.used == 13);
  CHECK(world.usage().early_sent.limit == 13);
}

TEST_CASE("reset__takes_one_where_the_peer_offers_nothing") {
  EarlyDataLimitWorld world;
  world.limit.count_sent(world.send(), 9);
  world.limit.reset(1, 0, 0);
  SendState& state = world.send();
  CHECK(world.limit.allowed(state) == 1);
  world.limit.count_sent(state, 1);
  CHECK(world.limit.allowed(state) == 0);
  CHECK(world.limit.allowed(world.send()) == 0);
}

TEST_CASE("follow_window__uses_of_the_offer_what_the_path_needs") {
  EarlyDataLimitWorld world;
  world.limit.reset(1, 16'000, 100);
  SendState& state = world.send();
  CHECK(world.limit.allowed(state) == 2'000);  // an eighth
  CHECK(world.limit.follow_window(1, 5'000));
  CHECK(world.limit.allowed(state) == 5'000);
  CHECK_FALSE(world.limit.follow_window(1, 5'100));  // too small a step to wake a send for
  CHECK(world.limit.allowed(state) == 5'000);
  CHECK(world.limit.follow_window(1, ~std::uint64_t{0}));
  CHECK(world.limit.allowed(state) == 16'000);
  world.limit.count_sent(state, 9'000);
  CHECK_FALSE(world.limit.follow_window(1, 3'000));
  CHECK(world.limit.allowed(state) == 0);
  CHECK(world.limit.release(state));
  CHECK(world.limit.allowed(state) == 3'000);
  CHECK_FALSE(world.limit.follow_window(1, 0));
  CHECK(world.limit.allowed(state) == 2'000);
  CHECK(world.usage().early_sent.limit == 16'100);
  world.limit.reset(1, 1'000, 1);
  CHECK(world.limit.allowed(world.send()) == 256);
  world.limit.reset(1, 100, 1);  // small offers are used whatever the path
  CHECK(world.limit.allowed(world.send()) == 100);
  CHECK_FALSE(world.limit.follow_window(1, 5));
  CHECK(world.limit.allowed(world.send()) == 100);
}

TEST_CASE("release__makes_space_once") {
  EarlyDataLimitWorld world;
  SendState& state = world.send();
  CHECK_FALSE(world.limit.release(state));  // it sent nothing
  world.limit.count_sent(state, 10);
  CHECK(world.limit.release(state));
  CHECK_FALSE(world.limit.release(state));
  CHECK(world.usage().early_sent.used == 0);
  CHECK(world.limit.sends(1) == 0);
}

TEST_CASE("abandon__counts_the_data_for_good") {
  EarlyDataLimitWorld world;
  SendState& state = world.send();
  world.limit.abandon(state);  // it sent nothing
  CHECK(world.usage().early_sent.used == 0);
  world.limit.count_sent(state, 6);
  world.limit.abandon(state);
  CHECK(world.usage().early_sent.used == 0);  // not held for any send
  CHECK(world.limit.allowed(world.send()) == 4);
  SendState& ready = world.send();
  world.limit.count_sent(ready, 1);
  ready.receiver_ready = true;
  world.limit.abandon(ready);
  CHECK(world.usage().early_sent.used == 2);
}

TEST_CASE("wake__in_send_order_as_many_as_there_is_space_for") {
  EarlyDataLimitWorld world;
  SendState& first = world.send();
  world.limit.count_sent(first, 10);
  SendState &late = world.send(1, 7), &early = world.send(1, 3), &same = world.send(1, 3);
  CHECK(world.limit.wait(late) == 1);
  CHECK(world.limit.wait(early) == 2);
  CHECK(world.limit.wait(same) == 3);
  CHECK(world.limit.sends(1) == 4);
  CHECK(world.wake().empty());
  world.limit.release(first);
  world.limit.count_sent(first, 8);  // two segments and two transfers are left
  CHECK(world.wake() == std::vector<SendState*>{&early, &same});
  CHECK(late.waits_for_space);
  CHECK(world.limit.sends(1) == 2);
}

TEST_CASE("wake__no_new_transfer_beyond_their_number") {
  EarlyDataLimitWorld world;
  SendState &a = world.send(), &b = world.send(), &c = world.send();
  for (SendState* state : {&a, &b, &c}) world.limit.count_sent(*state, 1);
  SendState& fresh = world.send(1, 1);
  world.limit.wait(fresh);
  CHECK(world.wake().empty());
  world.limit.wait(a);  // has early data there: no further transfer
  CHECK(world.wake() == std::vector<SendState*>{&a});
  CHECK(fresh.waits_for_space);
}

TEST_CASE("stop_waiting__has_no_effect_on_a_send_that_does_not_wait") {
  EarlyDataLimitWorld world;
  SendState &a = world.send(), &b = world.send();
  world.limit.wait(a);
  world.limit.stop_waiting(b);
  CHECK(world.limit.sends(1) == 1);
  world.limit.stop_waiting(a);
  world.limit.stop_waiting(a);
  CHECK(world.limit.sends(1) == 0);
  CHECK(world.wake().empty());
}

}  // namespace
