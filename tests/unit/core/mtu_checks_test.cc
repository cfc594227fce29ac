#include "core/mtu_checks.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using namespace mlt;
using core::Counter;
using core::MtuChecks;
using core::MtuSearch;

constexpr std::uint32_t kFull = 1'432 + MLT_DATA_HEADER_BYTES;

struct MtuChecksWorld {
  explicit MtuChecksWorld(std::uint8_t paths = 1) : shared(config(paths)), checks(shared) {
    shared.peers[1].up = true;
    shared.peers[1].spray = core::PathSpray(paths);
    checks.on_peer_up(1, kFull);
  }
  static core::EndpointConfig config(std::uint8_t paths) {
    core::EndpointConfig config;
    config.peers = 3;
    config.paths = paths;
    config.max_sends = config.max_receives = 4;
    return config;
  }

  void send(std::uint8_t path = 0, std::uint32_t bytes = kFull) {
    run.peer = 1;
    run.path = path;
    run.datagram_count = 1;
    run.datagram_bytes = run.total_bytes = bytes;
    checks.on_data_sent(now, run);
  }
  // The size of the next probe; 0: none.
  std::uint32_t probe() { return checks.fill_probe(now, run) ? run.total_bytes : 0; }
  void reply(std::uint8_t path, std::uint32_t bytes) {
    wire::MtuReply reply;
    reply.prefix.path = path;
    reply.timestamp_ns = static_cast<std::uint32_t>(now);
    reply.bytes = bytes;
    checks.on_reply(now, 1, reply, [&](std::uint32_t payload) { limits.push_back(payload); });
  }
  // Until no check is running: path 0 carries datagrams of up to `carried`.
  void check(std::uint32_t carried) {
    for (int step = 0; step < 1'000; ++step) {
      while (const std::uint32_t bytes = probe()) {
        REQUIRE(run.path == 0);
        if (bytes <= carried) reply(0, bytes);
      }
      if (shared.timers.next() == base::kNever) return;
      now = shared.timers.next();
      std::uint32_t slot = 0;
      if (!shared.timers.pop_due(now, slot)) continue;
      REQUIRE(slot == shared.mtu_timer(1));
      checks.on_timer(now, 1, true, [&](std::uint32_t payload) { limits.push_back(payload); });
    }
    FAIL("the check does not end");
  }

  core::Shared shared;
  MtuChecks checks;
  base::DatagramRun run;
  base::TimeNs now = base::kMillisecond;
  std::vector<std::uint32_t> limits;
};

TEST_CASE("on_data_sent__checks_a_path_only_after_a_loss") {
  MtuChecksWorld world;
  world.send();
  CHECK(world.probe() == 0);
  world.checks.on_loss(1, 0b1);
  CHECK(world.probe() == 0);  // nothing is sent there
  world.send(0, 500);         // passes everywhere
  CHECK(world.probe() == 0);
  world.send();
  CHECK(world.probe() == kFull);
  CHECK(world.run.dscp == world.shared.config.dscp.control);
  CHECK(world.probe() == MtuSearch::kShortProbeBytes);
  CHECK(world.probe() == 0);
  CHECK(world.shared.counters.value(Counter::k_mtu_probes_sent) == 2);
  CHECK(world.shared.timers.next() != base::kNever);
}

TEST_CASE("on_data_sent__does_not_check_a_peer_that_holds_data_back") {
  MtuChecksWorld world;
  world.shared.peers[1].holds_back = true;
  world.checks.on_loss(1, 0b1);
  world.send();
  CHECK(world.probe() == 0);
}

TEST_CASE("check__ends_when_the_full_size_passes") {
  MtuChecksWorld world;
  world.checks.on_loss(1, 0b1);
  world.send();
  world.check(kFull);
  CHECK(world.checks.limit_bytes(1) == 0);
  CHECK(world.limits.empty());
  CHECK_FALSE(world.shared.peers[1].spray.view(0).narrow);
}

TEST_CASE("check__finds_the_limit_of_the_only_path") {
  MtuChecksWorld world;
  world.checks.on_loss(1, 0b1);
  world.send();
  world.check(1'000);
  const std::uint32_t limit = world.checks.limit_bytes(1);
  CHECK(limit <= 1'000);
  CHECK(limit > 1'000 - MtuSearch::kStepBytes);
  CHECK(world.limits == std::vector<std::uint32_t>{limit - MLT_DATA_HEADER_BYTES});
  CHECK(world.shared.peers[1].spray.view(0).narrow);
  CHECK(world.shared.counters.value(Counter::k_mtu_limits_found) == 1);
}

TEST_CASE("check__a_limit_of_one_path_of_two_limits_no_send") {
  MtuChecksWorld world(2);
  world.checks.on_loss(1, 0b01);
  world.send();
  world.check(1'000);
  CHECK(world.shared.peers[1].spray.view(0).narrow);
  CHECK(world.checks.limit_bytes(1) == 0);
  CHECK(world.limits.empty());
  // Its siblings carry the data now: it is checked again after a second.
  world.now += MtuSearch::kRaiseNs;
  world.send(1);
  CHECK(world.probe() == kFull);
  CHECK(world.run.path == 0);
  world.reply(0, kFull);
  CHECK_FALSE(world.shared.peers[1].spray.view(0).narrow);
  CHECK(world.shared.counters.value(Counter::k_mtu_limits_gone) == 1);
}

TEST_CASE("on_reply__of_a_path_that_is_not_checked_is_stale") {
  MtuChecksWorld world;
  world.reply(0, kFull);
  CHECK(world.shared.counters.value(Counter::k_stale_control) == 1);
}

TEST_CASE("on_timer__puts_the_check_off_when_nothing_is_sent") {
  MtuChecksWorld world;
  world.checks.on_loss(1, 0b1);
  world.send();
  while (world.probe() != 0) continue;
  world.now = world.shared.timers.next();
  world.checks.on_timer(world.now, 1, false, [](std::uint32_t) { FAIL("no limit is known"); });
  CHECK(world.probe() == 0);
  CHECK(world.shared.timers.next() == base::kNever);
}

TEST_CASE("on_peer_down__ends_the_checks") {
  MtuChecksWorld world;
  world.checks.on_loss(1, 0b1);
  world.send();
  CHECK(world.probe() == kFull);
  CHECK(world.probe() == MtuSearch::kShortProbeBytes);
  world.checks.on_peer_down(1);
  CHECK(world.shared.timers.next() == base::kNever);
  world.checks.on_peer_up(1, kFull);
  CHECK(world.probe() == 0);
}

}  // namespace
