// Path checks of two ranks that exchange datagrams over paths which a firewall may block, on a clock of the test's own.
#include "engine/path_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/control.h"

using namespace mlt;
using engine::PathChecks;
using engine::PathVerdict;

namespace {

constexpr base::DurationNs kTick = base::kMillisecond;
constexpr base::DurationNs kSilence = 1'500 * base::kMillisecond;

std::vector<std::byte> reply_to(std::span<const std::byte> datagram, std::uint64_t cookie) {
  wire::Prefix prefix;
  wire::MtuProbe probe;
  REQUIRE(wire::decode_prefix(datagram, prefix) == wire::DropReason::kNone);
  REQUIRE(wire::decode_mtu_probe(datagram, prefix, probe) == wire::DropReason::kNone);
  wire::MtuReply reply;
  reply.prefix.type = wire::PacketType::kMtuReply;
  reply.prefix.path = prefix.path;
  reply.prefix.cookie = cookie;
  reply.timestamp_ns = probe.timestamp_ns;
  reply.bytes = probe.bytes;
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_mtu_reply(reply, bytes.data()));
  return bytes;
}

// Rank 0 listens, rank 1 connected. A datagram takes `delay` to arrive, a report `report_delay`.
struct CheckedPair {
  explicit CheckedPair(std::uint8_t paths, std::uint16_t ranks = 2)
      : checks{PathChecks(ranks, paths, 31, 1), PathChecks(ranks, paths, 31, 2)} {}

  // With that fraction lost, and a delay drawn by `seed`, which TCP has only at high loss.
  void come_up_with(double fraction_lost, std::uint64_t seed) {
    loss = fraction_lost;
    delay = static_cast<base::DurationNs>(seed % 400) * base::kMillisecond;
    report_delay = loss > 0.1 ? delay : 0;
    prng = base::Prng(seed);
    come_up();
  }

  void come_up() {
    for (std::uint16_t rank = 0; rank < 2; ++rank) {
      core::PeerUp up;
      up.peer = static_cast<std::uint16_t>(1 - rank);
      up.local_cookie = cookie(rank);
      up.remote_cookie = cookie(1 - rank);
      checks[rank].on_peer_up(up, rank == 0);
    }
  }
  // What rank `to` expects in datagrams to it.
  static std::uint64_t cookie(int to) {
    const std::uint64_t from = to == 0 ? 1 : 0;
    return std::uint64_t{0x1234'5678'9ABC'0000} + from;
  }

  void run(base::DurationNs time) {
    for (const base::TimeNs until = now + time; now < until; now += kTick) {
      for (std::uint16_t rank = 0; rank < 2; ++rank) turn(rank);
    }
  }
  void post(std::uint16_t from, unsigned path, std::vector<std::byte> bytes) {
    if ((blocked[from] >> path & 1U) != 0 || prng.chance(loss)) return;
    flying.push_back({now + delay, static_cast<std::uint16_t>(1 - from), path, std::move(bytes)});
  }
  void deliver(std::uint16_t rank) {
    // By index: a reply flies off meanwhile.
    for (std::size_t i = 0; i < flying.size(); ++i) {
      if (flying[i].to != rank || flying[i].at > now) continue;
      const std::vector<std::byte> bytes = flying[i].bytes;
      const unsigned path = flying[i].path;
      flying[i].at = base::kNever;
      wire::Prefix prefix;
      REQUIRE(wire::decode_prefix(bytes, prefix) == wire::DropReason::kNone);
      const bool is_probe = prefix.type == wire::PacketType::kMtuProbe;
      heard_at[rank] = now;
      if (checks[rank].is_active()) CHECK((checks[rank].on_datagram(bytes) && is_probe) == false);
      // The endpoint replies.
      if (is_probe) post(rank, path, reply_to(bytes, cookie(1 - rank)));
    }
    std::erase_if(flying, [](const Flight& one) { return one.at == base::kNever; });
  }
  void turn(std::uint16_t rank) {
    PathChecks& own = checks[rank];
    if (stopped[rank]) return;
    if (!deaf[rank]) deliver(rank);
    for (Report& one : reported) {
      if (one.to != rank || one.at > now) continue;
      own.on_report(now, static_cast<std::uint16_t>(1 - rank), one.bytes);
      one.at = base::kNever;
    }
    std::erase_if(reported, [](const Report& one) { return one.at == base::kNever; });
    if (now >= watch_at[rank]) {
      own.watch(now, static_cast<std::uint16_t>(1 - rank), needed, heard_at[rank], kSilence);
      watch_at[rank] = now + PathChecks::kWatchGapNs;
    }
    own.on_timeout(now, !deaf[rank]);
    base::DatagramRun run;
    while (own.poll_probe(run)) {
      CHECK(run.peer == 1 - rank);
      ++sent[rank];
      post(rank, run.path, {run.slices[0].data, run.slices[0].data + run.slices[0].size});
    }
    std::uint16_t peer = 0;
    PathChecks::ReportBytes report;
    while (own.poll_report(peer, report)) {
      ++reports;
      reported.push_back({now + report_delay, static_cast<std::uint16_t>(1 - rank), report});
    }
    PathVerdict verdict;
    while (own.poll_verdict(verdict)) verdicts[rank].push_back(verdict);
  }

  struct Flight {
    base::TimeNs at = 0;
    std::uint16_t to = 0;
    unsigned path = 0;
    std::vector<std::byte> bytes;
  };
  struct Report {
    base::TimeNs at = 0;
    std::uint16_t to = 0;
    PathChecks::ReportBytes bytes;
  };

  base::TimeNs now = 5 * base::kSecond;
  std::array<PathChecks, 2> checks;
  std::vector<Flight> flying;
  std::vector<Report> reported;
  base::DurationNs delay = 0;
  base::DurationNs report_delay = 0;
  double loss = 0;
  base::Prng prng{1};
  unsigned blocked[2] = {0, 0};  // [r]: paths on which nothing of rank r arrives
  bool stopped[2] = {false, false};
  bool deaf[2] = {false, false};  // more datagrams wait than one turn reads
  bool needed = false;            // operations are in progress
  base::TimeNs watch_at[2] = {0, 0};
  base::TimeNs heard_at[2] = {0, 0};
  int sent[2] = {0, 0};
  int reports = 0;
  std::vector<PathVerdict> verdicts[2];
};

}  // namespace

TEST_CASE("check__open_paths_take_one_probe_and_no_report") {
  CheckedPair pair(3);
  pair.come_up();
  pair.run(3 * base::kSecond);
  CHECK(pair.sent[0] == 3);  // one for each path
  CHECK(pair.sent[1] == 0);
  CHECK(pair.reports == 0);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(pair.verdicts[rank].empty());
    CHECK_FALSE(pair.checks[static_cast<std::size_t>(rank)].is_active());
    CHECK(pair.checks[static_cast<std::size_t>(rank)].next_timeout() == base::kNever);
  }
}

TEST_CASE("check__a_direction_that_is_blocked_is_known_to_both_ranks_within_2_s") {
  for (const bool there : {true, false}) {
    for (const bool back : {true, false}) {
      if (!there && !back) continue;
      CAPTURE(there);
      CAPTURE(back);
      CheckedPair pair(2);
      pair.delay = pair.report_delay = 20 * base::kMillisecond;
      pair.blocked[0] = there ? 0b11 : 0;
      pair.blocked[1] = back ? 0b11 : 0;
      pair.come_up();
      pair.run(base::kSecond);
      CHECK(pair.verdicts[0].empty());  // a slow host is not blocked
      CHECK(pair.verdicts[1].empty());
      pair.run(800 * base::kMillisecond);
      for (int rank = 0; rank < 2; ++rank) {
        REQUIRE(pair.verdicts[rank].size() == 1);
        CHECK(pair.verdicts[rank][0].blocked_from == (rank == 0 ? back : there));
        CHECK(pair.verdicts[rank][0].blocked_to == (rank == 0 ? there : back));
        CHECK(pair.verdicts[rank][0].sent >= 5);
        CHECK(pair.verdicts[rank][0].peer_sent >= 5);
      }
    }
  }
}

TEST_CASE("check__one_open_path_of_three_is_enough") {
  CheckedPair pair(3);
  pair.blocked[1] = 0b011;
  pair.blocked[0] = 0b010;
  pair.come_up();
  pair.run(2 * base::kSecond);
  CHECK(pair.verdicts[0].empty());
  CHECK_FALSE(pair.checks[0].is_active());
  CHECK(pair.reports == 0);
}

TEST_CASE("check__loss_and_delay_raise_no_alarm" * doctest::test_suite("long")) {
  for (const double loss : {0.1, 0.3}) {
    int alarms = 0;
    for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
      CheckedPair pair(1);
      pair.come_up_with(loss, seed);
      pair.run(4 * base::kSecond);
      alarms += static_cast<int>(pair.verdicts[0].size() + pair.verdicts[1].size());
    }
    CHECK(alarms == 0);
  }
}

TEST_CASE("check__without_the_peers_report_there_is_no_verdict_and_an_end") {
  CheckedPair pair(1);
  pair.stopped[1] = true;
  pair.come_up();
  pair.run(9 * base::kSecond);
  CHECK(pair.verdicts[0].empty());
  CHECK(pair.checks[0].is_active());
  pair.run(2 * base::kSecond);
  CHECK(pair.verdicts[0].empty());
  CHECK_FALSE(pair.checks[0].is_active());
}

TEST_CASE("check__what_was_not_read_yet_is_not_missing") {
  CheckedPair pair(1);
  pair.deaf[0] = true;
  pair.come_up();
  pair.run(5 * base::kSecond);
  CHECK(pair.verdicts[0].empty());
  pair.deaf[0] = false;
  pair.run(base::kSecond);
  CHECK(pair.verdicts[0].empty());
  CHECK_FALSE(pair.checks[0].is_active());
}

TEST_CASE("check__of_a_job_of_60_ranks_takes_twice_the_time") {
  CheckedPair pair(1, 60);
  pair.blocked[1] = 1;
  pair.come_up();
  pair.run(1'190 * base::kMillisecond);
  CHECK(pair.reports == 0);
  CHECK(pair.sent[0] == 3);  // at 0, 200 and 600 ms
  pair.run(1'000 * base::kMillisecond);
  CHECK(pair.reports > 0);
  CHECK(pair.verdicts[0].empty());
  pair.run(1'400 * base::kMillisecond);
  CHECK(pair.verdicts[0].size() == 1);
  CHECK(pair.verdicts[1].size() == 1);
}

TEST_CASE("check__time_by_which_timers_ran_late_does_not_count") {
  CheckedPair pair(1);
  pair.come_up();
  pair.stopped[1] = true;
  pair.run(50 * base::kMillisecond);
  // No turn until 2 s after the timer of 100 ms.
  pair.now += 2'050 * base::kMillisecond;
  pair.run(490 * base::kMillisecond);
  CHECK(pair.reports == 0);
  pair.run(20 * base::kMillisecond);
  CHECK(pair.reports == 1);
  // Nor does it bring the end nearer.
  pair.now += 20 * base::kSecond;
  pair.run(base::kSecond);
  CHECK(pair.checks[0].is_active());
}

TEST_CASE("on_peer_up__no_more_than_8_checks_at_once") {
  PathChecks checks(20, 1, 31, 1);
  base::TimeNs now = base::kSecond;
  const auto cookie = [](std::uint16_t peer) { return std::uint64_t{0x1234'5678'9ABC'0000} + peer; };
  for (std::uint16_t peer = 1; peer < 20; ++peer) {
    core::PeerUp up;
    up.peer = peer;
    up.local_cookie = cookie(peer);
    up.remote_cookie = cookie(0);
    checks.on_peer_up(up, true);
  }
  checks.on_peer_down(3);
  std::vector<std::uint16_t> probed;
  std::vector<std::vector<std::byte>> replies;
  const auto turn = [&] {
    CHECK(checks.next_timeout() <= now);
    checks.on_timeout(now, true);
    probed.clear();
    replies.clear();
    base::DatagramRun run;
    while (checks.poll_probe(run)) {
      probed.push_back(run.peer);
      replies.push_back(reply_to(std::span(run.slices[0].data, run.slices[0].size), cookie(run.peer)));
    }
    CHECK(checks.next_timeout() > now);
  };
  turn();
  CHECK(probed == std::vector<std::uint16_t>{1, 2, 4, 5, 6, 7, 8, 9});
  // A report of a peer whose turn has not come.
  checks.on_report(now, 19, std::vector<std::byte>(PathChecks::kReportBytes));
  for (std::size_t i = 0; i < 4; ++i) CHECK(checks.on_datagram(std::vector(replies[i])));
  turn();
  std::ranges::sort(probed);
  CHECK(probed == std::vector<std::uint16_t>{10, 11, 12, 19});
  for (std::uint16_t peer = 6; peer < 10; ++peer) checks.on_peer_down(peer);
  turn();
  CHECK(probed == std::vector<std::uint16_t>{13, 14, 15, 16});
}

TEST_CASE("watch__udp_that_becomes_blocked_is_known_to_both_ranks_within_4_s") {
  for (const unsigned to : {0U, 1U, 2U}) {  // 2: both directions
    CAPTURE(to);
    CheckedPair pair(1);
    pair.come_up();
    pair.run(base::kSecond);
    CHECK(pair.sent[0] == 1);
    pair.needed = true;
    pair.blocked[0] = to != 0 ? 1 : 0;
    pair.blocked[1] = to != 1 ? 1 : 0;
    pair.run(4 * base::kSecond);
    for (int rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      REQUIRE(pair.verdicts[rank].size() == 1);
      CHECK(pair.verdicts[rank][0].blocked_from == (pair.blocked[1 - rank] != 0));
      CHECK(pair.verdicts[rank][0].blocked_to == (pair.blocked[rank] != 0));
    }
  }
}

TEST_CASE("watch__a_rank_that_needs_nothing_joins_the_check_of_one_that_does") {
  for (const unsigned from : {0U, 1U}) {
    CAPTURE(from);
    CheckedPair pair(1);
    pair.come_up();
    pair.run(base::kSecond);  // the check of the start has just passed
    pair.needed = true;
    pair.watch_at[from] = base::kNever;
    pair.blocked[from] = 1;
    pair.run(5 * base::kSecond);
    for (int rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      REQUIRE(pair.verdicts[rank].size() == 1);
      CHECK(pair.verdicts[rank][0].blocked_from == (rank != static_cast<int>(from)));
    }
  }
}

TEST_CASE("watch__loss_and_delay_raise_no_alarm_and_checks_end" * doctest::test_suite("long")) {
  for (const double loss : {0.0, 0.1, 0.3}) {
    int alarms = 0;
    int sent = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      CheckedPair pair(1);
      pair.come_up_with(loss, seed);
      pair.needed = true;
      pair.run(20 * base::kSecond);
      alarms += static_cast<int>(pair.verdicts[0].size() + pair.verdicts[1].size());
      pair.needed = false;
      pair.run(12 * base::kSecond);
      sent -= pair.sent[0] + pair.sent[1];
      pair.run(30 * base::kSecond);
      sent += pair.sent[0] + pair.sent[1];
    }
    CHECK(alarms == 0);
    CHECK(sent == 0);
  }
}

TEST_CASE("watch__open_paths_take_a_probe_for_each_silence_and_no_report") {
  CheckedPair pair(2);
  pair.come_up();
  pair.run(base::kSecond);
  pair.needed = true;
  const int before = pair.sent[0] + pair.sent[1];
  pair.run(60 * base::kSecond);
  const int probes = pair.sent[0] + pair.sent[1] - before;
  CHECK(probes >= 40);  // each side probes both paths; a reply is a datagram of the other side
  CHECK(probes <= 160);
  CHECK(pair.reports == 0);
  CHECK(pair.verdicts[0].empty());
  CHECK(pair.verdicts[1].empty());
  pair.needed = false;
  pair.run(base::kSecond);
  const int without = pair.sent[0] + pair.sent[1];
  pair.run(60 * base::kSecond);
  CHECK(pair.sent[0] + pair.sent[1] == without);
}

TEST_CASE("watch__datagrams_that_arrive_need_no_check") {
  PathChecks checks(2, 1, 31, 1);
  core::PeerUp up;
  up.peer = 1;
  checks.on_peer_up(up, false);
  base::TimeNs now = 5 * base::kSecond;
  for (int i = 0; i < 20; ++i, now += PathChecks::kWatchGapNs) checks.watch(now, 1, true, now - kSilence / 2, kSilence);
  CHECK(!checks.is_active());
  // Nor does time in which no thread watched, or an operation that has just begun.
  now += 100 * base::kSecond;
  checks.forget_silence();
  checks.watch(now, 1, true, 0, kSilence);
  checks.watch(now + kSilence - 1, 1, true, 0, kSilence);
  CHECK(!checks.is_active());
  checks.watch(now + kSilence, 1, true, 0, kSilence);
  CHECK(checks.is_active());
}

TEST_CASE("watch__a_stopped_peer_has_no_verdict_until_it_runs_again") {
  for (const bool is_blocked : {false, true}) {
    CAPTURE(is_blocked);
    CheckedPair pair(1);
    pair.come_up();
    pair.run(base::kSecond);
    pair.needed = true;
    pair.stopped[1] = true;
    pair.blocked[1] = is_blocked ? 1 : 0;
    pair.run(20 * base::kSecond);
    CHECK(pair.verdicts[0].empty());
    pair.stopped[1] = false;
    pair.run(3 * base::kSecond);
    for (int rank = 0; rank < 2; ++rank) CHECK(pair.verdicts[rank].size() == (is_blocked ? 1 : 0));
  }
}

TEST_CASE("on_report__ignores_the_decision_of_an_earlier_check") {
  PathChecks checks(2, 1, 31, 1);
  core::PeerUp up;
  up.peer = 1;
  up.local_cookie = CheckedPair::cookie(0);
  up.remote_cookie = CheckedPair::cookie(1);
  checks.on_peer_up(up, true);
  base::TimeNs now = 5 * base::kSecond;
  checks.on_timeout(now, true);
  const PathChecks::ReportBytes old{std::byte{0}, std::byte{0}, std::byte{9}, std::byte{0}, std::byte{1}, std::byte{0}};
  checks.on_report(now, 1, old);
  wire::MtuProbe probe;  // something of the peer arrives
  probe.bytes = wire::kMtuProbeBytes;
  probe.prefix.type = wire::PacketType::kMtuProbe;
  probe.prefix.cookie = up.local_cookie;
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_mtu_probe(probe, bytes.data()));
  checks.on_datagram(bytes);
  checks.on_timeout(now + kTick, true);
  PathVerdict verdict;
  CHECK(!checks.poll_verdict(verdict));
}

TEST_CASE("check__a_datagram_that_arrives_late_ends_a_verdict") {
  CheckedPair pair(1);
  pair.blocked[1] = 1;
  pair.come_up();
  pair.run(2 * base::kSecond);
  REQUIRE(pair.verdicts[0].size() == 1);
  CHECK(pair.verdicts[0][0].blocked_from);
  CHECK(pair.checks[0].is_active());
  pair.blocked[1] = 0;
  std::vector<std::byte> any(wire::kMaxControlBytes);
  wire::MtuProbe probe;
  probe.bytes = wire::kMtuProbeBytes;
  probe.prefix.type = wire::PacketType::kMtuProbe;
  probe.prefix.cookie = CheckedPair::cookie(0);
  any.resize(wire::encode_mtu_probe(probe, any.data()));
  pair.post(1, 0, any);
  pair.run(10 * base::kMillisecond);
  REQUIRE(pair.verdicts[0].size() == 2);
  CHECK_FALSE(pair.verdicts[0][1].blocked_from);
  CHECK_FALSE(pair.verdicts[0][1].blocked_to);
  CHECK_FALSE(pair.checks[0].is_active());
}

TEST_CASE("on_peer_down__ends_check_and_verdict") {
  CheckedPair pair(1);
  pair.blocked[0] = 1;
  pair.come_up();
  pair.checks[0].on_peer_down(1);
  CHECK_FALSE(pair.checks[0].is_active());
  pair.come_up();
  pair.run(2 * base::kSecond);
  CHECK(pair.verdicts[0].size() == 1);
  pair.checks[0].on_peer_down(1);
  CHECK_FALSE(pair.checks[0].is_active());
}

TEST_CASE("on_report__ignores_what_is_not_one") {
  CheckedPair pair(1);
  const std::vector<std::byte> bytes(PathChecks::kReportBytes, std::byte{0});
  pair.checks[1].on_report(pair.now, 0, bytes);  // the peer is not up
  CHECK_FALSE(pair.checks[1].is_active());
  pair.come_up();
  pair.checks[1].on_report(pair.now, 0, std::span(bytes).first(3));
  CHECK_FALSE(pair.checks[1].is_active());
  pair.checks[1].on_report(pair.now, 0, bytes);
  CHECK(pair.checks[1].is_active());
}

TEST_CASE("blocked_paths_text__names_direction_addresses_and_the_way_out") {
  PathVerdict verdict;
  verdict.peer = 1;
  CHECK(engine::blocked_paths_text(0, verdict, {"10.0.0.1:5000"}, {"10.0.0.2:6000"}).empty());
  verdict.blocked_from = true;
  verdict.peer_sent = 6;
  verdict.lasted_ns = 1'230'000'000;
  const std::string text =
      engine::blocked_paths_text(0, verdict, {"10.0.0.1:5000", "10.0.1.1:5001"}, {"10.0.0.2:6000", "10.0.1.2:6001"});
  for (const char* fact : {"no datagram of rank 1 (10.0.0.2) arrived at rank 0 (UDP 10.0.0.1:5000, 10.0.1.1:5001)",
                           "0 of 12 in 1.2 s", "although TCP connects", "firewall", "MLT_PATHS"}) {
    CHECK_MESSAGE(text.find(fact) != std::string::npos, text);
  }
  CHECK(text.find("6001") == std::string::npos);
}
