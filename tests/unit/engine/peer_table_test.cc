// The peers of a rank: what threads read and wait for while the loop changes them.
#include "engine/peer_table.h"

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace mlt;
using engine::PeerState;
using engine::PeerTable;
using io::PeerDownCause;

namespace {

using base::kSecond;

const io::SocketAddress kAddress = *io::SocketAddress::from_host("127.0.0.1", 5'000);

std::vector<PeerAddress> addresses_of(const std::vector<std::uint16_t>& ranks) {
  std::vector<PeerAddress> addresses;
  for (const std::uint16_t rank : ranks) addresses.push_back({rank, "10.0.0." + std::to_string(rank), 7'000});
  return addresses;
}

std::optional<Error> error_of_wait(PeerTable& table, const std::vector<std::uint16_t>& ranks, std::int64_t timeout_ns) {
  try {
    table.wait_connected(addresses_of(ranks), engine::deadline_after(timeout_ns), timeout_ns);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("test_connected__is_true_when_all_are_up_and_throws_what_failed") {
  PeerTable table(0, 4);
  const std::vector<PeerAddress> peers = addresses_of({1, 2});
  CHECK(table.test_connected({}));
  CHECK_FALSE(table.test_connected(peers));
  table.on_up(1, {kAddress}, 1'432, 1'432);
  CHECK_FALSE(table.test_connected(peers));
  table.on_up(2, {kAddress}, 1'432, 1'432);
  CHECK(table.test_connected(peers));
  table.on_down(1, PeerDownCause::kGoodbye, "rank 1 closed its context");
  CHECK(table.test_connected(peers));
  table.on_down(3, PeerDownCause::kUnreachable, "rank 3 did not come up");
  CHECK(table.test_connected(peers));
  try {
    table.test_connected(addresses_of({1, 3}));
    FAIL("a peer that failed counts as connected");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kRendezvous);
    CHECK(error.peer() == 3);
    CHECK(std::string(error.what()) == "rank 0: rank 3 did not come up");
  }
  table.close();
  CHECK_THROWS_AS(table.test_connected(peers), Error);
}

TEST_CASE("on_up__sets_sizes_and_addresses_of_one_peer") {
  PeerTable table(0, 3);
  CHECK(table.state(1) == PeerState::kConnecting);
  CHECK(table.segment_bytes(1) == 0);
  table.on_up(1, {kAddress}, 31'504, 1'432);
  CHECK(table.state(1) == PeerState::kUp);
  CHECK(table.segment_bytes(1) == 31'504);
  CHECK(table.grid_bytes(1) == 1'432);
  CHECK(table.addresses(1) == std::vector{kAddress});
  CHECK(table.state(2) == PeerState::kConnecting);
  CHECK(table.addresses(2).empty());
}

TEST_CASE("on_down__keeps_the_error_and_tells_a_goodbye_from_a_failure") {
  PeerTable table(0, 3);
  table.on_up(1, {kAddress}, 1'432, 1'432);
  table.on_down(1, PeerDownCause::kGoodbye, "rank 1 closed its context");
  CHECK(table.state(1) == PeerState::kLeft);
  CHECK(table.error(1) == "rank 1 closed its context");
  table.on_down(2, PeerDownCause::kLost, "rank 2 ended");
  CHECK(table.state(2) == PeerState::kFailed);
  CHECK(table.segment_bytes(1) == 1'432);
}

TEST_CASE("wait_connected__names_a_missing_connection_before_a_peer_that_ended_because_of_it") {
  PeerTable table(1, 4);
  table.on_up(0, {kAddress}, 1'432, 1'432);
  table.on_down(0, PeerDownCause::kLost, "rank 0 failed (about rank 2)");
  table.on_down(2, PeerDownCause::kUnreachable, "rank 2 did not connect");
  table.on_down(3, PeerDownCause::kUnreachable, "rank 3 did not connect");
  const std::optional<Error> error = error_of_wait(table, {0, 2, 3}, kSecond);
  REQUIRE(error);
  CHECK(error->code() == ErrorCode::kRendezvous);
  CHECK(error->peer() == 2);
  CHECK(std::string(error->what()) == "rank 1: rank 2 did not connect");
}

TEST_CASE("wait_connected__returns_once_every_peer_is_up_or_has_left") {
  PeerTable table(0, 3);
  std::thread loop([&] {
    table.on_up(1, {kAddress}, 1'432, 1'432);
    table.on_down(1, PeerDownCause::kGoodbye, "goodbye");
    table.on_up(2, {kAddress}, 1'432, 1'432);
  });
  CHECK_FALSE(error_of_wait(table, {1, 2}, -1).has_value());
  loop.join();
  CHECK(table.state(1) == PeerState::kLeft);
  CHECK(table.state(2) == PeerState::kUp);
}

TEST_CASE("wait_connected__throws_the_error_of_a_failed_peer_without_waiting_for_others") {
  const struct {
    PeerDownCause cause;
    ErrorCode code;
  } kCases[] = {{PeerDownCause::kRefused, ErrorCode::kPeerMismatch},
                {PeerDownCause::kUnreachable, ErrorCode::kRendezvous},
                {PeerDownCause::kSilent, ErrorCode::kPeerFailed}};
  for (const auto& one : kCases) {
    PeerTable table(0, 3);
    table.on_down(2, one.cause, "rank 2 has another job");
    const auto error = error_of_wait(table, {1, 2}, -1);
    REQUIRE(error.has_value());
    CHECK(error->code() == one.code);
    CHECK(std::string(error->what()) ==
          (one.code == ErrorCode::kPeerFailed
               ? "rank 0: rank 2 has another job; this rank has no TCP connection with rank 1 (10.0.0.1:7000) yet"
               : "rank 0: rank 2 has another job"));
    CHECK(error->peer() == 2);
  }
}

TEST_CASE("wait_connected__names_missing_peers_and_the_last_rejected_client_on_timeout") {
  PeerTable table(3, 4);
  table.on_up(1, {kAddress}, 1'432, 1'432);
  table.on_client_rejected("10.0.0.9 is of another job");
  table.on_client_rejected("10.0.0.8 is of another job");
  const auto error = error_of_wait(table, {0, 1, 2}, 2'000'000);
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kRendezvous);
  CHECK(error->peer() == 0);
  const std::string text = error->what();
  CHECK(text.starts_with("rank 3: no connection with rank 0 (10.0.0.0:7000), 2 (10.0.0.2:7000) within 2 ms: "));
  CHECK(text.find("firewall") != std::string::npos);
  CHECK(text.ends_with(" 10.0.0.8 is of another job"));
  CHECK(text.find("10.0.0.9") == std::string::npos);
}

TEST_CASE("close__ends_waits_for_peers") {
  PeerTable table(0, 2);
  std::thread loop([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the wait has begun: no event shows that
    table.close();
  });
  const auto error = error_of_wait(table, {1}, -1);
  loop.join();
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kClosed);
  CHECK(table.wait_gone(1, 1, -1));
}

TEST_CASE("wait_gone__waits_for_all_ranks_of_the_range_and_no_others") {
  PeerTable table(3, 4);
  table.on_up(2, {kAddress}, 1'432, 1'432);
  table.on_down(0, PeerDownCause::kLost, "lost");
  CHECK_FALSE(table.wait_gone(0, 2, 1'000'000));  // rank 1 is connecting
  std::thread loop([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the wait has begun: no event shows that
    table.on_down(1, PeerDownCause::kGoodbye, "goodbye");
  });
  CHECK(table.wait_gone(0, 2, 30 * kSecond));
  loop.join();
  CHECK_FALSE(table.wait_gone(0, 3, 1'000'000));  // rank 2 is up
}
