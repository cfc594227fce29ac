// What was refused because it belongs to a connection that this side does not know yet is not lost (PROTOCOL 7.5.10).
#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <vector>

#include "core/endpoint.h"
#include "support/peer_up.h"
#include "wire/codec.h"

using namespace mlt;
using core::CompletionStatus;

namespace {

constexpr std::uint32_t kRefusedSegment = 1'432;
constexpr std::uint64_t kOld = 0xAAAA'0000, kNew = 0xCCCC'0000;  // cookies of rank 0

core::PeerUp up_with(std::uint64_t cookie) {
  core::PeerUp up = test::peer_up(1, 0);
  up.local_cookie = cookie;
  return up;
}

// Segment 0 or 1 of two, the first packets of a connection.
std::vector<std::byte> packet(std::uint64_t cookie, std::uint32_t segment) {
  wire::DataHeader header;
  header.prefix.cookie = cookie;
  header.prefix.element = wire::ElementType::kFloat32;
  header.prefix.sequence = segment + 1;
  header.prefix.flags = MLT_FLAG_UNCONFIRMED;
  if (segment == 1) header.prefix.flags |= MLT_FLAG_END_OF_ROUND;
  header.tag = 3;
  header.total_bytes = 2 * kRefusedSegment;
  header.offset_bytes = segment * kRefusedSegment;
  std::vector<std::byte> datagram(MLT_DATA_HEADER_BYTES + kRefusedSegment);
  wire::encode_data_header(header, datagram.data());
  return datagram;
}

constexpr std::uint64_t kGuessedCookie = 0xEEEE'0000;  // a guess, in rank 0's name

enum class First { kNotAtAll, kWhileNoneIsUp, kWhileTheOldIsUp, kBeforeTheOldIsUp };

core::ReceiveRequest request_of(std::span<std::byte> buffer) {
  core::ReceiveRequest request;
  request.data = buffer;
  request.tag = 3;
  request.element = wire::ElementType::kFloat32;
  request.loss_bound = 0.5;
  return request;
}

// The receive is posted once all of this happened, and the second packet arrives. Does it complete without the first?
bool completes_without_the_first(core::Endpoint& receiver, base::TimeNs now) {
  std::vector<std::byte> buffer(2 * kRefusedSegment);
  REQUIRE(receiver.post_recv(now, request_of(buffer)) == core::PostStatus::kPosted);
  receiver.on_datagram(now + 1, packet(kNew, 1), base::Ecn::kNotEct);
  receiver.on_timeout(base::kSecond);
  core::Completion completion;
  if (!receiver.poll_completion(completion)) return false;
  CHECK(completion.status == CompletionStatus::kWithinBound);
  return true;
}

// The second packet of a round arrives over a new connection. Is the first one taken for lost, within the bound?
bool taken_for_lost(First first) {
  core::EndpointConfig config;
  config.rank = 1;
  core::Endpoint receiver(config);
  const auto arrives_if = [&](First when) {
    if (first == when) receiver.on_datagram(1, packet(kNew, 0), base::Ecn::kNotEct);
  };
  arrives_if(First::kBeforeTheOldIsUp);
  receiver.on_control(2, up_with(kOld));
  arrives_if(First::kWhileTheOldIsUp);
  receiver.on_control(3, core::PeerDown{0});
  arrives_if(First::kWhileNoneIsUp);
  receiver.on_control(4, up_with(kNew));
  return completes_without_the_first(receiver, 5);
}

}  // namespace

TEST_CASE("refused__before_the_connection_was_up_is_not_taken_for_lost") {
  CHECK(taken_for_lost(First::kNotAtAll));
  CHECK_FALSE(taken_for_lost(First::kWhileNoneIsUp));
  CHECK_FALSE(taken_for_lost(First::kWhileTheOldIsUp));
  // Of what came before the earlier connection nothing can be of this one.
  CHECK(taken_for_lost(First::kBeforeTheOldIsUp));
}

namespace {

// As taken_for_lost(), where the receiver knows which cookie it gave rank 0. The first packet carries `first`.
bool taken_for_lost_with(std::uint64_t first) {
  core::EndpointConfig config;
  config.rank = 1;
  core::Endpoint receiver(config);
  receiver.set_issued_cookie(kNew);
  receiver.on_datagram(1, packet(first, 0), base::Ecn::kNotEct);
  receiver.on_control(2, up_with(kNew));
  return completes_without_the_first(receiver, 3);
}

}  // namespace

// A receive of one segment, whose only packet was refused or lost; the probe that ends its round arrives.
TEST_CASE("refused__the_only_packet_is_not_taken_for_lost_by_a_receive_that_shares_a_budget") {
  for (const bool is_refused : {false, true}) {
    CAPTURE(is_refused);
    core::EndpointConfig config;
    config.rank = 1;
    core::Endpoint receiver(config);
    if (is_refused) receiver.on_datagram(1, packet(kNew, 0), base::Ecn::kNotEct);
    receiver.on_control(2, up_with(kNew));
    std::vector<std::byte> buffer(kRefusedSegment);
    core::SharedLossBudget budget(kRefusedSegment, 4, 0.5);
    core::ReceiveRequest request = request_of(buffer);
    request.loss_bound = 0;
    request.shared_budget = &budget;
    REQUIRE(receiver.post_recv(3, request) == core::PostStatus::kPosted);
    wire::Probe probe;
    probe.prefix.type = wire::PacketType::kProbe;
    probe.prefix.cookie = kNew;
    probe.prefix.element = wire::ElementType::kFloat32;
    probe.prefix.flags = MLT_PROBE_FLAG_TRAILING;
    probe.prefix.sequence = 2;
    probe.transfer.tag = 3;
    probe.timestamp_ns = 1;
    probe.total_bytes = kRefusedSegment;
    probe.path_count = 1;
    probe.last_sequence[0] = 1;
    std::vector<std::byte> datagram(256);
    datagram.resize(wire::encode_probe(probe, datagram.data()));
    receiver.on_datagram(4, datagram, base::Ecn::kNotEct);
    receiver.on_timeout(base::kSecond);
    core::Completion completion;
    CHECK(receiver.poll_completion(completion) != is_refused);
  }
}

TEST_CASE("refused__a_datagram_with_a_guessed_cookie_delays_no_receive") {
  CHECK(taken_for_lost_with(kGuessedCookie));
  CHECK_FALSE(taken_for_lost_with(kNew));
}
