// Sends and receives of user threads between the operation table and the endpoint.
#include "engine/user_operations.h"

#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"
#include "unit/engine/still_loop.h"

using namespace mlt;
using engine_test::StillLoop;

namespace {

using engine_test::kLoopback;

struct UserOperationsWorld {
  explicit UserOperationsWorld(bool has_checksums = false) {
    options.checksums = has_checksums;
    auto scripted = std::make_unique<engine_test::ScriptedNetwork>(std::vector{kLoopback});
    network = scripted.get();
    datapath.network = network;
    datapath.outer = std::move(scripted);
    errors = std::make_unique<engine::PathMtuErrors>(0, 3, peers, endpoint, *network);
    transmitter = std::make_unique<engine::Transmitter>(3, endpoint, datapath, *errors);
    users = std::make_unique<engine::UserOperations>(options, endpoint, operations, peers, *errors, *transmitter,
                                                     [this](std::uint16_t peer, std::span<const std::byte> bytes) {
                                                       CHECK(peer == 1);
                                                       reports.emplace_back(bytes.begin(), bytes.end());
                                                     });
  }
  void bring_up() {
    endpoint.on_control(1, engine_test::peer_up(1));
    peers.on_up(1, {kLoopback}, 1'432, 1'432);
  }
  core::ReceiveRequest receive() {
    engine::Operation operation;
    operation.peer = 1;
    operation.tag = 4;
    operation.total_bytes = data.size();
    core::ReceiveRequest request;
    request.operation = operations.begin(std::move(operation)).id;
    request.peer = 1;
    request.tag = 4;
    request.data = data;
    request.timeout_ns = base::kSecond;
    return request;
  }
  // Passes what the endpoint completed to the table, as a turn does.
  Completion take() {
    core::Completion completion;
    while (endpoint.poll_completion(completion)) users->on_completion(0, completion);
    auto done = operations.take_any();
    REQUIRE(done.has_value());
    return *done;
  }

  std::vector<std::byte> data = std::vector<std::byte>(4'000);
  Options options;
  engine_test::ScriptedNetwork* network = nullptr;
  engine::OpenedDatapath datapath;
  core::Endpoint endpoint{engine_test::small_config()};
  engine::PeerTable peers{0, 3};
  StillLoop still;
  engine::Driving driving{still, 0};
  engine::OperationTable operations{8, driving};
  std::unique_ptr<engine::PathMtuErrors> errors;
  std::unique_ptr<engine::Transmitter> transmitter;
  std::unique_ptr<engine::UserOperations> users;
  std::vector<std::vector<std::byte>> reports;
};

}  // namespace

TEST_CASE("post__that_the_endpoint_rejects_completes_at_once_with_the_peers_error") {
  UserOperationsWorld world;
  world.peers.on_down(1, io::PeerDownCause::kLost, "rank 1 ended");
  const core::ReceiveRequest request = world.receive();
  world.users->post(1, request);
  const auto done = world.operations.take_any();
  REQUIRE(done.has_value());
  CHECK(done->operation == request.operation);
  CHECK(done->status == Status::kPeerFailed);
  CHECK(done->peer == 1);
  CHECK(done->error == "rank 0: receive of tag 4 (4000 bytes of uint8) from rank 1 was rejected: rank 1 ended");
}

TEST_CASE("cancel__ends_an_operation_as_cancelled_and_ignores_unknown_ones") {
  UserOperationsWorld world;
  world.bring_up();
  const core::ReceiveRequest request = world.receive();
  world.users->post(1, request);
  world.users->cancel(2, request.operation + 1);
  CHECK_FALSE(world.operations.take_any().has_value());
  world.users->cancel(2, request.operation);
  const Completion done = world.take();
  CHECK(done.operation == request.operation);
  CHECK(done.status == Status::kCancelled);
  CHECK(done.error.starts_with("rank 0: receive of tag 4 (4000 bytes of uint8) from rank 1 failed: cancelled"));
}

TEST_CASE("on_completion__merges_neighbouring_missing_segments_into_ranges") {
  UserOperationsWorld world;
  world.bring_up();
  const std::uint64_t bitmap[] = {0b0101'0011};  // segments 2, 3, 5 and 7 are missing
  core::Completion completion;
  completion.operation = world.receive().operation;
  completion.peer = 1;
  completion.status = core::CompletionStatus::kWithinBound;
  completion.total_bytes = 7'100;
  completion.received_bitmap = bitmap;
  completion.segment_count = 8;
  completion.segment_bytes = 1'000;
  world.users->on_completion(0, completion);
  const auto done = world.operations.take_any();
  REQUIRE(done.has_value());
  CHECK(done->error.empty());
  REQUIRE(done->missing.size() == 3);
  CHECK(done->missing[0].offset_bytes == 2'000);
  CHECK(done->missing[0].length_bytes == 2'000);
  CHECK(done->missing[1].offset_bytes == 5'000);
  CHECK(done->missing[1].length_bytes == 1'000);
  CHECK(done->missing[2].offset_bytes == 7'000);
  CHECK(done->missing[2].length_bytes == 100);
}

TEST_CASE("on_completion__of_a_time_out_names_the_last_datagram_that_the_system_rejected") {
  UserOperationsWorld world;
  world.bring_up();
  core::SendRequest send;
  send.operation = 99;
  send.peer = 1;
  send.tag = 5;
  send.data = world.data;
  REQUIRE(world.endpoint.post_send(1, send) == core::PostStatus::kPosted);
  world.network->status = io::SendStatus::kFailed;
  REQUIRE(world.transmitter->transmit(1, 1) == 1);
  core::Completion completion;
  completion.operation = world.receive().operation;
  completion.peer = 1;
  completion.kind = core::CompletionKind::kReceive;
  completion.status = core::CompletionStatus::kTimedOut;
  world.users->on_completion(0, completion);
  const auto done = world.operations.take_any();
  REQUIRE(done.has_value());
  CHECK(done->error.ends_with("sendmsg() failed: EPERM)"));
}

TEST_CASE("completion__of_a_peer_with_another_option_names_both") {
  for (const bool has_checksums : {false, true}) {
    CAPTURE(has_checksums);
    UserOperationsWorld world(has_checksums);
    world.bring_up();
    const core::ReceiveRequest request = world.receive();
    world.users->post(2, request);
    world.users->on_checksum(20, 1, has_checksums ? std::vector<std::byte>() : std::vector<std::byte>(24));
    CHECK(world.reports.size() == (has_checksums ? 0 : 1));  // the reply
    const core::ReceiveRequest refused = world.receive();
    world.users->post(3, refused);
    auto done = world.operations.take_any();
    REQUIRE(done.has_value());
    CHECK(done->status == Status::kCancelled);
    CHECK(done->error.find("was rejected: rank " + std::string(has_checksums ? "0" : "1") + " takes checksums") !=
          std::string::npos);
    const Completion ended = world.take();  // the one in progress, for which nothing would come
    CHECK(ended.operation == request.operation);
    CHECK(ended.status == Status::kCancelled);
    CHECK(ended.error.find("rank " + std::string(has_checksums ? "0" : "1") + " takes checksums") != std::string::npos);
    CHECK(world.reports.size() == 1);
  }
}
