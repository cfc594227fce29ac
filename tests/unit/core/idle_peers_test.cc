// Peers that are up and never used: hundreds of each rank's in a large job.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>

#include "core/endpoint.h"
#include "support/peer_up.h"
#include "support/small_tables.h"

using namespace mlt;

namespace {

constexpr std::uint16_t kIdlePeers = 20'000;
constexpr base::TimeNs kIdleNow = base::kSecond;

core::EndpointConfig idle_config(std::uint16_t peers) {
  core::EndpointConfig config = test::small_tables();
  config.peers = peers;
  config.max_tags = 1'024;
  config.unknown_tags = 1;
  return config;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)  // which touches the memory of every table
namespace {
std::size_t idle_resident_bytes() {
  unsigned long all = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  REQUIRE(file != nullptr);
  REQUIRE(std::fscanf(file, "%lu %lu", &all, &resident) == 2);
  std::fclose(file);
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
}  // namespace

TEST_CASE("idle_peers__that_are_up_take_less_than_200_bytes_each") {
  const std::size_t before = idle_resident_bytes();
  core::Endpoint endpoint(idle_config(kIdlePeers));
  for (std::uint16_t peer = 1; peer < kIdlePeers; ++peer) endpoint.on_control(kIdleNow, test::peer_up(0, peer));
  const std::size_t of_peers = idle_resident_bytes() - before;
  CAPTURE(of_peers);
  CHECK(of_peers < std::size_t{200} * kIdlePeers + (std::size_t{1} << 20));
}
#endif

TEST_CASE("idle_peers__look_as_they_will_when_they_are_used") {
  core::Endpoint endpoint(idle_config(3));
  core::PeerUp up = test::peer_up(0, 1);
  endpoint.on_control(kIdleNow, up);
  up = test::peer_up(0, 2);
  up.holds_back = true;
  endpoint.on_control(kIdleNow, up);
  CHECK(endpoint.rate_bytes_per_second(0) == 0);
  for (const std::uint16_t peer : {std::uint16_t{1}, std::uint16_t{2}}) {
    CAPTURE(peer);
    const double rate = endpoint.rate_bytes_per_second(peer),
                 port_rate = endpoint.port_rate_bytes_per_second(kIdleNow, peer);
    const core::PathView path = endpoint.path_view(peer, 0);
    CHECK(rate > 0);
    CHECK(endpoint.segment_count(peer, 1'433) == 2);
    CHECK(endpoint.operations_with(peer) == 0);
    CHECK(endpoint.datagram_at(peer) == 0);
    CHECK(endpoint.in_flight_bytes(peer) == 0);
    CHECK(endpoint.path_limit_bytes(peer) == 0);
    core::ReceiveRequest receive;
    receive.peer = peer;
    REQUIRE(endpoint.post_recv(kIdleNow, receive) == core::PostStatus::kPosted);
    CHECK(endpoint.operations_with(peer) == 1);
    CHECK(endpoint.rate_bytes_per_second(peer) == rate);
    CHECK(endpoint.port_rate_bytes_per_second(kIdleNow, peer) == port_rate);
    CHECK(endpoint.path_view(peer, 0).weight == path.weight);
    CHECK(endpoint.segment_count(peer, 1'433) == 2);
  }
}

TEST_CASE("idle_peers__that_went_down_before_they_were_used_take_no_operation") {
  core::Endpoint endpoint(idle_config(2));
  core::ReceiveRequest receive;
  receive.peer = 1;
  CHECK(endpoint.post_recv(kIdleNow, receive) == core::PostStatus::kPeerNotConnected);
  endpoint.on_control(kIdleNow, test::peer_up(0, 1));
  endpoint.on_control(kIdleNow, core::PeerDown{1});
  CHECK(endpoint.segment_count(1, 1) == 0);
  CHECK(endpoint.post_recv(kIdleNow, receive) == core::PostStatus::kPeerNotConnected);
  endpoint.on_control(kIdleNow, test::peer_up(0, 1));
  CHECK(endpoint.post_recv(kIdleNow, receive) == core::PostStatus::kPosted);
}
