// Peers on this host: two ranks in one process agree on shared memory, or on the network.
#include "engine/local_peers.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"

using namespace mlt;

namespace {

constexpr std::uint64_t kCookie = 0x1234'5678'0001;  // that rank 0 gave to rank 1

struct LocalRank {
  explicit LocalRank(std::uint16_t own) {
    Options options;
    options.rank = own;
    options.ranks = 3;
    options.job = static_cast<std::uint64_t>(::getpid());
    io::OsError error;
    datapath = io::ShmDatapath::wrap(
        std::make_unique<engine_test::ScriptedNetwork>(std::vector{*io::SocketAddress::from_host("127.0.0.1", 5'000)}),
        3, error);
    REQUIRE_MESSAGE(datapath != nullptr, error.text);
    peers = std::make_unique<engine::LocalPeers>(options, incarnation_of(own), *datapath);
  }
  static std::uint64_t incarnation_of(std::uint16_t rank) { return 0xFEED'0000ULL + rank; }

  std::unique_ptr<io::ShmDatapath> datapath;
  std::unique_ptr<engine::LocalPeers> peers;
};

io::Hello hello_of(std::uint16_t rank) {
  io::Hello hello;
  hello.rank = rank;
  hello.cookie = kCookie;
  hello.incarnation = LocalRank::incarnation_of(rank);
  return hello;
}

core::PeerUp up_of(std::uint16_t peer, std::uint32_t segment_bytes = 1'432) {
  core::PeerUp up = engine_test::peer_up(peer, segment_bytes);
  up.local_cookie = kCookie;
  return up;
}

}  // namespace

TEST_CASE("join__moves_both_ranks_to_shared_memory_with_the_largest_multiple_of_the_segment") {
  LocalRank low(0), high(1);
  std::string error;
  core::PeerUp at_high = up_of(0), at_low = up_of(1);
  REQUIRE(high.peers->join(hello_of(0), at_high, error));  // the connecting rank offers first
  REQUIRE(low.peers->join(hello_of(1), at_low, error));
  for (const core::PeerUp& up : {at_high, at_low}) {
    CHECK(up.holds_back);
    CHECK(up.segment_bytes == 22 * 1'432);
    CHECK(up.window_bytes == engine::kShmWindowBytes);
    CHECK(up.own_window_bytes == engine::kShmWindowBytes);
  }
  CHECK(low.datapath->has_peer(1));
  CHECK(high.datapath->has_peer(0));
  low.peers->remove(1);
  CHECK_FALSE(low.datapath->has_peer(1));
}

TEST_CASE("join__leaves_the_result_of_the_hellos_to_peers_that_offer_nothing_or_are_not_here") {
  LocalRank low(0);
  std::string error;
  core::PeerUp up = up_of(1);
  CHECK(low.peers->join(hello_of(1), up, error));  // no offer
  CHECK_FALSE(up.holds_back);
  CHECK(up.segment_bytes == 1'432);
  LocalRank high(1);
  io::Hello elsewhere = hello_of(0);
  elsewhere.incarnation += 100;  // no process listens there
  up = up_of(0);
  CHECK(high.peers->join(elsewhere, up, error));
  CHECK_FALSE(up.holds_back);
  up = up_of(0, engine::kShmSegmentBytes + 8);  // too long for a packet in the ring
  CHECK(high.peers->join(hello_of(0), up, error));
  CHECK_FALSE(up.holds_back);
  CHECK_FALSE(high.datapath->has_peer(0));
  CHECK(error.empty());
}

TEST_CASE("join__fails_if_the_offer_has_other_segments") {
  LocalRank low(0), high(1);
  std::string error;
  core::PeerUp at_high = up_of(0, 1'024), at_low = up_of(1, 1'432);
  REQUIRE(high.peers->join(hello_of(0), at_high, error));
  CHECK_FALSE(low.peers->join(hello_of(1), at_low, error));
  for (const char* fact : {"rank 1", "rank 0", "31744 bytes", "31504", "MLT_DATAPATH=udp"}) {
    CAPTURE(fact);
    CHECK(error.find(fact) != std::string::npos);
  }
  CHECK_FALSE(low.datapath->has_peer(1));
}

TEST_CASE("is_crowd__where_ranks_far_outnumber_the_cpus") {
  CHECK_FALSE(engine::is_crowd(8, 2));
  CHECK(engine::is_crowd(9, 2));
  CHECK_FALSE(engine::is_crowd(8, 64));
}

TEST_CASE("are_crowd__counts_the_ranks_that_share_memory") {
  const auto cpus = static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  LocalRank low(0), high(1);
  std::string error;
  core::PeerUp at_high = up_of(0);
  REQUIRE(high.peers->join(hello_of(0), at_high, error));
  CHECK(high.datapath->peers() == 1);
  CHECK(high.peers->are_crowd() == engine::is_crowd(2, cpus));
  high.peers->remove(0);
  CHECK(high.datapath->peers() == 0);
}
