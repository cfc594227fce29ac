#include "core/probe_sender.h"

#include <doctest/doctest.h>

namespace {

using namespace mlt;
using core::ProbeSender;
using core::SendState;

struct ProbeSenderWorld {
  ProbeSenderWorld() : shared(config()), checks(shared), probes(shared, sends, checks) {
    core::Peer& peer = shared.peers[1];
    peer.up = true;
    peer.remote_cookie = 0x7701;
    peer.spray = core::PathSpray(shared.config.paths);
  }
  static core::EndpointConfig config() {
    core::EndpointConfig config;
    config.paths = 3;
    config.max_sends = config.max_receives = 4;
    return config;
  }

  SendState& send(std::uint64_t tag = 5) {
    SendState& state = sends.take();
    REQUIRE(state.machine.on(core::SendEvent::k_post, shared.counters));
    state.request.peer = 1;
    state.request.tag = tag;
    state.grid = core::SegmentGrid(2'000, 1'000);
    return state;
  }
  bool fill(base::TimeNs now = 1'000) {
    if (!probes.fill(now, run)) return false;
    decode({run.slices[0].data, run.slices[0].size});
    return true;
  }
  bool fill_over_tcp() {
    if (!probes.fill_over_tcp(1'000, output)) return false;
    decode({output.bytes, output.size});
    return true;
  }
  void decode(std::span<const std::byte> bytes) {
    probe = wire::Probe{};
    REQUIRE(wire::decode_prefix(bytes, probe.prefix) == wire::DropReason::kNone);
    REQUIRE(wire::decode_probe(bytes, probe.prefix, probe) == wire::DropReason::kNone);
  }
  bool has(std::uint8_t flag) const { return (probe.prefix.flags & flag) != 0; }

  core::Shared shared;
  core::TransferSlots<SendState> sends{4};
  core::MtuChecks checks;
  ProbeSender probes;
  base::DatagramRun run;
  core::ControlOutput output;
  wire::Probe probe;
};

TEST_CASE("fill__names_the_transfer_and_its_newest_packet_on_each_path") {
  ProbeSenderWorld world;
  CHECK_FALSE(world.fill());
  SendState& state = world.send();
  state.newest[1] = 44;
  state.critical_segments = 2;
  world.probes.schedule(state, false);
  REQUIRE(world.fill());
  CHECK(world.run.peer == 1);
  CHECK(world.run.dscp == world.shared.config.dscp.control);
  CHECK(world.probe.prefix.cookie == 0x7701);
  CHECK(world.probe.transfer == wire::TransferId(5, 0));
  CHECK(world.probe.total_bytes == 2'000);
  CHECK(world.has(MLT_PROBE_FLAG_CRITICAL));
  CHECK(world.probe.critical_segments == 2);
  CHECK_FALSE(world.has(MLT_PROBE_FLAG_ACK_ONLY));
  REQUIRE(world.probe.path_count == 3);
  CHECK(world.probe.last_sequence[0] == 0);
  CHECK(world.probe.last_sequence[1] == 44);
  CHECK_FALSE(world.fill());
}

TEST_CASE("fill__a_timestamp_is_never_zero") {
  ProbeSenderWorld world;
  world.probes.schedule(world.send(), true);
  REQUIRE(world.fill(base::TimeNs{1} << 32));
  CHECK(world.probe.timestamp_ns == 1);
  CHECK(world.has(MLT_PROBE_FLAG_ACK_ONLY));
}

TEST_CASE("fill__trailing_probes_before_the_probe_on_the_paths_of_the_transfer") {
  ProbeSenderWorld world;
  SendState& state = world.send();
  state.newest[0] = 7;
  state.newest[2] = 9;
  state.last_class = 3;
  world.probes.schedule(state, false);
  world.probes.schedule_trailing(state);
  for (const int path : {0, 2}) {
    REQUIRE(world.fill());
    CHECK(world.has(MLT_PROBE_FLAG_TRAILING));
    CHECK(world.probe.prefix.path == path);
    CHECK(world.run.path == path);
    CHECK(world.probe.prefix.sequence == 1);  // its own, in the path's count
    CHECK(world.run.dscp == world.shared.config.dscp.data[3]);
  }
  CHECK(world.shared.peers[1].spray.packets_in_flight() == 2);
  REQUIRE(world.fill());
  CHECK_FALSE(world.has(MLT_PROBE_FLAG_TRAILING));
  CHECK_FALSE(world.fill());
}

TEST_CASE("schedule_trailing__not_while_the_receiver_reports_no_receive") {
  ProbeSenderWorld world;
  SendState& state = world.send();
  state.newest[0] = 7;
  state.probe.count_not_posted();
  world.probes.schedule_trailing(state);
  CHECK_FALSE(world.fill());
}

TEST_CASE("fill__a_probe_that_repeats_an_unanswered_one_takes_another_path") {
  ProbeSenderWorld world;
  SendState& state = world.send();
  world.probes.schedule(state, true);
  REQUIRE(world.fill());
  const std::uint8_t first = world.run.path;
  for (std::uint32_t i = 0; i <= core::kFallbackAfterProbes; ++i) {
    world.probes.schedule(state, true);
    state.probe.count_unanswered(i * base::kSecond, world.shared.counters);
  }
  REQUIRE(world.fill());
  CHECK(world.run.path != first);
}

TEST_CASE("cancel__leaves_what_is_due_over_tcp_and_forget_nothing") {
  ProbeSenderWorld world;
  SendState &a = world.send(5), &b = world.send(6);
  for (SendState* state : {&a, &b}) {
    world.probes.schedule(*state, true);
    world.probes.schedule_over_tcp(*state);
  }
  world.probes.cancel(a);
  world.probes.forget(b);
  CHECK_FALSE(world.fill());
  REQUIRE(world.fill_over_tcp());
  CHECK(world.probe.transfer.tag == 5);
  CHECK_FALSE(world.fill_over_tcp());
  CHECK(world.shared.counters.value(core::Counter::k_tcp_fallback_packets_sent) == 1);
  world.probes.schedule_over_tcp(a);
  world.probes.cancel_over_tcp(a);
  CHECK_FALSE(world.fill_over_tcp());
}

}  // namespace
