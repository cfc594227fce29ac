// The spray alone: how it chooses and what it concludes from reports. paths_test.cc has it in a network.
#include "core/path_spray.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using core::PathSpray;

namespace {

// A spray of four paths and what the receiver would report of each.
struct Spray {
  PathSpray spray{4};
  std::array<wire::AckBlock, 4> blocks{};
  std::array<std::uint32_t, 4> sent{};
  base::TimeNs now = 1'000'000'000;

  std::uint8_t send(std::uint32_t packets) {
    std::uint32_t limit = packets;
    const std::uint8_t path = spray.choose(now, limit);
    for (std::uint32_t i = 0; i < limit; ++i) sent[path] = spray.next_sequence(path);
    spray.sent(now, path, limit);
    return path;
  }
  // All that was sent on `path` but `lost` packets has arrived; the newest of them left just now.
  bool report(std::uint8_t path, std::uint32_t lost = 0) {
    blocks[path].received_packets += sent[path] - blocks[path].highest_sequence - lost;
    blocks[path].highest_sequence = sent[path];
    return spray.on_block(path, blocks[path], now);
  }
};

}  // namespace

TEST_CASE("choose__equal_paths_take_turns") {
  Spray s;
  for (std::uint8_t i = 0; i < 40; ++i) CHECK(s.send(8) == i % 4);
}

TEST_CASE("choose__counts_packets_and_not_runs") {
  Spray s;
  // Every fifth run is long: paths that carried one are passed over until the others have as many packets.
  for (int i = 0; i < 4'000; ++i) s.send(i % 5 == 0 ? 40 : 3);
  const std::uint32_t fair = 4'000 / 5 * (40 + 4 * 3) / 4;
  for (const std::uint32_t packets : s.sent) {
    CHECK(packets < fair + 80);
    CHECK(packets > fair - 80);
  }
}

TEST_CASE("choose__one_path_needs_no_choice") {
  PathSpray spray(1);
  std::uint32_t limit = 7;
  CHECK(spray.choose(5, limit) == 0);
  CHECK(limit == 7);
}

TEST_CASE("loses_some__a_tenth_is_congestion_where_packets_queue") {
  Spray s;
  for (int i = 0; i < 4'000; ++i) {
    const std::uint8_t path = s.send(100);
    s.report(path, path == 1 ? 2 : path == 2 ? 30 : 0);
    s.spray.after_report(s.now += kMicrosecond);
  }
  for (const bool queued : {false, true}) {
    CHECK_FALSE(s.spray.loses_some(0, queued));
    CHECK(s.spray.loses_some(1, queued));
    CHECK(s.spray.loses_some(2, queued) == !queued);
  }
}

TEST_CASE("report__loss_is_what_was_sent_and_did_not_arrive") {
  Spray s;
  for (int i = 0; i < 4'000; ++i) {
    const std::uint8_t path = s.send(10);
    s.report(path, path == 2 ? 1 : 0);
    s.spray.after_report(s.now += kMicrosecond);
  }
  CHECK(s.spray.view(0).loss == 0);
  CHECK(s.spray.view(2).loss == doctest::Approx(0.1).epsilon(0.05));
  CHECK(s.spray.view(2).packets_sent == s.sent[2]);
  CHECK(s.spray.view(2).packets_reported == s.blocks[2].received_packets);
  CHECK(s.spray.view(0).weight == PathSpray::kFullWeight);
  CHECK(s.spray.view(2).weight < PathSpray::kFullWeight / 4);
  CHECK(s.spray.view(2).weight >= PathSpray::kMinWeight);
}

TEST_CASE("report__what_all_paths_lose_is_no_reason_to_prefer_one") {
  Spray s;
  for (int i = 0; i < 8'000; ++i) {
    const std::uint8_t path = s.send(10);
    s.report(path, i % 8 < 4 ? 1 : 0);  // 5 % on each
    s.spray.after_report(s.now += kMicrosecond);
  }
  for (std::uint8_t path = 0; path < 4; ++path) CHECK(s.spray.view(path).weight > PathSpray::kFullWeight / 2);
}

TEST_CASE("report__late_packets_are_taken_off_the_loss_again") {
  Spray s;
  s.sent[0] = 0;
  s.send(100);
  s.report(0, 50);
  const double before = s.spray.view(0).loss;
  CHECK(before > 0.05);
  s.blocks[0].received_packets += 50;
  CHECK_FALSE(s.spray.on_block(0, s.blocks[0], s.now));
  CHECK(s.spray.view(0).loss < before / 5);
}

TEST_CASE("report__an_older_one_or_one_beyond_what_was_sent_changes_nothing") {
  Spray s;
  s.send(10);
  const wire::AckBlock old{5, 5, 0, 0, 0};
  s.report(0);
  CHECK(s.spray.packets_in_flight() == 0);
  const std::uint64_t reported = s.spray.view(0).packets_reported;
  CHECK_FALSE(s.spray.on_block(0, old, s.now));
  CHECK(s.spray.view(0).packets_reported == reported);
  s.send(10);  // on path 1
  CHECK_FALSE(s.spray.on_block(1, {11, 0, 0, 0, 0}, s.now));
  CHECK(s.spray.packets_in_flight() == 10);
}

TEST_CASE("silence__is_concluded_from_siblings_and_ends_with_the_first_arrival") {
  Spray s;
  std::array<int, 4> used{};
  const auto round = [&](bool path_1_works) {
    for (int i = 0; i < 400; ++i) {
      const std::uint8_t path = s.send(4);
      ++used[path];
      if (path != 1 || path_1_works) s.report(path);
      s.spray.after_report(s.now += 100 * kMicrosecond);
    }
  };
  round(true);
  CHECK_FALSE(s.spray.is_suspended(1));
  round(false);
  CHECK(s.spray.is_suspended(1));
  CHECK(s.spray.take_changes().suspended == 1);
  CHECK(s.spray.view(1).weight == 0);
  CHECK(s.spray.control_path() != 1);
  used = {};
  for (int i = 0; i < 10; ++i) round(false);  // 400 ms
  CHECK(used[1] >= 2);
  CHECK(used[1] <= 6);  // 20, 40, 80, 160 ms
  // Packets declared lost are not in flight.
  CHECK(s.spray.packets_in_flight() <= 1);
  CHECK(s.spray.is_excluded(1));
  CHECK_FALSE(s.spray.is_excluded(0));
  used = {};
  for (int i = 0; i < 40; ++i) round(true);
  CHECK_FALSE(s.spray.is_suspended(1));
  CHECK(s.spray.take_changes().resumed == 1);
  CHECK(s.spray.view(1).weight == PathSpray::kFullWeight);
  CHECK(used[1] > 1'000);
}

TEST_CASE("silence__is_not_ended_by_a_late_report_of_what_came_before_it") {
  // With a dead spine die the ACKs that tell of its last packets: a later one brought the path back for a round.
  Spray s;
  for (int i = 0; i < 40; ++i) s.report(s.send(4));
  while (s.send(4) != 1) {
  }
  wire::AckBlock late = s.blocks[1];
  late.highest_sequence = s.sent[1];
  late.received_packets += 4;
  for (int i = 0; i < 400 && !s.spray.is_suspended(1); ++i) {
    if (const std::uint8_t path = s.send(4); path != 1) s.report(path);
    s.spray.after_report(s.now += 100 * kMicrosecond);
  }
  REQUIRE(s.spray.is_suspended(1));
  s.spray.on_block(1, late, base::kNever);
  CHECK(s.spray.is_suspended(1));
  CHECK(s.spray.take_changes().resumed == 0);
  CHECK(s.spray.view(1).packets_reported == late.received_packets);
  // The packet that goes there after 20 ms tells.
  s.now += PathSpray::kSuspendedProbeNs;
  while (s.send(4) != 1) {
  }
  late.highest_sequence = s.sent[1];
  ++late.received_packets;
  s.spray.on_block(1, late, s.now);
  CHECK_FALSE(s.spray.is_suspended(1));
}

TEST_CASE("declare_lost__reaches_what_was_sent_after_the_last_report_even_if_nothing_follows") {
  // Two bursts on path 0: the report of the first leaves the second in flight, and nothing more is sent there. When its
  // siblings' later packets have arrived, it has to leave the window.
  Spray s;
  while (s.send(1) != 0) s.report(1), s.report(2), s.report(3);
  const std::uint32_t first = s.sent[0];
  s.now += 100 * kMicrosecond;
  for (std::uint32_t i = 0; i < 3; ++i) s.sent[0] = s.spray.next_sequence(0);
  s.spray.sent(s.now, 0, 3);
  s.blocks[0].received_packets += first - s.blocks[0].highest_sequence;
  s.blocks[0].highest_sequence = first;
  s.spray.on_block(0, s.blocks[0], s.now);
  const std::uint64_t before = s.spray.packets_in_flight();
  REQUIRE(before >= 3);
  s.now += 50 * kMillisecond;  // of siblings, long after
  for (std::uint8_t path = 1; path < 4; ++path) {
    s.sent[path] = s.spray.next_sequence(path);
    s.spray.sent(s.now, path, 1);
    s.report(path);
  }
  CHECK(s.spray.after_report(s.now));
  CHECK(s.spray.packets_in_flight() == 0);
}

TEST_CASE("silence__of_all_paths_at_once_is_the_peers_and_no_paths") {
  Spray s;
  for (int i = 0; i < 100; ++i) s.send(4);
  s.spray.declare_all_lost();
  for (int i = 0; i < 100; ++i) s.send(4);
  s.spray.declare_all_lost();
  for (std::uint8_t path = 0; path < 4; ++path) CHECK_FALSE(s.spray.is_suspended(path));
  CHECK(s.spray.packets_in_flight() == 0);
  for (std::uint8_t path = 0; path < 4; ++path) CHECK_FALSE(s.spray.is_excluded(path));
}

TEST_CASE("delay__a_path_far_slower_than_the_best_is_used_less_and_gives_no_rate_sample") {
  Spray s;
  for (int i = 0; i < 400; ++i) {
    const std::uint8_t path = s.send(4);
    s.report(path);
    const base::DurationNs rtt = path == 3 ? kMillisecond : 100 * kMicrosecond;
    const base::DurationNs rate = s.spray.on_sample(path, 0, rtt);
    if (i > 100) CHECK(rate == (path == 3 ? 0 : 100 * kMicrosecond));
    s.spray.after_report(s.now += kMicrosecond);
  }
  CHECK(s.spray.view(3).rtt_ns == doctest::Approx(kMillisecond));
  CHECK(s.spray.view(3).weight < PathSpray::kFullWeight / 4);
}

TEST_CASE("delay__a_path_that_is_far_too_late_rests_until_a_packet_of_it_is_in_time") {
  Spray s;
  std::vector<base::TimeNs> carried;  // when path 3 had a packet while it was late
  base::DurationNs late_ns = 20 * kMillisecond;
  const auto turn = [&] {
    const std::uint8_t path = s.send(4);
    if (path == 3 && s.spray.view(3).resting) carried.push_back(s.now);
    s.report(path);
    s.spray.on_sample(path, 0, path == 3 ? late_ns : 100 * kMicrosecond);
    s.spray.after_report(s.now += 100 * kMicrosecond);
  };
  for (int i = 0; i < 30'000; ++i) turn();  // 3 s
  CHECK(s.spray.view(3).resting);
  CHECK_FALSE(s.spray.is_suspended(3));
  CHECK(s.spray.view(3).weight == 0);
  // After 20, 40, 80, 160, 320, 640, 640 and 640 ms, each time one packet.
  REQUIRE(carried.size() == 8);
  for (std::size_t i = 1; i < carried.size(); ++i) {
    const base::DurationNs expected = std::min<base::DurationNs>(20 * kMillisecond << i, 640 * kMillisecond);
    CHECK(carried[i] - carried[i - 1] >= expected);
    CHECK(carried[i] - carried[i - 1] < expected + kMillisecond);
  }
  late_ns = 100 * kMicrosecond;
  for (int i = 0; i < 6'500; ++i) turn();  // 650 ms
  CHECK_FALSE(s.spray.view(3).resting);
  CHECK(s.spray.view(3).weight == PathSpray::kFullWeight);
}

// Every sample contains the way back: where that is late, all are, and a late path is at most twice as late as the
// best.
TEST_CASE("control_path__leaves_one_that_is_late_in_both_directions") {
  Spray s;
  const auto turns = [&](base::DurationNs back_ns, std::uint8_t reply_path) {
    for (int i = 0; i < 500; ++i) {
      const std::uint8_t path = s.send(4);
      s.report(path);
      s.spray.on_sample(path, reply_path, (path == 0 ? 20 * kMillisecond : 100 * kMicrosecond) + back_ns);
      s.spray.after_report(s.now += 100 * kMicrosecond);
    }
  };
  REQUIRE(s.spray.control_path() == 0);
  turns(20 * kMillisecond, 0);
  const std::uint8_t control = s.spray.control_path();
  CHECK(control != 0);
  turns(0, control);
  CHECK(s.spray.control_path() == control);
  CHECK(s.spray.view(0).resting);
}

namespace {

// Turns of 100 us: path 3 is 20 ms late, the others answer after `others_ns`, all replies over `control`.
void run(Spray& s, int turns, base::DurationNs others_ns, std::uint8_t control, base::DurationNs late_ns) {
  for (int i = 0; i < turns; ++i) {
    const std::uint8_t path = s.send(4);
    s.report(path);
    s.spray.on_sample(path, control, path == 3 ? late_ns : others_ns);
    s.spray.after_report(s.now += 100 * kMicrosecond);
  }
}

}  // namespace

TEST_CASE("delay__a_path_still_rests_when_the_measurements_begin_anew") {
  Spray s;
  run(s, 400, 100 * kMicrosecond, 0, 20 * kMillisecond);
  REQUIRE(s.spray.view(3).resting);
  s.spray.try_another_control_path(s.now);
  const std::uint8_t control = s.spray.control_path();
  REQUIRE(control != 0);
  REQUIRE(control != 3);
  s.spray.on_sample(control, control, 100 * kMicrosecond);
  s.spray.after_report(s.now += kMicrosecond);
  CHECK(s.spray.view(3).resting);
  CHECK(s.spray.view(3).weight == 0);
}

TEST_CASE("delay__a_path_that_rested_hides_no_queue_that_all_share") {
  Spray s;
  run(s, 400, 100 * kMicrosecond, 0, 100 * kMicrosecond);
  run(s, 400, 100 * kMicrosecond, 0, 20 * kMillisecond);
  REQUIRE(s.spray.view(3).resting);
  // A queue of 1 ms has come up on every path, and path 3 is no later than the others.
  run(s, 10'000, 1'100 * kMicrosecond, 0, 1'100 * kMicrosecond);
  CHECK_FALSE(s.spray.view(3).resting);
  for (std::uint8_t path = 0; path < 4; ++path) {
    CHECK(s.spray.on_sample(path, 0, 1'100 * kMicrosecond) == 1'100 * kMicrosecond);
  }
}

TEST_CASE("delay__one_late_sample_rests_no_path") {
  Spray s;
  for (std::uint8_t path = 0; path < 4; ++path) {
    s.spray.on_sample(path, 0, path == 3 ? 20 * kMillisecond : 100 * kMicrosecond);
  }
  s.spray.after_report(s.now);
  CHECK_FALSE(s.spray.view(3).resting);
}

TEST_CASE("delay__a_suspended_path_keeps_its_intervals_however_its_siblings_vary") {
  Spray s;
  std::vector<base::TimeNs> retries;
  for (int i = 0; i < 50'000; ++i) {
    const std::uint8_t path = s.send(4);
    if (path == 3 && s.spray.is_suspended(3)) retries.push_back(s.now);
    const base::DurationNs others = (i / 50) % 2 == 0 ? 60 * kMicrosecond : 100 * kMicrosecond;
    if (path != 3 || i < 400) {
      s.report(path);
      s.spray.on_sample(path, 0, path == 3 ? 1'200 * kMicrosecond : others);
    }
    s.spray.after_report(s.now += 100 * kMicrosecond);
  }
  REQUIRE(s.spray.is_suspended(3));
  CHECK(retries.size() >= 10);  // 5 s: 20 to 640 ms apart
  CHECK(retries.size() <= 13);
}

TEST_CASE("delay__a_path_that_carries_no_data_is_no_measure_of_the_others") {
  Spray s;
  run(s, 400, 100 * kMicrosecond, 0, 100 * kMicrosecond);
  s.spray.set_narrow(0, true);
  run(s, 2'000, 3 * kMillisecond, 0, 3 * kMillisecond);
  for (std::uint8_t path = 1; path < 4; ++path) {
    CHECK_FALSE(s.spray.view(path).resting);
    CHECK(s.spray.view(path).weight == PathSpray::kFullWeight);
  }
}

TEST_CASE("delay__a_resting_path_is_tried_at_once_when_nothing_else_answers") {
  Spray s;
  run(s, 20'000, 100 * kMicrosecond, 0, 20 * kMillisecond);  // 2 s: the next retry is up to 640 ms away
  REQUIRE(s.spray.view(3).resting);
  s.spray.declare_all_lost();
  CHECK(s.send(1) == 3);
  s.spray.try_another_control_path(s.now);
  CHECK(s.send(1) == 3);
}

TEST_CASE("delay__a_path_rests_no_longer_once_it_is_the_best_that_is_left") {
  Spray s;
  const auto turn = [&](bool others_arrive) {
    const std::uint8_t path = s.send(4);
    if (path != 3 && !others_arrive) return;
    s.report(path);
    s.spray.on_sample(path, 0, path == 3 ? 20 * kMillisecond : 100 * kMicrosecond);
    s.spray.after_report(s.now += kMillisecond);
  };
  for (int i = 0; i < 400; ++i) turn(true);
  REQUIRE(s.spray.view(3).resting);
  for (int i = 0; i < 4'000; ++i) {
    s.now += kMillisecond;
    turn(false);
  }
  for (std::uint8_t path = 0; path < 3; ++path) CHECK(s.spray.is_suspended(path));
  CHECK_FALSE(s.spray.view(3).resting);
  CHECK(s.spray.view(3).weight == PathSpray::kFullWeight);
}

TEST_CASE("delay__a_constant_difference_is_taken_off_the_rate_samples") {
  Spray s;
  for (int i = 0; i < 100; ++i) {
    const std::uint8_t path = s.send(4);
    s.report(path);
    const base::DurationNs queue = i % 8 < 4 ? 0 : 20 * kMicrosecond;
    const base::DurationNs rtt = (path == 3 ? 150 : 100) * kMicrosecond + queue;
    const base::DurationNs rate = s.spray.on_sample(path, 0, rtt);
    if (i > 8) CHECK(rate == 100 * kMicrosecond + queue);
    s.spray.after_report(s.now += kMicrosecond);
  }
}

TEST_CASE("delay__samples_with_replies_over_another_path_are_not_mixed") {
  Spray s;
  for (std::uint8_t path = 0; path < 4; ++path) CHECK(s.spray.on_sample(path, 0, 100 * kMicrosecond) > 0);
  CHECK(s.spray.on_sample(1, 2, kMillisecond) == 0);
  CHECK(s.spray.view(1).rtt_ns == 100 * kMicrosecond);
  s.spray.try_another_control_path(s.now);
  REQUIRE(s.spray.control_path() == 1);
  // The new way back is longer by 900 us: that is no queue.
  CHECK(s.spray.on_sample(1, 1, kMillisecond) == 100 * kMicrosecond);
  CHECK(s.spray.on_sample(2, 0, 100 * kMicrosecond) == 0);  // a straggler by the old way
}

TEST_CASE("control_path__leaves_one_without_replies_and_returns_when_it_is_the_fastest") {
  Spray s;
  CHECK(s.spray.control_path() == 0);
  s.spray.on_probe_reply(0, 100 * kMicrosecond);
  s.spray.try_another_control_path(s.now);
  CHECK(s.spray.control_path() == 1);
  s.spray.on_probe_reply(1, kMillisecond);
  s.spray.after_report(s.now);
  CHECK(s.spray.control_path() == 2);  // 1 is slow, 0 did not answer just now
  s.spray.on_probe_reply(2, 2 * kMillisecond);
  s.spray.after_report(s.now);
  s.spray.on_probe_reply(3, 2 * kMillisecond);
  s.spray.after_report(s.now);
  CHECK(s.spray.control_path() == 1);  // the least slow of those that answer
  s.spray.after_report(s.now += PathSpray::kProbeBackoffNs);
  CHECK(s.spray.control_path() == 0);
}

// ---- the numbers' wrap ---------------------------------------------------------------------------------------------

// 0 is no number: it would say "none". Neither loss nor packets in flight show where the numbers began.
TEST_CASE("sequence__skips_zero_and_counts_no_loss_for_it") {
  for (const std::uint32_t before : {1U, 2U, 5U, 50U}) {
    CAPTURE(before);
    PathSpray spray(1, 0U - before);
    wire::AckBlock block;
    CHECK(spray.packets_in_flight() == 0);
    for (std::uint32_t round = 0; round < 20; ++round) {
      std::uint32_t last = 0;
      for (int i = 0; i < 7; ++i) {
        last = spray.next_sequence(0);
        REQUIRE(last != 0);
      }
      spray.sent(round, 0, 7);
      CHECK(spray.packets_in_flight() == 7);
      // Before anything came a receiver reports 0: that resolves nothing, wherever the numbers stand.
      CHECK_FALSE(spray.on_block(0, wire::AckBlock{.received_packets = block.received_packets}, kMillisecond));
      CHECK(spray.packets_in_flight() == 7);
      block.highest_sequence = last;
      block.received_packets += 7;
      CHECK(spray.on_block(0, block, kMillisecond));
      CHECK(spray.packets_in_flight() == 0);
      CHECK(spray.view(0).loss == 0.0);
    }
  }
}
