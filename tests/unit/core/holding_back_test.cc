// A way that holds back by itself, as shared memory does: a full one is passed over, and no round trip slows it down.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <vector>

#include "core/endpoint.h"

using namespace mlt;
using core::PostStatus;

namespace {

constexpr std::uint32_t kLongSegment = 32'704;

// An endpoint that sends to ranks 1 and 2, and the driver's view of which of them has room.
struct Sending {
  explicit Sending(bool holds_back) {
    core::EndpointConfig config;
    config.peers = 3;
    config.max_segment_bytes = kLongSegment;
    config.timely.line_rate_bytes_per_second = 1e8;
    endpoint = std::make_unique<core::Endpoint>(config);
    for (const std::uint16_t peer : {std::uint16_t{1}, std::uint16_t{2}}) {
      core::PeerUp up;
      up.peer = peer;
      up.local_cookie = 0x1111'0000U | peer;
      up.remote_cookie = std::uint64_t{0x2222} << 16;
      up.segment_bytes = kLongSegment;
      up.window_bytes = 16U << 20;
      up.early_segments = 1'000;
      up.early_transfers = 10;
      up.holds_back = holds_back;
      endpoint->on_control(now, up);
      core::SendRequest request;
      request.operation = peer;
      request.peer = peer;
      request.data = data;
      REQUIRE(endpoint->post_send(now, request) == PostStatus::kPosted);
    }
    capabilities.room_context = this;
    capabilities.has_room_for = [](void* context, std::uint16_t peer) {
      return static_cast<Sending*>(context)->room[peer];
    };
  }
  // Bytes of data that leave for each peer at one point in time.
  std::vector<std::uint64_t> drain() {
    std::vector<std::uint64_t> sent(3);
    while (endpoint->poll_transmit(now, capabilities, *run)) sent[run->peer] += run->total_bytes;
    return sent;
  }
  base::TimeNs now = 1'000'000'000;
  std::vector<std::byte> data = std::vector<std::byte>(40 * kLongSegment);
  std::unique_ptr<core::Endpoint> endpoint;
  std::unique_ptr<core::Transmit> run = std::make_unique<core::Transmit>();
  core::TransmitCapabilities capabilities;
  std::array<bool, 3> room = {true, true, true};
};

}  // namespace

TEST_CASE("holds_back__everything_leaves_at_once_without_pacing") {
  const std::uint64_t all = 40 * std::uint64_t{kLongSegment + MLT_DATA_HEADER_BYTES};
  Sending paced(false), free(true);
  CHECK(paced.drain()[1] < all / 2);
  const auto sent = free.drain();
  CHECK(sent[1] == all);
  CHECK(sent[2] == all);
}

TEST_CASE("holds_back__a_peer_without_room_is_passed_over_and_goes_on_when_it_has_some") {
  Sending sending(true);
  sending.room[1] = false;
  auto sent = sending.drain();
  CHECK(sent[1] == 0);
  CHECK(sent[2] > 0);
  // Nothing is due because of it: the driver hears of room in another way, and may sleep till then.
  while (sending.endpoint->next_timeout() <= sending.now) sending.endpoint->on_timeout(sending.now);
  CHECK(sending.endpoint->next_timeout() > sending.now);
  sending.room[1] = true;
  sent = sending.drain();
  CHECK(sent[1] == 40 * std::uint64_t{kLongSegment + MLT_DATA_HEADER_BYTES});
  CHECK(sent[2] == 0);
}

TEST_CASE("holds_back__round_trips_change_no_rate") {
  for (const bool holds_back : {false, true}) {
    CAPTURE(holds_back);
    Sending sending(holds_back);
    sending.drain();
    const double before = sending.endpoint->rate_bytes_per_second(1);
    wire::Ack ack;
    ack.prefix.type = wire::PacketType::kAck;
    ack.prefix.cookie = 0x1111'0001U;
    ack.prefix.flags = MLT_ACK_FLAG_ECHO;
    const auto sent_at = static_cast<std::uint32_t>(sending.now);
    // The second sample is 20 ms later than the first: a queue, were it a network.
    for (std::uint32_t i = 1; i <= 2; ++i) {
      sending.now += i == 1 ? 100 * base::kMicrosecond : 20 * base::kMillisecond;
      ack.block.highest_sequence = ack.block.received_packets = i;
      ack.block.echo_timestamp_ns = sent_at;
      std::byte bytes[wire::kMaxControlBytes];
      const std::size_t size = wire::encode_ack(ack, bytes);
      sending.endpoint->on_datagram(sending.now, std::span(bytes).first(size), base::Ecn::kNotEct);
    }
    CHECK(sending.endpoint->counters().value(core::Counter::k_drop_bad_cookie) == 0);
    CHECK((sending.endpoint->rate_bytes_per_second(1) == before) == holds_back);
  }
}

TEST_CASE("holds_back__a_peer_that_waits_for_its_cpu_is_not_probed") {
  const auto probes_within = [](Sending& sending, base::DurationNs time) {
    for (const base::TimeNs end = sending.now + time; sending.now < end; sending.now += 100 * base::kMicrosecond) {
      if (sending.endpoint->next_timeout() <= sending.now) sending.endpoint->on_timeout(sending.now);
      sending.drain();
    }
    return sending.endpoint->counters().value(core::Counter::k_probes_sent);
  };
  Sending network(false), memory(true);
  network.drain();
  memory.drain();
  CHECK(probes_within(network, 90 * base::kMillisecond) > 0);
  CHECK(probes_within(memory, 90 * base::kMillisecond) == 0);
  CHECK(probes_within(memory, 20 * base::kMillisecond) > 0);  // its answer may have found no room
}
