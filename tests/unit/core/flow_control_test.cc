#include "core/flow_control.h"

#include <doctest/doctest.h>

#include <utility>

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::TimeNs;

constexpr std::uint32_t kFlowPacketBytes = 1'000;
constexpr std::uint16_t kPeer = 1;
constexpr double kRate = 1e9;  // bytes per second: a packet per microsecond

struct FlowControlWorld {
  FlowControlWorld() : shared(config()), flow(shared) {
    core::TimelyConfig timely = shared.config.timely;
    timely.line_rate_bytes_per_second = kRate;
    peer().up = true;
    peer().segment_bytes = kFlowPacketBytes - MLT_DATA_HEADER_BYTES;
    peer().path_window = core::PathWindow(1'000 * kFlowPacketBytes, 0);
    peer().rate.emplace(timely);
    peer().spray = core::PathSpray(1);
  }
  static core::EndpointConfig config() {
    core::EndpointConfig config;
    config.peers = 3;
    config.max_sends = config.max_receives = 4;
    return config;
  }
  core::Peer& peer() { return shared.peers[kPeer]; }
  void put_in_flight(std::uint32_t packets) {
    for (std::uint32_t i = 0; i < packets; ++i) peer().spray.next_sequence(0);
    peer().spray.sent(0, 0, packets);
  }
  std::uint32_t max_datagrams() { return flow.max_datagrams(now, kPeer, capabilities); }
  // When the peer's timer is set to expire.
  TimeNs timer() const { return shared.timers.next(); }
  std::uint32_t expire() {
    std::uint32_t slot = 0;
    now = timer();
    REQUIRE(shared.timers.pop_due(now, slot));
    REQUIRE(slot == shared.peer_timer(kPeer));
    return flow.on_timer(now, kPeer);
  }

  core::Shared shared;
  core::FlowControl flow;
  core::TransmitCapabilities capabilities;
  TimeNs now = 1;
};

TEST_CASE("max_datagrams__is_bounded_by_the_datapath_and_the_rate") {
  FlowControlWorld world;
  CHECK(world.max_datagrams() == 64);  // 65,507 bytes
  world.capabilities.max_run_bytes = 9'999;
  CHECK(world.max_datagrams() == 9);
  world.capabilities.max_run_segments = 5;
  CHECK(world.max_datagrams() == 5);
  world.capabilities = {};
  for (int i = 0; i < 3; ++i) world.peer().rate->on_round_lost();
  CHECK(world.max_datagrams() == 12);  // 100 us at an eighth of the rate
  world.capabilities.max_run_bytes = 1;
  CHECK(world.max_datagrams() == 1);  // one may always leave
}

TEST_CASE("max_datagrams__two_leave_together_where_the_rate_sends_them_in_1_ms") {
  for (const auto& [rate, datagrams] : {std::pair{19e6, 2U}, std::pair{2e6, 2U}, std::pair{1.9e6, 1U}}) {
    FlowControlWorld world;
    core::TimelyConfig timely = world.shared.config.timely;
    timely.line_rate_bytes_per_second = rate;
    world.peer().rate.emplace(timely);
    CHECK(world.max_datagrams() == datagrams);
    world.shared.config.pairs = false;
    CHECK(world.max_datagrams() == 1);
  }
}

TEST_CASE("max_datagrams__one_packet_fits_any_window") {
  FlowControlWorld world;
  world.peer().path_window = core::PathWindow(1, 0);
  CHECK(world.max_datagrams() == 1);
  world.put_in_flight(1);
  CHECK(world.max_datagrams() == 0);
  CHECK_FALSE(world.peer().window.is_open());
}

TEST_CASE("max_datagrams__waits_until_a_batch_or_a_quarter_of_the_window_fits") {
  FlowControlWorld world;
  world.peer().path_window = core::PathWindow(100 * kFlowPacketBytes, 0);
  world.put_in_flight(60);
  CHECK(world.flow.in_flight_bytes(kPeer) == 60 * kFlowPacketBytes);
  CHECK(world.max_datagrams() == 40);
  world.put_in_flight(15);
  CHECK(world.max_datagrams() == 25);  // a quarter
  CHECK(world.timer() == base::kNever);
  world.put_in_flight(1);
  world.capabilities.max_run_segments = 24;
  CHECK(world.max_datagrams() == 24);  // a whole batch
  world.capabilities = {};
  CHECK(world.max_datagrams() == 0);
  CHECK_FALSE(world.flow.may_send(world.now, kPeer, world.capabilities));
  CHECK(world.timer() == world.now + world.peer().rtt.timeout_ns(0));
  CHECK(world.max_datagrams() == 0);  // the timer is not set again
  CHECK(world.timer() == world.now + world.peer().rtt.timeout_ns(0));
}

TEST_CASE("may_send__waits_for_the_pacer_and_sets_the_timer") {
  FlowControlWorld world;
  CHECK(world.flow.may_send(world.now, kPeer, world.capabilities));
  CHECK(world.timer() == base::kNever);
  world.now = 1'000 * kMicrosecond;
  world.flow.on_sent(world.now, kPeer, 500 * kFlowPacketBytes);
  // 500 us at this rate, less the credit of 200 us.
  CHECK(world.peer().pacer.next_ns() == world.now + 300 * kMicrosecond);
  CHECK_FALSE(world.flow.may_send(world.now, kPeer, world.capabilities));
  CHECK(world.timer() == world.now + 300 * kMicrosecond);
  CHECK(world.expire() == 0);  // no window is full
  CHECK(world.flow.may_send(world.now, kPeer, world.capabilities));
}

TEST_CASE("paced_until__is_known_where_pacing_alone_holds_data_back") {
  FlowControlWorld world;
  const auto poll = [&] {
    world.flow.begin_poll();
    if (world.flow.may_send(world.now, kPeer, world.capabilities)) world.max_datagrams();
    return world.flow.paced_until();
  };
  world.flow.begin_poll();
  CHECK(world.flow.paced_until() == base::kNever);  // no data
  CHECK(poll() == base::kNever);                    // a batch may leave
  world.now = 1'000 * kMicrosecond;
  world.flow.on_sent(world.now, kPeer, 500 * kFlowPacketBytes);
  CHECK(poll() == base::kNever);  // batches have many packets
  core::TimelyConfig slow = world.shared.config.timely;
  slow.line_rate_bytes_per_second = 29e6;
  world.peer().rate.emplace(slow);
  const TimeNs next = world.peer().pacer.next_ns();
  CHECK(poll() == next);
  SUBCASE("until the batch may leave") {
    world.now = next;
    CHECK(poll() == base::kNever);
  }
  SUBCASE("and the window of another peer is full") {
    core::Peer& other = world.shared.peers[2];
    other.up = true;
    other.segment_bytes = world.peer().segment_bytes;
    other.path_window = core::PathWindow(1, 0);
    other.rate.emplace(world.shared.config.timely);
    other.spray = core::PathSpray(1);
    other.spray.next_sequence(0);
    other.spray.sent(0, 0, 1);
    poll();
    REQUIRE(world.flow.may_send(world.now, 2, world.capabilities));
    CHECK(world.flow.max_datagrams(world.now, 2, world.capabilities) == 0);
    CHECK(world.flow.paced_until() == base::kNever);
    poll();
    CHECK_FALSE(world.flow.may_send(world.now, 2, world.capabilities));
    CHECK(world.flow.paced_until() == base::kNever);
  }
}

TEST_CASE("may_send__skips_a_peer_for_which_the_datapath_has_no_space") {
  FlowControlWorld world;
  std::uint16_t full = kPeer;
  world.capabilities.room_context = &full;
  world.capabilities.has_room_for = [](void* context, std::uint16_t peer) {
    return peer != *static_cast<std::uint16_t*>(context);
  };
  CHECK_FALSE(world.flow.may_send(world.now, kPeer, world.capabilities));
  CHECK(world.timer() == base::kNever);  // the driver calls again
  full = 2;
  CHECK(world.flow.may_send(world.now, kPeer, world.capabilities));
}

TEST_CASE("on_timer__counts_the_timeouts_of_a_full_window_and_doubles_the_wait") {
  FlowControlWorld world;
  world.peer().path_window = core::PathWindow(kFlowPacketBytes, 0);
  world.put_in_flight(1);
  world.peer().work_head = 0;
  REQUIRE(world.max_datagrams() == 0);
  for (std::uint32_t timeouts = 1; timeouts <= 4; ++timeouts) {
    CHECK(world.expire() == timeouts);
    CHECK(world.timer() == world.now + world.peer().rtt.timeout_ns(timeouts));
  }
  CHECK(world.shared.counters.value(core::Counter::k_window_stalls) == 4);
  SUBCASE("until no send waits") {
    world.peer().work_head = core::kNil;
    CHECK(world.expire() == 0);
    CHECK(world.peer().window.is_open());
    CHECK(world.timer() == base::kNever);
  }
  SUBCASE("until the peer is down") {
    world.peer().up = false;
    CHECK(world.expire() == 0);
    CHECK(world.timer() == base::kNever);
  }
  CHECK(world.shared.counters.value(core::Counter::k_window_stalls) == 4);
}

}  // namespace
