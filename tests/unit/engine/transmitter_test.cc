// Batches from the endpoint to the datapath, and what becomes of those that the system does not accept.
#include "engine/transmitter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "io/os/clock.h"
#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"
#include "wire/codec.h"

using namespace mlt;

namespace {

using engine_test::kLoopback;

struct TransmitterWorld {
  explicit TransmitterWorld(std::uint32_t max_run_segments = 1, std::uint32_t max_run_bytes = base::kMaxRunBytes) {
    auto scripted = std::make_unique<engine_test::ScriptedNetwork>(std::vector{kLoopback});
    scripted->capabilities_.max_run_segments = max_run_segments;
    scripted->capabilities_.max_run_bytes = max_run_bytes;
    network = scripted.get();
    datapath.network = network;
    datapath.outer = std::move(scripted);
    core::PeerUp up = engine_test::peer_up(1);
    up.early_segments = up.early_transfers = 64;
    endpoint.on_control(io::monotonic_now(), up);
    peers.on_up(1, {kLoopback}, 1'432, 1'432);
    errors = std::make_unique<engine::PathMtuErrors>(0, 3, peers, endpoint, *network);
    transmitter = std::make_unique<engine::Transmitter>(3, endpoint, datapath, *errors);
    if (max_run_segments == 1) {
      post(1, data);
      return;
    }
    // Of what leaves next, several are expected.
    for (int i = 0; i < 2; ++i) post(1, std::span(data).first(64));
    REQUIRE(transmitter->transmit(1, 2));
    first_calls = calls();
    network->sent.clear();
  }

  void post(std::uint16_t peer, std::span<const std::byte> bytes) {
    core::SendRequest request;
    request.operation = ++operations;
    request.peer = peer;
    request.tag = operations;
    request.data = bytes;
    REQUIRE(endpoint.post_send(io::monotonic_now(), request) == core::PostStatus::kPosted);
  }
  static core::EndpointConfig config() {
    core::EndpointConfig config = engine_test::small_config();
    config.max_sends = 64;
    return config;
  }
  // Datagrams in each call of the network.
  std::vector<std::uint32_t> calls() const {
    std::vector<std::uint32_t> found;
    for (const auto& sent : network->sent) found.push_back(sent.datagrams);
    return found;
  }

  core::OperationId operations = 0;
  std::vector<std::uint32_t> first_calls;
  std::vector<std::byte> data = std::vector<std::byte>(4 * 1'432);
  engine_test::ScriptedNetwork* network = nullptr;
  engine::OpenedDatapath datapath;
  core::Endpoint endpoint{config()};
  engine::PeerTable peers{0, 3};
  std::unique_ptr<engine::PathMtuErrors> errors;
  std::unique_ptr<engine::Transmitter> transmitter;
};

}  // namespace

TEST_CASE("transmit__sends_batches_within_the_budget_and_the_datapaths_capabilities") {
  TransmitterWorld world;
  CHECK(world.transmitter->transmit(1, 1));
  REQUIRE(world.network->sent.size() == 1);
  CHECK(world.network->sent[0].peer == 1);
  CHECK(world.network->sent[0].bytes == 1'432 + MLT_DATA_HEADER_BYTES);  // max_run_segments is 1
  CHECK(world.transmitter->has_more());
  CHECK(world.transmitter->transmit(1, 2));
  CHECK(world.network->sent.size() == 3);
  CHECK(world.transmitter->failures() == 0);
  CHECK(world.transmitter->last_error(1).empty());
}

TEST_CASE("transmit__keeps_the_reason_of_a_batch_that_the_system_rejects") {
  TransmitterWorld world;
  world.network->status = io::SendStatus::kFailed;
  CHECK(world.transmitter->transmit(1, 1));
  CHECK(world.network->sent.size() == 1);  // no retry: it counts as lost
  CHECK(world.transmitter->failures() == 1);
  CHECK(world.transmitter->last_error(1) == "sendmsg() failed: EPERM");
  CHECK(world.transmitter->last_error(2).empty());
}

TEST_CASE("transmit__counts_a_batch_as_lost_after_the_system_accepted_none_for_a_while") {
  TransmitterWorld world;
  world.network->status = io::SendStatus::kWouldBlock;
  CHECK(world.transmitter->transmit(1, 1));
  CHECK(world.network->sent.size() > 1);
  CHECK(world.transmitter->failures() == 1);
  CHECK(world.transmitter->last_error(1).empty());
}

TEST_CASE("transmit__a_batch_too_large_is_no_mtu_error_if_the_interface_would_carry_it") {
  TransmitterWorld world;
  world.network->status = io::SendStatus::kTooLarge;
  CHECK(world.transmitter->transmit(1, 1));
  CHECK(world.transmitter->failures() == 1);
  CHECK(world.errors->text(1).empty());
}

TEST_CASE("transmit__a_short_batch_leaves_at_once_where_one_left_alone_before") {
  TransmitterWorld world(64);
  CHECK(world.first_calls == std::vector<std::uint32_t>{1, 1});
  world.post(1, std::span(world.data).first(64));
  CHECK(world.transmitter->transmit(1, 16));
  world.network->sent.clear();
  for (int i = 0; i < 10; ++i) world.post(1, std::span(world.data).first(64));
  CHECK(world.transmitter->transmit(1, 16));
  CHECK(world.calls() == std::vector<std::uint32_t>{1, 9});
}

TEST_CASE("transmit__short_batches_that_follow_each_other_leave_in_one_call") {
  TransmitterWorld world(64);
  for (int i = 0; i < 40; ++i) world.post(1, std::span(world.data).first(64));
  CHECK(world.transmitter->transmit(1, 1));
  CHECK_FALSE(world.transmitter->has_more());
  CHECK(world.calls() == std::vector<std::uint32_t>{40});
  CHECK(world.network->sent[0].bytes == 40 * (64 + MLT_DATA_HEADER_BYTES));
  CHECK_FALSE(world.transmitter->transmit(1, 1));
  CHECK(world.network->sent.size() == 1);
}

TEST_CASE("transmit__each_datagram_of_a_call_is_what_its_batch_was") {
  TransmitterWorld world(64);
  for (std::size_t i = 0; i < 3; ++i) {
    std::fill_n(world.data.begin() + static_cast<std::ptrdiff_t>(64 * i), 64, static_cast<std::byte>(i + 1));
    world.post(1, std::span(world.data).subspan(64 * i, 64));
  }
  CHECK(world.transmitter->transmit(1, 1));
  REQUIRE(world.calls() == std::vector<std::uint32_t>{3});
  const std::vector<std::byte>& content = world.network->sent[0].content;
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    wire::DataHeader header;
    std::span<const std::byte> payload;
    const auto datagram = std::span(content).subspan(i * (64 + MLT_DATA_HEADER_BYTES), 64 + MLT_DATA_HEADER_BYTES);
    REQUIRE(wire::decode_prefix(datagram, header.prefix) == wire::DropReason::kNone);
    REQUIRE(wire::decode_data(datagram, header, payload) == wire::DropReason::kNone);
    CHECK(header.tag == i + 3);
    CHECK(payload.size() == 64);
    CHECK(std::ranges::all_of(payload, [&](std::byte byte) { return byte == static_cast<std::byte>(i + 1); }));
  }
}

TEST_CASE("transmit__batches_that_differ_or_are_long_leave_apart_and_in_order") {
  TransmitterWorld world(64);
  const std::span<const std::byte> data = world.data;
  for (const std::size_t bytes : {64U, 64U, 65U, 64U, 1'400U, 64U, 64U}) world.post(1, data.first(bytes));
  CHECK(world.transmitter->transmit(1, 16));
  CHECK(world.calls() == std::vector<std::uint32_t>{2, 1, 1, 1, 2});
  CHECK(world.network->sent[3].bytes == 1'400 + MLT_DATA_HEADER_BYTES);
}

TEST_CASE("transmit__a_call_is_no_longer_than_the_datapath_takes") {
  TransmitterWorld few(8), narrow(64, 5 * (64 + MLT_DATA_HEADER_BYTES));
  for (TransmitterWorld* const world : {&few, &narrow}) {
    for (int i = 0; i < 20; ++i) world->post(1, std::span(world->data).first(64));
    CHECK(world->transmitter->transmit(1, 16));
  }
  CHECK(few.calls() == std::vector<std::uint32_t>{8, 8, 4});
  CHECK(narrow.calls() == std::vector<std::uint32_t>{5, 5, 5, 5});
}

TEST_CASE("transmit__the_budget_counts_calls_and_nothing_gathered_stays_behind") {
  TransmitterWorld world(8);
  for (int i = 0; i < 40; ++i) world.post(1, std::span(world.data).first(64));
  CHECK(world.transmitter->transmit(1, 2));
  CHECK(world.transmitter->has_more());
  std::uint32_t left = 40;
  for (const std::uint32_t datagrams : world.calls()) left -= datagrams;
  CHECK(world.transmitter->transmit(1, 100));
  for (std::size_t i = world.calls().size(); i > 0; --i) CHECK(world.calls()[i - 1] <= 8);
  CHECK(left < 40);
  std::uint32_t sent = 0;
  for (const std::uint32_t datagrams : world.calls()) sent += datagrams;
  CHECK(sent == 40);
}
