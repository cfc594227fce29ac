// Batches from the endpoint to the datapath, and what becomes of those that the system does not accept.
#include "engine/transmitter.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "io/os/clock.h"
#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"

using namespace mlt;

namespace {

using engine_test::kLoopback;

struct TransmitterWorld {
  TransmitterWorld() {
    auto scripted = std::make_unique<engine_test::ScriptedNetwork>(std::vector{kLoopback});
    scripted->capabilities_.max_run_segments = 1;
    network = scripted.get();
    datapath.network = network;
    datapath.outer = std::move(scripted);
    endpoint.on_control(io::monotonic_now(), engine_test::peer_up(1));
    peers.on_up(1, {kLoopback}, 1'432, 1'432);
    errors = std::make_unique<engine::PathMtuErrors>(0, 3, peers, endpoint, *network);
    transmitter = std::make_unique<engine::Transmitter>(3, endpoint, datapath, *errors);
    core::SendRequest request;
    request.operation = 7;
    request.peer = 1;
    request.tag = 1;
    request.data = data;
    REQUIRE(endpoint.post_send(io::monotonic_now(), request) == core::PostStatus::kPosted);
  }

  std::vector<std::byte> data = std::vector<std::byte>(4 * 1'432);
  engine_test::ScriptedNetwork* network = nullptr;
  engine::OpenedDatapath datapath;
  core::Endpoint endpoint{engine_test::small_config()};
  engine::PeerTable peers{0, 3};
  std::unique_ptr<engine::PathMtuErrors> errors;
  std::unique_ptr<engine::Transmitter> transmitter;
};

}  // namespace

TEST_CASE("transmit__sends_batches_within_the_budget_and_the_datapaths_capabilities") {
  TransmitterWorld world;
  CHECK(world.transmitter->transmit(1, 1) == 1);
  REQUIRE(world.network->sent.size() == 1);
  CHECK(world.network->sent[0].peer == 1);
  CHECK(world.network->sent[0].bytes == 1'432 + MLT_DATA_HEADER_BYTES);  // max_run_segments is 1
  CHECK(world.transmitter->transmit(1, 2) == 2);
  CHECK(world.network->sent.size() == 3);
  CHECK(world.transmitter->failures() == 0);
  CHECK(world.transmitter->last_error(1).empty());
}

TEST_CASE("transmit__keeps_the_reason_of_a_batch_that_the_system_rejects") {
  TransmitterWorld world;
  world.network->status = io::SendStatus::kFailed;
  CHECK(world.transmitter->transmit(1, 1) == 1);
  CHECK(world.network->sent.size() == 1);  // no retry: it counts as lost
  CHECK(world.transmitter->failures() == 1);
  CHECK(world.transmitter->last_error(1) == "sendmsg() failed: EPERM");
  CHECK(world.transmitter->last_error(2).empty());
}

TEST_CASE("transmit__counts_a_batch_as_lost_after_the_system_accepted_none_for_a_while") {
  TransmitterWorld world;
  world.network->status = io::SendStatus::kWouldBlock;
  CHECK(world.transmitter->transmit(1, 1) == 1);
  CHECK(world.network->sent.size() > 1);
  CHECK(world.transmitter->failures() == 1);
  CHECK(world.transmitter->last_error(1).empty());
}

TEST_CASE("transmit__a_batch_too_large_is_no_mtu_error_if_the_interface_would_carry_it") {
  TransmitterWorld world;
  world.network->status = io::SendStatus::kTooLarge;
  CHECK(world.transmitter->transmit(1, 1) == 1);
  CHECK(world.transmitter->failures() == 1);
  CHECK(world.errors->text(1).empty());
}
