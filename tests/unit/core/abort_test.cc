// Aborted sends: their early data counts until the receiver keeps nothing of it any more (PROTOCOL
// 6.4.4, 8.1), and what was dropped for want of room is no loss (7.5.10).
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

SimulationConfig small_early_buffer(std::uint32_t segments, std::uint32_t transfers) {
  SimulationConfig config;
  config.endpoint.early_segments = segments;
  config.endpoint.early_transfers = transfers;
  return config;
}

std::unique_ptr<Transfer> transfer_of(Simulation& network, std::uint64_t tag, std::size_t segments, double bound) {
  TransferOptions options;
  options.loss_bound = bound;
  return std::make_unique<Transfer>(network, segments * kSegment, options.numbered(tag));
}

std::size_t sends_held(Simulation& network) { return network.endpoint(0).usage().sends.used; }

}  // namespace

// TCP is slower than the datagrams: the next send must not take for free what ABORT has not freed yet.
TEST_CASE("abort__the_next_send_loses_nothing_while_abort_is_in_flight") {
  for (const auto delay : {kMillisecond / 10, 5 * kMillisecond, 200 * kMillisecond}) {
    CAPTURE(delay);
    SimulationConfig config = small_early_buffer(8, 8);
    config.control_delay_ns = delay;
    Simulation network(config);
    const auto aborted = transfer_of(network, 1, 2, 0);
    REQUIRE(aborted->post_send() == core::PostStatus::kPosted);
    network.run_for(kMillisecond);
    network.cancel(0, 1, core::CompletionKind::kSend);
    REQUIRE(aborted->sent() != nullptr);
    const auto next = transfer_of(network, 2, 8, 0.375);
    REQUIRE(next->post_send() == core::PostStatus::kPosted);
    network.run_for(10 * kMillisecond);
    REQUIRE(next->post_receive() == core::PostStatus::kPosted);
    REQUIRE(next->run());
    CHECK(next->fault() == "");
    CHECK(next->received()->status == CompletionStatus::kComplete);
    CHECK(network.counter(1, Counter::k_early_segments_dropped) == 0);
    network.run_for(kSecond);
    CHECK(sends_held(network) == 0);  // answered: its slot and its room are free again
    CHECK(network.counter(0, Counter::k_aborts_sent) == 1);
    const auto whole = transfer_of(network, 3, 8, 0);
    REQUIRE(whole->post_send() == core::PostStatus::kPosted);
    network.run_for(kMillisecond);
    CHECK(network.endpoint(1).usage().early_segments.used == 8);
  }
}

TEST_CASE("abort__says_why_also_to_a_receive_that_is_posted_later") {
  for (const bool times_out : {false, true}) {
    Simulation network(small_early_buffer(8, 8));
    TransferOptions options;
    if (times_out) options.send_timeout_ns = 2 * kMillisecond;
    Transfer aborted(network, 2 * kSegment, options);
    REQUIRE(aborted.post_send() == core::PostStatus::kPosted);
    network.run_for(kMillisecond);
    if (!times_out) network.cancel(0, 1, core::CompletionKind::kSend);
    network.run_for(10 * kMillisecond);
    REQUIRE(aborted.post_receive() == core::PostStatus::kPosted);
    REQUIRE(aborted.received() != nullptr);
    CHECK(aborted.received()->status == CompletionStatus::kCancelled);
    CHECK(aborted.received()->aborted.cause ==
          (times_out ? wire::AbortCause::kTimedOut : wire::AbortCause::kCancelled));
  }
}

TEST_CASE("abort__a_receive_that_is_cancelled_here_names_no_sender") {
  Simulation network(small_early_buffer(8, 8));
  const auto cancelled = transfer_of(network, 1, 2, 0);
  REQUIRE(cancelled->post_receive() == core::PostStatus::kPosted);
  network.cancel(1, 1, core::CompletionKind::kReceive);
  REQUIRE(cancelled->received() != nullptr);
  CHECK(cancelled->received()->aborted.cause == wire::AbortCause::kNone);
}

TEST_CASE("abort__an_abort_that_was_lost_is_sent_again") {
  Simulation network(small_early_buffer(8, 8));
  const auto aborted = transfer_of(network, 1, 2, 0);
  aborted->post_receive();
  network.every_link([](Link& link) { link.data.drop = link.control.drop = 1; });
  REQUIRE(aborted->post_send() == core::PostStatus::kPosted);
  network.control_connections_stalled = true;
  network.cancel(0, 1, core::CompletionKind::kSend);
  network.run_for(100 * kMillisecond);
  CHECK(aborted->received() == nullptr);
  network.control_connections_stalled = false;
  network.run_for(500 * kMillisecond);
  REQUIRE(aborted->received() != nullptr);
  CHECK(aborted->received()->status == CompletionStatus::kCancelled);
  CHECK(aborted->received()->aborted.cause == wire::AbortCause::kCancelled);
  CHECK(network.counter(0, Counter::k_aborts_sent) == 2);
  CHECK(sends_held(network) == 0);
}

// The receiver has room to remember two ABORTs. Of the third it keeps no data either, but packets that come late could
// take a place again: the sender must not count on it.
TEST_CASE("abort__an_abort_that_is_not_remembered_frees_no_space") {
  Simulation network(small_early_buffer(8, 2));
  for (std::uint64_t tag = 1; tag <= 3; ++tag) {
    const auto aborted = transfer_of(network, tag, 2, 0);
    REQUIRE(aborted->post_send() == core::PostStatus::kPosted);
    network.run_for(kMillisecond);
    network.cancel(0, tag, core::CompletionKind::kSend);
    network.run_for(kMillisecond);
  }
  CHECK(sends_held(network) == 1);
  CHECK(network.counter(0, Counter::k_aborts_sent) == 3);
  network.run_for(5 * kSecond);
  CHECK(sends_held(network) == 0);
  CHECK(network.counter(0, Counter::k_aborts_sent) == 5);
  CHECK(network.counter(1, Counter::k_aborts_dropped) == 3);
  const auto next = transfer_of(network, 4, 8, 0.5);
  REQUIRE(next->post_send() == core::PostStatus::kPosted);
  network.run_for(10 * kMillisecond);
  CHECK(network.endpoint(1).usage().early_segments.used == 6);
  REQUIRE(next->post_receive() == core::PostStatus::kPosted);
  REQUIRE(next->run());
  CHECK(next->fault() == "");
  CHECK(next->received()->status == CompletionStatus::kComplete);
}

TEST_CASE("early__duplicates_take_no_room_from_what_comes_once") {
  SimulationConfig config = small_early_buffer(8, 8);
  config.link.data.duplicate = 1.0;
  Simulation network(config);
  const auto transfer = transfer_of(network, 1, 8, 0.5);
  REQUIRE(transfer->post_send() == core::PostStatus::kPosted);
  network.run_for(10 * kMillisecond);
  CHECK(network.counter(1, Counter::k_early_segments_dropped) == 0);
  REQUIRE(transfer->post_receive() == core::PostStatus::kPosted);
  REQUIRE(transfer->run());
  CHECK(transfer->fault() == "");
  CHECK(transfer->received()->status == CompletionStatus::kComplete);
}

// A sender that was told of more room than there is: the network loses nothing, so no patient receive may.
TEST_CASE("early__what_was_dropped_for_want_of_room_is_never_a_loss_that_the_bound_allows") {
  for (const std::uint32_t paths : {1U, 3U}) {
    for (const std::uint32_t room : {1U, 4U, 30U}) {
      for (const std::uint32_t records : {1U, 3U, 64U}) {
        CAPTURE(paths);
        CAPTURE(room);
        CAPTURE(records);
        SimulationConfig config = small_early_buffer(room, records);
        config.endpoint.paths = static_cast<std::uint8_t>(paths);
        config.early_segments = 1'000;
        config.early_transfers = 1'000;
        Simulation network(config);
        std::vector<std::unique_ptr<Transfer>> transfers;
        for (std::uint64_t tag = 1; tag <= 12; ++tag) {
          transfers.push_back(transfer_of(network, tag, 10, 0.9));
          REQUIRE(transfers.back()->post_send() == core::PostStatus::kPosted);
        }
        network.run_for(kMillisecond);
        CHECK(network.counter(1, Counter::k_early_segments_dropped) > 0);
        for (const auto& transfer : transfers) REQUIRE(transfer->post_receive() == core::PostStatus::kPosted);
        for (const auto& transfer : transfers) {
          REQUIRE(transfer->run());
          CHECK(transfer->fault() == "");
          CHECK(transfer->received()->status == CompletionStatus::kComplete);
        }
      }
    }
  }
}
