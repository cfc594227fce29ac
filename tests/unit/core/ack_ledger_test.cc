#include "core/ack_ledger.h"

#include <doctest/doctest.h>

#include <array>

#include "base/prng.h"

namespace {

using namespace mlt;
using base::Ecn;
using core::AckLedger;
using core::Counter;

constexpr std::uint16_t kPeers = 3;
constexpr std::uint8_t kLedgerPaths = 4;

struct AckLedgerWorld {
  explicit AckLedgerWorld(std::uint32_t packets_per_ack = 10) {
    for (std::uint16_t peer = 0; peer < kPeers; ++peer) acks.reset(peer, packets_per_ack);
  }
  void arrive(std::uint16_t peer, std::uint8_t path, std::uint32_t sequence, base::TimeNs at = 0,
              Ecn ecn = Ecn::kEct0) {
    acks.count(peer, at, {path, sequence, sequence + 1'000, {9, sequence}}, ecn, true, counters);
  }
  wire::AckBlock take(std::uint16_t peer, std::uint8_t path, base::TimeNs now = 0) {
    return acks.take_block(now, peer, path, fresh);
  }

  AckLedger acks{kPeers, kLedgerPaths};
  core::Counters counters;
  bool fresh = false;
};

TEST_CASE("count__makes_an_ack_due_over_all_paths") {
  AckLedgerWorld world(3);
  world.arrive(1, 0, 1);
  world.arrive(1, 2, 1);
  CHECK(world.acks.first_due() == kPeers);
  world.arrive(1, 3, 1);
  CHECK(world.acks.first_due() == 1);
  CHECK(world.acks.unreported(1) == 0b1101);
  CHECK(world.acks.unreported(2) == 0);
  // The block of one path reports one packet: two are left, too few for an ACK.
  world.take(1, 2);
  CHECK(world.acks.first_due() == kPeers);
  CHECK(world.acks.unreported(1) == 0b1001);
}

TEST_CASE("count__keeps_the_newest_packet_and_its_timestamp") {
  AckLedgerWorld world;
  world.arrive(1, 0, 5, 100);
  world.arrive(1, 0, 4, 200, Ecn::kCe);  // late: no echo of its timestamp
  const wire::AckBlock block = world.take(1, 0, 250);
  CHECK(block.highest_sequence == 5);
  CHECK(block.received_packets == 2);
  CHECK(block.ce_packets == 1);
  CHECK(block.echo_timestamp_ns == 1'005);
  CHECK(block.hold_ns == 150);
  CHECK(world.fresh);
  CHECK(world.counters.value(Counter::k_ce_marks_received) == 1);
  CHECK(world.acks.newest_transfer(1) == wire::TransferId(9, 4));  // the newest to arrive
  world.take(1, 0, 300);
  CHECK_FALSE(world.fresh);  // echoed before
}

TEST_CASE("count__takes_sequence_numbers_that_wrap_as_newer") {
  AckLedgerWorld world;
  world.arrive(1, 0, 0xFFFF'FFFF);
  world.arrive(1, 0, 1);
  CHECK(world.take(1, 0).highest_sequence == 1);
}

TEST_CASE("take_block__saturates_the_delay") {
  AckLedgerWorld world;
  world.arrive(1, 0, 1, 1'000);
  CHECK(world.take(1, 0, 10 * base::kSecond).hold_ns == 0xFFFF'FFFF);
  CHECK(world.take(1, 0, 0).hold_ns == 0);
}

TEST_CASE("add_other_blocks__adds_each_path_once_but_its_own") {
  AckLedgerWorld world;
  for (std::uint8_t path = 0; path < kLedgerPaths; ++path) world.arrive(1, path, path + 10U);
  wire::Ack ack;
  ack.prefix.path = 2;
  ack.block = world.take(1, 2);
  world.acks.add_other_blocks(0, 1, world.acks.used(1), ack);
  REQUIRE(ack.other_count == 3);
  CHECK(ack.others[0].path == 0);
  CHECK(ack.others[1].path == 1);
  CHECK(ack.others[2].path == 3);
  CHECK(ack.others[2].block.highest_sequence == 13);
  CHECK(ack.others[2].fresh);
  CHECK(world.acks.unreported(1) == 0);
  CHECK(world.acks.used(1) == 0b1111);
}

// An ACK that STOP requested is the only report of the transfer's last packets on other paths.
TEST_CASE("request__stays_due_until_everything_is_reported") {
  AckLedgerWorld world;
  for (std::uint8_t path = 0; path < 3; ++path) world.arrive(1, path, 1);
  world.take(1, 0);  // with the STOP
  world.acks.request(1);
  world.take(1, 2);  // with a BITMAP that leaves before the ACK
  CHECK(world.acks.first_due() == 1);
  SUBCASE("by the ACK") {
    wire::Ack ack;
    ack.prefix.path = 2;
    ack.block = world.take(1, 2);
    world.acks.add_other_blocks(0, 1, world.acks.unreported(1), ack);
  }
  SUBCASE("by other replies") { world.take(1, 1); }
  SUBCASE("withdrawn") { world.acks.withdraw(1); }
  CHECK(world.acks.first_due() == kPeers);
  // The request is over: one more packet makes no ACK due.
  world.arrive(1, 1, 2);
  world.take(1, 0);
  CHECK(world.acks.first_due() == kPeers);
}

TEST_CASE("request__of_a_peer_with_nothing_to_report_is_over_with_the_next_block") {
  AckLedgerWorld world;
  world.acks.request(1);
  CHECK(world.acks.first_due() == 1);
  world.take(1, 0);
  CHECK(world.acks.first_due() == kPeers);
}

TEST_CASE("reset__forgets_the_connection_and_the_ack_that_was_due") {
  AckLedgerWorld world(1);
  world.arrive(1, 3, 1);
  REQUIRE(world.acks.first_due() == 1);
  world.acks.reset(1, 2);
  CHECK(world.acks.first_due() == kPeers);
  CHECK(world.acks.used(1) == 0);
  world.arrive(1, 0, 1);
  CHECK(world.acks.first_due() == kPeers);
  world.arrive(1, 0, 2);
  CHECK(world.acks.first_due() == 1);
}

TEST_CASE("ledger__reports_every_packet_once") {
  AckLedgerWorld world(7);
  base::Prng prng(3);
  std::array<std::array<std::uint32_t, kLedgerPaths>, kPeers> arrived{};
  std::array<std::array<std::uint32_t, kLedgerPaths>, kPeers> unreported{};
  for (int step = 0; step < 20'000; ++step) {
    const auto peer = static_cast<std::uint16_t>(prng.below(kPeers));
    const auto path = static_cast<std::uint8_t>(prng.below(kLedgerPaths));
    if (prng.chance(0.8)) {
      world.arrive(peer, path, ++arrived[peer][path]);
      ++unreported[peer][path];
    } else {
      REQUIRE(world.take(peer, path).received_packets == arrived[peer][path]);
      REQUIRE(world.fresh == (unreported[peer][path] > 0));
      unreported[peer][path] = 0;
    }
    for (std::uint16_t rank = 0; rank < kPeers; ++rank) {
      std::uint32_t sum = 0, paths = 0;
      for (std::uint8_t i = 0; i < kLedgerPaths; ++i) {
        sum += unreported[rank][i];
        if (unreported[rank][i] > 0) paths |= 1U << i;
      }
      REQUIRE(world.acks.unreported(rank) == paths);
      if (sum < 7) REQUIRE(world.acks.first_due() != rank);
      if (sum >= 7) REQUIRE(world.acks.first_due() <= rank);
    }
  }
}

}  // namespace
