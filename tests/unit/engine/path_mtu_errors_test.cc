// Errors of paths whose MTU is too small: when they are known, and what the endpoint is told.
#include "engine/path_mtu_errors.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "io/net/egress_mtu.h"
#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"

using namespace mlt;

namespace {

using engine_test::kLoopback;
// 192.0.2.0/24 is reserved for documentation: no interface has it, and the MTU is unknown.
const io::SocketAddress kNowhere = *io::SocketAddress::from_host("192.0.2.1", 5'000);
// Too long for a packet over loopback, whose MTU is 65,535 for IPv4.
constexpr std::uint32_t kLongSegment = 65'600;

struct PathMtuErrorsWorld {
  explicit PathMtuErrorsWorld(std::vector<io::SocketAddress> paths) : network(paths) {
    endpoint.on_control(1, engine_test::peer_up(1, kLongSegment));
    peers.on_up(1, paths, kLongSegment, kLongSegment);
    run.peer = 1;
    run.path = 0;
    run.datagram_bytes = run.total_bytes = kLongSegment + MLT_DATA_HEADER_BYTES;
  }

  engine_test::ScriptedNetwork network;
  core::Endpoint endpoint{engine_test::small_config(kLongSegment)};
  engine::PeerTable peers{0, 3};
  engine::PathMtuErrors errors{0, 3, peers, endpoint, network};
  core::Transmit run;
};

}  // namespace

TEST_CASE("on_too_large__names_the_interfaces_mtu_and_fails_sends_with_longer_segments") {
  PathMtuErrorsWorld world({kLoopback});
  std::vector<std::byte> data(100'000);
  core::SendRequest request;
  request.operation = 7;
  request.peer = 1;
  request.tag = 1;
  request.data = data;
  REQUIRE(world.endpoint.post_send(1, request) == core::PostStatus::kPosted);
  CHECK(world.errors.text(1).empty());

  world.errors.on_too_large(2, world.run);
  const std::uint32_t mtu = io::egress_mtu(kLoopback, kLoopback);
  CHECK(world.errors.text(1) ==
        "MTU mismatch: the interface of rank 0 towards rank 1 (127.0.0.1) carries packets of at most " +
            std::to_string(mtu) +
            " bytes, not of 65668 bytes (segments of 65600 bytes); set "
            "Context(segment_bytes=" +
            std::to_string((mtu - 28 - MLT_DATA_HEADER_BYTES) / 8 * 8) +
            ") on every rank, or set one MTU on both hosts and every switch between them (`ip link set DEVICE mtu "
            "...`); `mlt doctor 127.0.0.1` measures it");
  CHECK(world.errors.text(2).empty());
  core::Completion done;
  REQUIRE(world.endpoint.poll_completion(done));
  CHECK(done.operation == 7);
  CHECK(done.status == core::CompletionStatus::kPeerFailed);
}

TEST_CASE("on_too_large__is_no_mtu_error_if_the_interface_carries_the_packet_or_is_unknown") {
  PathMtuErrorsWorld fits({kLoopback});
  fits.run.datagram_bytes = 1'472;
  fits.errors.on_too_large(2, fits.run);
  CHECK(fits.errors.text(1).empty());

  PathMtuErrorsWorld unknown({kLoopback, kNowhere});  // one path of two may still carry it
  unknown.errors.on_too_large(2, unknown.run);
  CHECK(unknown.errors.text(1).empty());
}

TEST_CASE("on_sent__disproves_the_error_of_that_peer") {
  PathMtuErrorsWorld world({kLoopback});
  world.errors.on_too_large(2, world.run);
  world.errors.on_sent(2);
  CHECK_FALSE(world.errors.text(1).empty());
  world.errors.on_sent(1);
  CHECK(world.errors.text(1).empty());
}

TEST_CASE("peer_or_path_error__is_the_peers_once_it_is_down") {
  PathMtuErrorsWorld world({kLoopback});
  CHECK(world.errors.peer_or_path_error(1).empty());
  world.errors.on_too_large(2, world.run);
  CHECK(world.errors.peer_or_path_error(1) == world.errors.text(1));
  world.peers.on_down(1, io::PeerDownCause::kLost, "rank 1 ended");
  CHECK(world.errors.peer_or_path_error(1) == "rank 1 ended");
}

// The payload that arrives, as the sender's ABORT names it: 28 bytes of IP and UDP and 40 of DATA come before it.
TEST_CASE("reported_text__names_the_way_from_the_peer_and_the_packets_that_it_carries") {
  PathMtuErrorsWorld world({kLoopback});
  CHECK(world.errors.reported_text(1, 1'332) ==
        "MTU mismatch: the path from rank 1 (127.0.0.1) to rank 0 carries packets of at most 1400 bytes, not of 65668 "
        "bytes (segments of 65600 bytes), as rank 1 found; set Context(segment_bytes=1328) on every rank, or set one "
        "MTU on both hosts and every switch between them (`ip link set DEVICE mtu ...`); `mlt doctor 127.0.0.1` "
        "measures it");
  CHECK(world.errors.text(1).empty());
}

TEST_CASE("path_mtu_error_text__tells_a_probed_limit_from_the_interfaces") {
  engine::PathMtuError error;
  error.rank = 2;
  error.peer = 3;
  error.host = "10.0.0.3";
  error.segment_bytes = 1'432;
  error.packet_bytes = 1'500;
  error.path_bytes = 1'400;
  error.source = engine::PathMtuSource::kProbes;
  const std::string text = engine::path_mtu_error_text(error);
  CHECK(
      text.starts_with("MTU mismatch: the path from rank 2 to rank 3 (10.0.0.3) drops packets of 1500 bytes (segments "
                       "of 1432 bytes) but carries packets of 1400 bytes, as mlt's MTU probes measured; set one MTU"));
  error.fitting_bytes = 1'328;
  CHECK(engine::path_mtu_error_text(error).find("set Context(segment_bytes=1328) on every rank, or set one MTU") !=
        std::string::npos);
}
