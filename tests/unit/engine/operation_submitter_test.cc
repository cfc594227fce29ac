// Posts of user threads: what is rejected before the loop has it, and what becomes of an operation that it never gets.
#include "engine/operation_submitter.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "unit/engine/scripted_network.h"

using namespace mlt;
using engine::OperationSubmitter;

namespace {

using engine_test::kLoopback;

Options options_of_two() {
  Options options;
  options.ranks = 2;
  options.max_operations = 2;
  return options;
}

engine::Operation send_of(std::uint64_t bytes) {
  engine::Operation operation;
  operation.verb = Verb::kSend;
  operation.element = Element::kFloat32;
  operation.peer = 1;
  operation.tag = 7;
  operation.total_bytes = bytes;
  return operation;
}

struct OperationSubmitterWorld {
  // Rank 1 is up as far as the checks are concerned; no loop runs.
  OperationSubmitterWorld() { loop.peers().on_up(1, {kLoopback}, 1'432, 1'432); }

  static std::optional<Error> error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  }
  std::string transfer_error(const engine::Operation& operation) {
    const auto error = error_of([&] {
      submitter.check_transfer(operation);
      submitter.check_peer(operation);
    });
    return error ? error->what() : "";
  }

  engine::EventLoop loop{options_of_two()};
  OperationSubmitter submitter{loop};
};

}  // namespace

TEST_CASE("check_transfer__accepts_a_transfer_to_a_peer_that_is_up_and_names_what_is_wrong_with_others") {
  OperationSubmitterWorld world;
  const std::string name = "rank 0: send of tag 7 (8 bytes of float32) to rank 1 was rejected: ";
  CHECK(world.transfer_error(send_of(8)) == "");
  CHECK(world.transfer_error(send_of(6)) ==
        "rank 0: send of tag 7 (6 bytes of float32) to rank 1 was rejected: its size "
        "is not a multiple of the element size");
  CHECK(world.transfer_error(send_of(1ULL << 32)).ends_with("less than 4 GiB: split the tensor"));
  engine::Operation operation = send_of(8);
  operation.tag = 1ULL << 63;
  CHECK(world.transfer_error(operation).ends_with("was rejected: the tag must be below 2^63"));
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{2}}) {
    operation = send_of(8);
    operation.peer = rank;
    CHECK(
        world.transfer_error(operation).ends_with("the job has ranks 0 to 1, and a rank has no transfers with itself"));
  }
  world.loop.peers().on_down(1, io::PeerDownCause::kLost, "rank 1 ended");
  CHECK(world.transfer_error(send_of(8)) == name + "the peer is not connected (rank 1 ended)");
  world.submitter.close();
  CHECK(world.transfer_error(send_of(8)) == name + "the context is closed");
}

TEST_CASE("check_loss_bound__and_check_layer_accept_their_ranges_only") {
  const OperationSubmitterWorld world;
  const engine::Operation operation = send_of(8);
  const auto bound = [&](double value) {
    return OperationSubmitterWorld::error_of([&] { world.submitter.check_loss_bound(operation, value); }).has_value();
  };
  CHECK_FALSE(bound(0.0));
  CHECK_FALSE(bound(0.999));
  CHECK(bound(1.0));
  CHECK(bound(-0.001));
  CHECK(bound(std::numeric_limits<double>::quiet_NaN()));
  const auto layer = [&](std::uint32_t one, std::uint32_t of) {
    return OperationSubmitterWorld::error_of([&] { world.submitter.check_layer(operation, one, of); }).has_value();
  };
  CHECK_FALSE(layer(0, 1));
  CHECK_FALSE(layer(4, 5));
  CHECK(layer(5, 5));
  CHECK(layer(0, 0));
}

TEST_CASE("begin__names_the_limit_of_operations") {
  OperationSubmitterWorld world;
  CHECK(world.submitter.begin(send_of(8)).operation != nullptr);
  CHECK(world.submitter.begin(send_of(8)).operation != nullptr);
  const auto error = OperationSubmitterWorld::error_of([&] { world.submitter.begin(send_of(8)); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kLimit);
  CHECK(std::string(error->what()).find("2 operations are in progress") != std::string::npos);
}

TEST_CASE("submit__withdraws_an_operation_that_a_closed_loop_does_not_take") {
  OperationSubmitterWorld world;
  const OperationId id = world.submitter.begin(send_of(8)).id;
  world.submitter.close();
  world.loop.stop();
  bool ran = false;
  const auto error =
      OperationSubmitterWorld::error_of([&] { world.submitter.submit(id, [&](base::TimeNs) { ran = true; }); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kClosed);
  CHECK(std::string(error->what()) ==
        "rank 0: send of tag 7 (8 bytes of float32) to rank 1 was rejected: the context is closed");
  CHECK_FALSE(ran);
  CHECK(world.loop.operations().size() == 0);
}
