#include "core/ack_report.h"

#include <doctest/doctest.h>

namespace {

using namespace mlt;
using base::kMillisecond;
using core::AckReport;

constexpr base::TimeNs kStart = base::kSecond;

struct AckReportWorld {
  AckReportWorld() : shared(config()), mtu_checks(shared) {
    peer.up = true;
    peer.segment_bytes = 1'432;
    peer.rate.emplace(shared.config.timely);
    peer.spray = core::PathSpray(shared.config.paths);
    mtu_checks.on_peer_up(1, peer.segment_bytes + MLT_DATA_HEADER_BYTES);
  }
  static core::EndpointConfig config() {
    core::EndpointConfig config;
    config.paths = 2;
    config.max_sends = config.max_receives = 4;
    return config;
  }

  void send(std::uint8_t path, std::uint32_t packets) {
    for (std::uint32_t i = 0; i < packets; ++i) peer.spray.next_sequence(path);
    peer.spray.sent(kStart, path, packets);
  }
  // A block that reports `received` packets, the newest of which left at kStart.
  static wire::AckBlock block(std::uint32_t highest, std::uint32_t received, std::uint32_t hold_ns = 0) {
    wire::AckBlock block;
    block.highest_sequence = highest;
    block.received_packets = received;
    block.echo_timestamp_ns = static_cast<std::uint32_t>(kStart);
    block.hold_ns = hold_ns;
    return block;
  }
  AckReport report(base::TimeNs now, std::uint32_t reply_path = 0) { return {shared, now, now, 1, reply_path}; }

  core::Shared shared;
  core::Peer& peer = shared.peers[1];
  core::MtuChecks mtu_checks;
};

TEST_CASE("take_block__takes_the_reply_time_of_the_first_block_alone") {
  AckReportWorld world;
  world.send(0, 1);
  world.send(1, 1);
  AckReport report = world.report(kStart + 100'000);
  report.take_block(0, AckReportWorld::block(1, 1), true);
  CHECK(world.peer.rtt.smoothed_ns() == 100'000);
  wire::AckBlock other = AckReportWorld::block(1, 1);
  other.echo_timestamp_ns -= 50'000;
  report.take_block(1, other, true);
  CHECK(world.peer.rtt.smoothed_ns() == 100'000);
  CHECK(world.peer.spray.packets_in_flight() == 0);
}

TEST_CASE("take_block__ignores_echoes_that_are_old_delayed_or_impossible") {
  AckReportWorld world;
  world.send(0, 4);
  world.report(kStart + 100'000).take_block(0, AckReportWorld::block(1, 1), false);
  world.report(kStart + 3 * kMillisecond).take_block(0, AckReportWorld::block(2, 2, kMillisecond + 1), true);
  world.report(kStart - 1).take_block(0, AckReportWorld::block(3, 3), true);
  CHECK(world.peer.rtt.smoothed_ns() == 0);
  world.report(kStart + 3 * kMillisecond).take_block(0, AckReportWorld::block(4, 4, kMillisecond), true);
  CHECK(world.peer.rtt.smoothed_ns() == 3 * kMillisecond);
}

TEST_CASE("finish__what_a_reply_waited_on_its_way_is_no_round_trip_of_the_data") {
  AckReportWorld world;
  world.send(0, 3);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    // They were made when the packets had been 50 us on their way; the second came 3 ms later than the others would.
    const base::TimeNs made = kStart + 51'200 * i;
    AckReport report = world.report(made + 50'000 + (i == 2 ? 3 * kMillisecond : 0), wire::reply_sequence(0, made));
    wire::AckBlock block = AckReportWorld::block(i, i);
    block.echo_timestamp_ns = static_cast<std::uint32_t>(made - 50'000);
    report.take_block(0, block, true);
    report.finish(0, world.mtu_checks);
  }
  CHECK(world.peer.rate->base_rtt_ns() == 100'000);
  CHECK(world.peer.rate->rate_bytes_per_second() == world.shared.config.timely.line_rate_bytes_per_second);
}

TEST_CASE("finish__reopens_the_window_only_on_progress") {
  AckReportWorld world;
  world.send(0, 2);
  REQUIRE(world.peer.window.on_no_space(world.shared.counters));
  world.shared.timers.set(world.shared.peer_timer(1), kStart + kMillisecond);
  AckReport nothing = world.report(kStart + 100'000);
  nothing.take_block(0, AckReportWorld::block(0, 0), false);
  nothing.finish(0, world.mtu_checks);
  CHECK_FALSE(world.peer.window.is_open());
  AckReport report = world.report(kStart + 100'000);
  report.take_block(0, AckReportWorld::block(1, 1), true);
  report.finish(0, world.mtu_checks);
  CHECK(world.peer.window.is_open());
  CHECK(world.shared.timers.next() == base::kNever);
}

TEST_CASE("finish__a_reply_to_a_probe_after_a_stall_empties_the_window") {
  AckReportWorld world;
  world.send(0, 5);
  REQUIRE(world.peer.window.on_no_space(world.shared.counters));
  world.peer.window.on_timeout(world.shared.counters);
  const base::TimeNs probed = kStart + kMillisecond;
  world.peer.window.on_probe_sent(probed, world.shared.counters);
  AckReport older = world.report(probed + 1'000);
  older.finish(static_cast<std::uint32_t>(probed - 1'000), world.mtu_checks);
  CHECK(world.peer.spray.packets_in_flight() == 5);
  AckReport report = world.report(probed + 50'000);
  report.finish(static_cast<std::uint32_t>(probed), world.mtu_checks);
  CHECK(world.peer.spray.packets_in_flight() == 0);
  CHECK(world.peer.window.is_open());
}

TEST_CASE("finish__records_over_which_connection_the_newest_reply_to_a_probe_came") {
  AckReportWorld world;
  const auto timestamp = static_cast<std::uint32_t>(kStart);
  world.report(kStart + 1'000, wire::kNoReplyPath).finish(timestamp, world.mtu_checks);
  CHECK(world.peer.replies_by_control);
  world.report(kStart + 2'000).finish(0, world.mtu_checks);  // answers no probe
  CHECK(world.peer.replies_by_control);
  world.report(kStart + 3'000).finish(timestamp, world.mtu_checks);
  CHECK_FALSE(world.peer.replies_by_control);
}

TEST_CASE("finish__a_loss_makes_the_path_suspect") {
  AckReportWorld world;
  world.send(1, 3);
  AckReport report = world.report(kStart + 100'000);
  report.take_block(1, AckReportWorld::block(3, 2), true);
  report.finish(0, world.mtu_checks);
  base::DatagramRun run;
  run.peer = 1;
  run.datagram_count = 1;
  run.datagram_bytes = run.total_bytes = 1'432 + MLT_DATA_HEADER_BYTES;
  run.path = 0;
  world.mtu_checks.on_data_sent(kStart + 200'000, run);
  CHECK_FALSE(world.mtu_checks.fill_probe(kStart + 200'000, run));
  run.path = 1;
  world.mtu_checks.on_data_sent(kStart + 200'000, run);
  REQUIRE(world.mtu_checks.fill_probe(kStart + 200'000, run));
  CHECK(run.path == 1);
}

}  // namespace
