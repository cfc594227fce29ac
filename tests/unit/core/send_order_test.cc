#include "core/send_order.h"

#include <doctest/doctest.h>

#include <list>
#include <vector>

namespace {

using namespace mlt;
using core::SegmentPriority;
using core::SendOrder;
using core::SendState;

struct SendOrderWorld {
  SendOrderWorld() : shared(config()), sends(shared.config.max_sends), order(shared, sends) {}
  static core::EndpointConfig config() {
    core::EndpointConfig config;
    config.peers = 5;
    config.max_sends = config.max_receives = 16;
    return config;
  }

  SendState& post(std::uint16_t peer, std::uint32_t segments = 4, std::uint32_t priority = 0) {
    SendState& state = sends.take();
    REQUIRE(state.machine.on(core::SendEvent::k_post, shared.counters));
    state.request.peer = peer;
    state.request.order = priority;
    state.grid = core::SegmentGrid(segments * 100, 100);
    state.pending = base::BitmapView(words.emplace_back(base::words_for_bits(segments)).data(), segments);
    state.pending.set_all();
    state.pending_count = segments;
    state.classified = segments;
    state.post_number = posts++;
    state.restart_passes();
    order.link(state);
    return state;
  }
  // The peers that are served, one call each, when every one has something to send.
  std::vector<std::uint16_t> served(int calls) {
    std::vector<std::uint16_t> served;
    for (int i = 0; i < calls; ++i) {
      REQUIRE(order.serve([&](std::uint16_t peer) {
        served.push_back(peer);
        return true;
      }));
    }
    return served;
  }
  // All segments of the send in the order in which they leave.
  std::vector<std::uint32_t> segments_of(SendState& state) {
    std::vector<std::uint32_t> found;
    std::uint32_t segment = 0;
    while (order.next_segment(state, segment)) {
      REQUIRE(state.pending.test(segment));
      state.pending.clear(segment);
      --state.pending_count;
      found.push_back(segment);
    }
    return found;
  }

  core::Shared shared;
  core::TransferSlots<SendState> sends;
  SendOrder order;
  std::list<std::vector<std::uint64_t>> words;
  std::uint64_t posts = 0;
};

TEST_CASE("serve__the_peers_with_work_in_turn") {
  SendOrderWorld world;
  CHECK_FALSE(world.order.serve([](std::uint16_t) { return true; }));
  world.post(1);
  SendState& second = world.post(2);
  world.post(4);
  CHECK(world.served(4) == std::vector<std::uint16_t>{1, 2, 4, 1});
  world.order.unlink(second);
  CHECK(world.served(3) == std::vector<std::uint16_t>{4, 1, 4});
}

TEST_CASE("serve__tries_every_peer_once_if_none_may_send") {
  SendOrderWorld world;
  for (const int peer : {1, 2, 4}) world.post(static_cast<std::uint16_t>(peer));
  world.served(1);
  std::vector<std::uint16_t> tried;
  CHECK_FALSE(world.order.serve([&](std::uint16_t peer) {
    tried.push_back(peer);
    return false;
  }));
  CHECK(tried == std::vector<std::uint16_t>{2, 4, 1});
}

TEST_CASE("link__puts_the_smallest_order_first_and_then_the_first_posted") {
  SendOrderWorld world;
  SendState& late = world.post(1, 4, 7);
  SendState& first = world.post(1, 4, 3);
  SendState& second = world.post(1, 4, 3);
  for (SendState* state : {&first, &second, &late}) {
    const std::uint32_t head = world.shared.peers[1].work_head;
    REQUIRE(head != core::kNil);
    CHECK(&world.sends[head] == state);
    world.order.unlink(*state);
    world.order.unlink(*state);  // no effect
  }
  CHECK(world.shared.peers[1].work_head == core::kNil);
  late.pending_count = 0;
  world.order.link(late);
  CHECK(world.shared.peers[1].work_head == core::kNil);  // nothing to send
}

TEST_CASE("next_segment__critical_then_important_then_the_rest") {
  SendOrderWorld world;
  const SegmentPriority plain{}, important = SegmentPriority::important(0), critical{SegmentPriority::kCritical};
  const std::vector<SegmentPriority> priorities{plain, important, critical, plain, critical, important};
  SendState& state = world.post(1, 6);
  state.request.priorities = priorities;
  state.critical_segments = 2;
  state.restart_passes();
  CHECK(world.segments_of(state) == std::vector<std::uint32_t>{2, 4, 1, 5, 0, 3});
}

TEST_CASE("next_segment__by_offset_with_one_tag_for_all") {
  SendOrderWorld world;
  for (const SegmentPriority tag :
       {SegmentPriority{}, SegmentPriority::important(3), SegmentPriority{SegmentPriority::kCritical}}) {
    SendState& state = world.post(1, 3);
    state.request.uniform_priority = tag;
    state.critical_segments = tag.is_critical() ? 3 : 0;
    state.restart_passes();
    CHECK(world.segments_of(state) == std::vector<std::uint32_t>{0, 1, 2});
  }
}

TEST_CASE("next_segment__stops_when_the_call_has_classified_enough") {
  SendOrderWorld world;
  constexpr std::uint32_t kSegments = 3 * 2'048;
  const std::vector<SegmentPriority> priorities(kSegments);
  std::uint32_t classified = 0;
  SendState& state = world.post(1, kSegments);
  world.post(2);
  state.request.priorities = priorities;
  state.request.classify = [](void* context, std::uint32_t first, std::uint32_t count) {
    CHECK(*static_cast<std::uint32_t*>(context) == first);
    *static_cast<std::uint32_t*>(context) += count;
  };
  state.request.classify_context = &classified;
  state.classified = 0;
  std::vector<std::uint16_t> tried;
  std::uint32_t segment = 77;
  const auto fill = [&](std::uint16_t peer) {
    tried.push_back(peer);
    if (peer == 2) return false;
    if (world.order.next_segment(state, segment)) return true;
    world.order.defer(100, peer);
    return false;
  };
  CHECK_FALSE(world.order.serve(fill));
  CHECK(classified == 2'048);
  CHECK(world.shared.peers[1].classification_deferred);
  CHECK(world.shared.timers.next() <= 101);
  CHECK_FALSE(world.order.serve(fill));
  CHECK(classified == 2 * 2'048);
  // The peer that used the budget up went last in the second call.
  CHECK(tried == std::vector<std::uint16_t>{1, 2, 2, 1});
  CHECK(world.order.serve(fill));
  CHECK(classified == kSegments);
  CHECK(segment == 0);  // none is important
}

TEST_CASE("serve__takes_the_segments_that_became_ready") {
  SendOrderWorld world;
  core::SendFeed feed;
  std::vector<std::uint64_t> fresh(1);
  feed.fresh = base::BitmapView(fresh.data(), 4);
  SendState& state = world.post(1, 4);
  world.order.unlink(state);
  state.pending.clear_all();
  state.pending_count = 0;
  state.withheld = 4;
  state.request.feed = &feed;
  world.order.begin_feed(state);
  CHECK_FALSE(world.order.serve([](std::uint16_t) { return true; }));
  feed.add(2);
  CHECK(world.served(1) == std::vector<std::uint16_t>{1});
  CHECK(world.segments_of(state) == std::vector<std::uint32_t>{2});
  CHECK(state.withheld == 3);
  feed.add(0);
  feed.add(1);
  world.served(1);
  CHECK(world.segments_of(state) == std::vector<std::uint32_t>{0, 1});
  feed.add(3);
  world.served(1);
  CHECK(state.is_round_sent() == false);
  CHECK(state.withheld == 0);
  // All are ready: the feed is not looked at again.
  feed.fresh_count = 1;
  world.served(1);
  CHECK(feed.fresh_count == 1);
}

}  // namespace
