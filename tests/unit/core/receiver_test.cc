// The receiving half behind an endpoint: bound, fill, deadline, mismatch, early and stale arrivals, bitmaps.
#include "core/receiver.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "support/data_header.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

std::uint32_t segment_of(const Flight& flight) { return data_header_of(flight).offset_bytes / kSegment; }

}  // namespace

// ---- the bound -----------------------------------------------------------------------------------------------------

TEST_CASE("loss_bound__is_exact_for_every_fraction_and_size" * doctest::test_suite("long")) {
  // For every bound: exactly as many segments lost for good as the bound allows, and one more.
  for (const double bound : {0.0, 0.001, 0.05, 0.1, 0.25, 0.29, 0.5, 0.6, 0.7, 0.9, 0.999}) {
    for (const std::size_t segments : {1UL, 2UL, 3UL, 10UL, 100UL, 333UL}) {
      const std::size_t bytes = segments * kSegment;
      const double elements = static_cast<double>(bytes / 4);
      std::size_t allowed = 0;
      while (static_cast<double>(allowed / 4 + 1) / elements <= bound) allowed += 4;
      const std::size_t lost_within = allowed / kSegment;
      for (const std::size_t lost : {lost_within, lost_within + 1}) {
        if (lost > segments) continue;
        CAPTURE(bound);
        CAPTURE(segments);
        CAPTURE(lost);
        Simulation network(SimulationConfig{});
        network.drop_if = [&](const Flight& f) {
          return f.type == wire::PacketType::kData && data_header_of(f).prefix.round == 0 && segment_of(f) < lost;
        };
        TransferOptions options;
        options.loss_bound = bound;
        Transfer transfer(network, bytes, options);
        transfer.post();
        REQUIRE(transfer.run());
        REQUIRE(transfer.fault() == "");
        const Completed& done = *transfer.received();
        CHECK(done.allowed_missing_bytes == allowed);
        if (lost == 0) {
          CHECK(done.status == CompletionStatus::kComplete);
        } else if (lost == lost_within) {
          CHECK(done.status == CompletionStatus::kWithinBound);
          CHECK(done.missing_bytes == lost * kSegment);
          CHECK(network.counter(0, Counter::k_segments_repaired) == 0);
          CHECK(transfer.sent()->status == CompletionStatus::kWithinBound);
          CHECK(transfer.sent()->missing_bytes == done.missing_bytes);
          CHECK(network.counter(1, Counter::k_segments_lost_within_bound) == lost);
        } else {  // one too many: all of them are repaired
          CHECK(done.status == CompletionStatus::kComplete);
          CHECK(done.repaired_segments == lost);
          CHECK(transfer.sent()->repaired_segments == lost);
        }
      }
    }
  }
}

TEST_CASE("loss_bound__holds_under_random_loss_for_both_policies") {
  for (const auto stop : {core::StopPolicy::kPatient, core::StopPolicy::kEager}) {
    for (const double bound : {0.0, 0.02, 0.3}) {
      for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        CAPTURE(static_cast<int>(stop));
        CAPTURE(bound);
        CAPTURE(seed);
        SimulationConfig config;
        config.seed = seed;
        config.link.data.drop = 0.1;
        config.link.control.drop = 0.1;
        Simulation network(config);
        TransferOptions options;
        options.loss_bound = bound;
        options.stop = stop;
        Transfer transfer(network, 300'000, options);
        transfer.post();
        REQUIRE(transfer.run());
        CHECK(transfer.fault() == "");
      }
    }
  }
}

// Of ten segments each loses one, of which it alone may miss none; together they may miss two.
TEST_CASE("shared_budget__covers_what_is_missing_until_it_is_used_up") {
  Simulation network(SimulationConfig{});
  network.drop_if = [&](const Flight& f) {
    return f.type == wire::PacketType::kData && data_header_of(f).prefix.round == 0 && segment_of(f) == 3;
  };
  core::SharedLossBudget budget(4UL * 10 * kSegment / 4, 4, 0.06);
  CHECK(budget.left_bytes() == 3'436);
  std::uint64_t missing = 0, repaired = 0;
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (std::uint64_t number = 1; number <= 4; ++number) {
    transfers.push_back(std::make_unique<Transfer>(network, 10 * kSegment, TransferOptions{}.numbered(number)));
    Transfer& transfer = *transfers.back();
    core::ReceiveRequest receive = transfer.receive_request();
    receive.shared_budget = &budget;
    REQUIRE(network.receive(1, receive) == core::PostStatus::kPosted);
    REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
  }
  for (const auto& transfer : transfers) {
    REQUIRE(transfer->run());
    const Completed& done = *transfer->received();
    CHECK(done.missing_bytes <= done.allowed_missing_bytes);
    CHECK((done.status == CompletionStatus::kWithinBound) == (done.missing_bytes > 0));
    missing += done.missing_bytes;
    repaired += done.repaired_segments;
  }
  CHECK(missing == 2 * kSegment);
  CHECK(repaired == 2);
  CHECK(budget.left_bytes() == 3'436 - 2 * kSegment);
}

TEST_CASE("shared_budget__of_one_receive_is_its_own_bound_or_one_segment") {
  for (const std::uint32_t lost : {1U, 2U}) {
    CAPTURE(lost);
    Simulation network(SimulationConfig{});
    network.drop_if = [&](const Flight& f) {
      return f.type == wire::PacketType::kData && data_header_of(f).prefix.round == 0 && segment_of(f) < lost;
    };
    core::SharedLossBudget budget(1'000'000, 4, 0.5);
    Transfer transfer(network, 10 * kSegment, TransferOptions{});
    core::ReceiveRequest receive = transfer.receive_request();
    receive.shared_budget = &budget;
    REQUIRE(network.receive(1, receive) == core::PostStatus::kPosted);
    REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
    REQUIRE(transfer.run());
    CHECK(transfer.received()->allowed_missing_bytes == kSegment);
    CHECK(transfer.received()->missing_bytes == (lost == 1 ? kSegment : 0));
    CHECK(budget.left_bytes() == 2'000'000 - transfer.received()->missing_bytes);
  }
}

// An eager receive of one segment would otherwise be complete before anything has come, critical or not.
TEST_CASE("shared_budget__of_an_eager_receive_is_no_more_than_its_own_bound") {
  Simulation network(SimulationConfig{});
  core::SharedLossBudget budget(1'000'000, 4, 0.5);
  TransferOptions options;
  options.stop = core::StopPolicy::kEager;
  Transfer transfer(network, kSegment, options);
  core::ReceiveRequest receive = transfer.receive_request();
  receive.shared_budget = &budget;
  REQUIRE(network.receive(1, receive) == core::PostStatus::kPosted);
  REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
  REQUIRE(transfer.run());
  CHECK(transfer.received()->status == CompletionStatus::kComplete);
  CHECK(transfer.fault() == "");
}

TEST_CASE("eager__stops_the_moment_enough_has_arrived") {
  SimulationConfig config;
  // 1 Gbit would be too fast to see the stop come early. The link also carries framing, which the endpoint doesn't
  // count.
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e7;
  config.link.rate_bytes_per_second =
      1.25e7 * (kSegment + MLT_DATA_HEADER_BYTES + sim::kOverheadBytes) / (kSegment + MLT_DATA_HEADER_BYTES);
  Simulation network(config);
  TransferOptions options;
  options.loss_bound = 0.5;
  options.stop = core::StopPolicy::kEager;
  Transfer transfer(network, 200 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  CHECK(transfer.received()->status == CompletionStatus::kWithinBound);
  CHECK(transfer.received()->missing_bytes == 100 * kSegment);
  CHECK(network.counter(0, Counter::k_data_packets_sent) < 110);
}

TEST_CASE("eager__with_bound_zero_waits_for_everything") {
  Simulation network(SimulationConfig{});
  TransferOptions options;
  options.stop = core::StopPolicy::kEager;
  Transfer transfer(network, 200 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.received()->status == CompletionStatus::kComplete);
}

TEST_CASE("critical__segments_are_never_lost") {
  for (const auto stop : {core::StopPolicy::kPatient, core::StopPolicy::kEager}) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(static_cast<int>(stop));
      CAPTURE(seed);
      SimulationConfig config;
      config.seed = seed;
      config.link.data.drop = 0.3;
      config.link.control.drop = 0.1;
      Simulation network(config);
      TransferOptions options;
      options.loss_bound = 0.95;
      options.stop = stop;
      for (std::uint32_t i = 0; i < 100; ++i) {
        options.priorities.push_back(
            SegmentPriority{i % 10 == seed % 10 ? SegmentPriority::kCritical : std::uint8_t{0}});
      }
      Transfer transfer(network, 100 * kSegment, options);
      transfer.post();
      REQUIRE(transfer.run());
      CHECK(transfer.fault() == "");
      for (std::uint32_t i = 0; i < 100; ++i) {
        if (options.priorities[i].is_critical()) CHECK(transfer.received()->arrived(i));
      }
    }
  }
}

TEST_CASE("critical__holds_even_if_every_packet_of_the_first_round_is_lost") {
  Simulation network(SimulationConfig{});
  network.drop_if = [](const Flight& f) {
    return f.type == wire::PacketType::kData && data_header_of(f).prefix.round == 0;
  };
  TransferOptions options;
  options.loss_bound = 0.99;
  options.priorities.assign(50, SegmentPriority{});
  options.priorities[49] = SegmentPriority{SegmentPriority::kCritical};
  Transfer transfer(network, 50 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  CHECK(transfer.received()->arrived(49));
}

// ---- fill ----------------------------------------------------------------------------------------------------------

TEST_CASE("fill__zero_clears_and_keep_keeps_the_missing_ranges") {
  for (const auto fill : {core::Fill::kZero, core::Fill::kKeep}) {
    Simulation network(SimulationConfig{});
    // The last segment is a short one, and lost too.
    network.drop_if = [](const Flight& f) {
      return f.type == wire::PacketType::kData && (segment_of(f) == 3 || segment_of(f) == 20);
    };
    TransferOptions options;
    options.loss_bound = 0.5;
    options.fill = fill;
    Transfer transfer(network, 20 * kSegment + 100, options);
    transfer.post();
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    const Completed& done = *transfer.received();
    CHECK(done.status == CompletionStatus::kWithinBound);
    CHECK(done.missing_bytes == kSegment + 100);
    CHECK_FALSE(done.arrived(3));
    CHECK_FALSE(done.arrived(20));
    CHECK(transfer.buffer().bytes()[3 * kSegment] == (fill == core::Fill::kZero ? std::byte{0} : Transfer::kOld));
  }
}

TEST_CASE("place__is_called_once_per_segment_and_nothing_else_is_written") {
  struct Seen {
    std::vector<std::byte> bytes = std::vector<std::byte>(30 * kSegment);
    std::vector<int> calls = std::vector<int>(30);
  } seen;
  SimulationConfig config;
  config.link.data.duplicate = 0.5;
  config.link.data.drop = 0.2;
  Simulation network(config);
  Transfer transfer(network, 30 * kSegment);
  core::ReceiveRequest request = transfer.receive_request();
  request.place_context = &seen;
  request.place = [](void* context, std::uint64_t offset, std::span<const std::byte> payload) {
    auto& to = *static_cast<Seen*>(context);
    std::copy(payload.begin(), payload.end(), to.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    ++to.calls[offset / kSegment];
  };
  REQUIRE(network.receive(1, request) == PostStatus::kPosted);
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  REQUIRE(transfer.run());
  CHECK(seen.bytes == transfer.data());
  CHECK(std::all_of(seen.calls.begin(), seen.calls.end(), [](int n) { return n == 1; }));
  const auto untouched = transfer.buffer().bytes();
  CHECK(std::all_of(untouched.begin(), untouched.end(), [](std::byte b) { return b == Transfer::kOld; }));
}

// ---- limits of time ------------------------------------------------------------------------------------------------

TEST_CASE("deadline__completes_on_time_and_reports_what_is_missing") {
  Simulation network(SimulationConfig{});
  network.drop_if = [](const Flight& f) { return f.type == wire::PacketType::kData && segment_of(f) >= 50; };
  TransferOptions options;
  options.loss_bound = 0.1;
  options.deadline_ns = 7 * kMillisecond;
  Transfer transfer(network, 100 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  CHECK(transfer.received()->status == CompletionStatus::kDeadline);
  CHECK(transfer.received()->elapsed_ns == 7 * kMillisecond);
  CHECK(transfer.received()->missing_bytes == 50 * kSegment);
  CHECK(transfer.received()->missing_bytes > transfer.received()->allowed_missing_bytes);
  CHECK(transfer.sent()->status == CompletionStatus::kDeadline);
  CHECK(transfer.sent()->missing_bytes == 50 * kSegment);
}

TEST_CASE("deadline__passes_even_if_the_sender_never_comes") {
  Simulation network(SimulationConfig{});
  TransferOptions options;
  options.deadline_ns = 3 * kMillisecond;
  Transfer transfer(network, 10'000, options);
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  network.run_for(10 * kMillisecond);
  REQUIRE(transfer.received() != nullptr);
  CHECK(transfer.received()->status == CompletionStatus::kDeadline);
  CHECK(transfer.received()->missing_bytes == 10'000);
  CHECK(transfer.fault() == "");
  // A sender that comes later learns how it ended.
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  REQUIRE(transfer.run());
  CHECK(transfer.sent()->status == CompletionStatus::kDeadline);
  CHECK(transfer.fault() == "");
}

TEST_CASE("timeout__fails_each_side_alone_and_on_time") {
  SimulationConfig config;
  TransferOptions options;
  bool sends = false;
  DurationNs timeout_ns = 0;
  SUBCASE("receive") { timeout_ns = options.receive_timeout_ns = 2 * kMillisecond; }
  SUBCASE("send") {
    sends = true;
    timeout_ns = options.send_timeout_ns = 5 * kMillisecond;
  }
  SUBCASE("the endpoint's default when the request names none") {
    timeout_ns = config.endpoint.operation_timeout_ns = 4 * kMillisecond;
  }
  Simulation network(config);
  Transfer transfer(network, 10'000, options);
  REQUIRE((sends ? transfer.post_send() : transfer.post_receive()) == PostStatus::kPosted);
  network.run_for(timeout_ns);
  const Completed* end = sends ? transfer.sent() : transfer.received();
  REQUIRE(end != nullptr);
  CHECK(end->status == CompletionStatus::kTimedOut);
  CHECK(end->elapsed_ns == timeout_ns);
  if (!sends) CHECK(transfer.fault() == "");
}

TEST_CASE("cancel__of_a_receive_ends_both_sides_and_gives_the_buffer_back") {
  Simulation network(SimulationConfig{});
  network.drop_if = [](const Flight& f) { return f.type == wire::PacketType::kData && segment_of(f) == 5; };
  Transfer transfer(network, 100 * kSegment);
  transfer.post();
  network.run_for(2 * kMillisecond);
  REQUIRE(transfer.received() == nullptr);
  network.cancel(1, 1, CompletionKind::kReceive);
  REQUIRE(transfer.received() != nullptr);
  CHECK(transfer.received()->status == CompletionStatus::kCancelled);
  network.drop_if = nullptr;
  REQUIRE(transfer.run());
  CHECK(transfer.sent()->status == CompletionStatus::kCancelled);
  CHECK(transfer.fault() == "");  // what was missing then is missing now
}

TEST_CASE("cancel__of_an_unknown_operation_does_nothing") {
  Simulation network(SimulationConfig{});
  network.cancel(0, 77, CompletionKind::kSend);
  network.cancel(0, 77, CompletionKind::kReceive);
  CHECK(network.completed(0).empty());
}

// ---- mismatch ------------------------------------------------------------------------------------------------------

TEST_CASE("mismatch__of_size_fails_both_sides_and_names_both_sizes") {
  for (const bool early : {false, true}) {
    for (const std::size_t receive_bytes : {0UL, 8'000UL, 50'000UL}) {
      CAPTURE(early);
      CAPTURE(receive_bytes);
      Simulation network(SimulationConfig{});
      Transfer sending(network, 20'000);
      Transfer receiving(network, receive_bytes);
      if (early) {
        REQUIRE(sending.post_send() == PostStatus::kPosted);
        network.run_for(kMillisecond);
      }
      REQUIRE(receiving.post_receive() == PostStatus::kPosted);
      if (!early) REQUIRE(sending.post_send() == PostStatus::kPosted);
      REQUIRE(sending.run());
      CHECK(sending.sent()->status == CompletionStatus::kSizeMismatch);
      CHECK(sending.sent()->remote_total_bytes == receive_bytes);
      CHECK(receiving.received()->status == CompletionStatus::kSizeMismatch);
      CHECK(receiving.received()->remote_total_bytes == 20'000);
      CHECK(receiving.buffer().intact());
      const auto bytes = receiving.buffer().bytes();
      CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == Transfer::kOld; }));
    }
  }
}

TEST_CASE("mismatch__of_type_fails_both_sides_and_names_both_types") {
  Simulation network(SimulationConfig{});
  TransferOptions options;
  Transfer sending(network, 20'000, options);
  options.element = wire::ElementType::kInt32;
  Transfer receiving(network, 20'000, options);
  REQUIRE(receiving.post_receive() == PostStatus::kPosted);
  REQUIRE(sending.post_send() == PostStatus::kPosted);
  REQUIRE(sending.run());
  CHECK(sending.sent()->status == CompletionStatus::kTypeMismatch);
  CHECK(sending.sent()->remote_element == wire::ElementType::kInt32);
  CHECK(receiving.received()->status == CompletionStatus::kTypeMismatch);
  CHECK(receiving.received()->remote_element == wire::ElementType::kFloat32);
}

// Only a probe tells of the sender's tensor when its receive is posted: it names the size as data would.
TEST_CASE("mismatch__is_found_in_a_probe_that_came_before_the_receive") {
  for (const std::size_t receive_bytes : {0UL, 8'000UL, 50'000UL}) {
    for (const std::uint8_t paths : {std::uint8_t{1}, std::uint8_t{4}}) {
      CAPTURE(receive_bytes);
      CAPTURE(paths);
      SimulationConfig config;
      config.endpoint.paths = paths;
      Simulation network(config);
      network.drop_if = [](const Flight& flight) { return flight.type == wire::PacketType::kData; };
      Transfer sending(network, 20'000);
      Transfer receiving(network, receive_bytes);
      REQUIRE(sending.post_send() == PostStatus::kPosted);
      network.run_for(20 * kMillisecond);
      REQUIRE(receiving.post_receive() == PostStatus::kPosted);
      network.drop_if = nullptr;
      REQUIRE(sending.run(kSecond));
      CHECK(sending.sent()->status == CompletionStatus::kSizeMismatch);
      CHECK(receiving.received()->status == CompletionStatus::kSizeMismatch);
      CHECK(receiving.received()->remote_total_bytes == 20'000);
    }
  }
}

// Packets came early and found no room: nothing is known of the sender's size, and an empty tensor must not be taken
// for complete.
TEST_CASE("mismatch__an_empty_receive_waits_for_word_of_the_senders_size") {
  SimulationConfig config;
  config.endpoint.paths = 4;  // no END_OF_ROUND
  config.endpoint.early_segments = 1;
  config.early_segments = 1'000;  // the peer promises more than it keeps
  Simulation network(config);
  network.drop_if = [](const Flight& flight) { return flight.type == wire::PacketType::kProbe; };
  TransferOptions first;
  first.tag = 1;
  first.operation = 2;
  Transfer crowding(network, 1'000, first);  // takes the only place, and its receive is never posted
  REQUIRE(crowding.post_send() == PostStatus::kPosted);
  network.run_for(kMillisecond);
  Transfer sending(network, 1'000);
  Transfer receiving(network, 0);
  REQUIRE(sending.post_send() == PostStatus::kPosted);
  network.run_for(kMillisecond);
  REQUIRE(receiving.post_receive() == PostStatus::kPosted);
  network.drop_if = nullptr;
  REQUIRE(sending.run(kSecond));
  CHECK(sending.sent()->status == CompletionStatus::kSizeMismatch);
  CHECK(receiving.received()->status == CompletionStatus::kSizeMismatch);
}

TEST_CASE("mismatch__leaves_other_transfers_running") {
  SimulationConfig config;
  config.link.data.drop = 0.05;
  Simulation network(config);
  TransferOptions options;
  Transfer bad_send(network, 20'000, options);
  Transfer bad_receive(network, 24'000, options);
  Transfer good(network, 500'000, options.numbered(2));
  good.post();
  REQUIRE(bad_receive.post_receive() == PostStatus::kPosted);
  REQUIRE(bad_send.post_send() == PostStatus::kPosted);
  REQUIRE(good.run());
  REQUIRE(bad_send.run());
  CHECK(good.fault() == "");
  CHECK(good.received()->status == CompletionStatus::kComplete);
}

// ---- early arrivals ------------------------------------------------------------------------------------------------

TEST_CASE("early__segments_wait_for_their_receive") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 100 * kSegment);
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  network.run_for(20 * kMillisecond);
  CHECK(network.counter(1, Counter::k_early_segments_kept) == 100);
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  CHECK(transfer.received() != nullptr);  // at once: everything is here
  REQUIRE(transfer.run(kMillisecond));
  CHECK(transfer.fault() == "");
  CHECK(network.counter(0, Counter::k_data_packets_sent) == 100);
}

TEST_CASE("early__sender_sends_no_more_early_data_than_the_peer_buffers") {
  SimulationConfig config;
  config.early_segments = 12;
  config.endpoint.early_segments = 12;
  Simulation network(config);
  Transfer transfer(network, 100 * kSegment);
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  network.run_for(300 * kMillisecond);
  CHECK(network.counter(0, Counter::k_data_packets_sent) == 12);
  CHECK(network.counter(1, Counter::k_early_segments_dropped) == 0);
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  REQUIRE(transfer.run(kMillisecond));  // it is told, and need not ask
  CHECK(transfer.fault() == "");
  CHECK(network.counter(0, Counter::k_data_packets_sent) == 100);
}

TEST_CASE("early__what_finds_no_room_is_counted_and_recovered") {
  SimulationConfig config;
  config.early_segments = 1'000;  // the peer promises more than it keeps
  config.endpoint.early_segments = 10;
  Simulation network(config);
  Transfer transfer(network, 100 * kSegment);
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  network.run_for(5 * kMillisecond);
  CHECK(network.counter(1, Counter::k_early_segments_kept) == 10);
  CHECK(network.counter(1, Counter::k_early_segments_dropped) == 90);
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  REQUIRE(transfer.run(kMillisecond));
  CHECK(transfer.fault() == "");
  CHECK(transfer.received()->status == CompletionStatus::kComplete);
}

TEST_CASE("early__more_transfers_than_records_all_complete") {
  SimulationConfig config;
  config.endpoint.early_transfers = 8;
  Simulation network(config);
  const Transfers transfers = transfers_of(network, 100, 3'000);
  for (auto& transfer : transfers) REQUIRE(transfer->post_send() == PostStatus::kPosted);
  network.run_for(kMillisecond);
  for (auto& transfer : transfers) REQUIRE(transfer->post_receive() == PostStatus::kPosted);
  REQUIRE(network.run_until_completed(1, 100, 150 * kMillisecond));
  for (auto& transfer : transfers) CHECK(transfer->fault() == "");
}

TEST_CASE("early__a_late_post_with_a_bound_loses_nothing_on_a_clean_network") {
  for (const auto late : {5 * kMicrosecond, 20 * kMicrosecond, 50 * kMicrosecond, 100 * kMicrosecond, kMillisecond}) {
    CAPTURE(late);
    Simulation network(SimulationConfig{});
    TransferOptions options;
    options.loss_bound = 0.9;
    Transfer transfer(network, 100 * kSegment, options);
    REQUIRE(transfer.post_send() == PostStatus::kPosted);
    network.run_for(late);
    REQUIRE(transfer.post_receive() == PostStatus::kPosted);
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    CHECK(transfer.received()->status == CompletionStatus::kComplete);
  }
}

TEST_CASE("early__what_found_no_room_is_no_loss_that_the_bound_allows") {
  for (const std::uint32_t room : {0U, 1U, 3U}) {
    for (const std::uint32_t records : {1U, 64U}) {
      CAPTURE(room);
      CAPTURE(records);
      SimulationConfig config;
      config.endpoint.early_segments = room;
      config.endpoint.early_transfers = records;
      Simulation network(config);
      TransferOptions options;
      options.loss_bound = 0.9;
      const Transfers transfers = transfers_of(network, 12, 10 * kSegment, options);
      for (auto& transfer : transfers) REQUIRE(transfer->post_send() == PostStatus::kPosted);
      network.run_for(kMillisecond);
      for (auto& transfer : transfers) REQUIRE(transfer->post_receive() == PostStatus::kPosted);
      for (auto& transfer : transfers) {
        REQUIRE(transfer->run());
        CHECK(transfer->fault() == "");
        CHECK(transfer->received()->status == CompletionStatus::kComplete);
      }
    }
  }
}

// ---- reuse and stale packets ---------------------------------------------------------------------------------------

TEST_CASE("tag__is_used_again_and_again_in_order") {
  SimulationConfig config;
  config.link.data = {.drop = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0};
  config.link.control = config.link.data;
  Simulation network(config);
  std::vector<std::unique_ptr<Transfer>> uses;
  for (std::uint64_t i = 0; i < 20; ++i) {
    TransferOptions options;
    options.operation = i + 1;
    uses.push_back(std::make_unique<Transfer>(network, 20'000, options));
  }
  // All sends at once, receives one by one: the k-th meets the k-th.
  for (auto& use : uses) REQUIRE(use->post_send() == PostStatus::kPosted);
  for (auto& use : uses) {
    REQUIRE(use->post_receive() == PostStatus::kPosted);
    network.run_for(300 * kMicrosecond);
  }
  REQUIRE(network.run_until_completed(0, 20));
  for (auto& use : uses) CHECK(use->fault() == "");
}

TEST_CASE("stale__packets_never_touch_the_memory_of_an_ended_transfer") {
  Simulation network(SimulationConfig{});
  std::vector<std::vector<std::byte>> seen;
  network.on_delivery = [&](std::uint16_t to, const Flight& f) {
    if (to == 1) seen.push_back(f.bytes);
  };
  Transfer first(network, 50 * kSegment);
  first.post();
  REQUIRE(first.run());
  network.on_delivery = nullptr;
  const auto memory = first.buffer().bytes();
  std::fill(memory.begin(), memory.end(), std::byte{0x11});
  const auto untouched = [&] {
    return first.buffer().intact() &&
           std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0x11}; });
  };
  for (const auto& bytes : seen) network.inject(1, bytes);
  CHECK(untouched());
  CHECK(network.counter(1, Counter::k_stale_packets) == 50);

  // The next use of the tag is under way, into the same memory: packets of the earlier one are not of it.
  core::ReceiveRequest request = first.receive_request();
  request.operation = 2;
  REQUIRE(network.receive(1, request) == PostStatus::kPosted);
  for (const auto& bytes : seen) network.inject(1, bytes);
  CHECK(untouched());

  // A new incarnation: the same tag and generation, but another cookie.
  network.disconnect(0, 1);
  network.connect(0, 1);
  request.operation = 3;
  REQUIRE(network.receive(1, request) == PostStatus::kPosted);
  for (const auto& bytes : seen) network.inject(1, bytes);
  CHECK(untouched());
  CHECK(network.counter(1, Counter::k_drop_bad_cookie) == seen.size());
}

TEST_CASE("stale__a_failed_connection_gives_buffers_back_and_the_next_one_counts_from_zero") {
  Simulation network(SimulationConfig{});
  network.every_link([](Link& link) { link.data.drop = 1.0; });
  Transfer lost(network, 50'000);
  lost.post();
  network.run_for(kMillisecond);
  network.disconnect(0, 1);
  REQUIRE(lost.ended());
  CHECK(lost.received()->status == CompletionStatus::kPeerFailed);
  CHECK(lost.sent()->status == CompletionStatus::kPeerFailed);
  TransferOptions options;
  options.operation = 2;
  Transfer again(network, 50'000, options);
  CHECK(again.post_send() == PostStatus::kPeerNotConnected);
  CHECK(again.post_receive() == PostStatus::kPeerNotConnected);
  network.every_link([](Link& link) { link.data.drop = 0.0; });
  network.connect(0, 1);
  again.post();
  REQUIRE(again.run(kSecond));
  CHECK(again.fault() == "");
}

TEST_CASE("stale__peers_that_restart_alone_start_over") {
  // Only one side saw the connection fail in the middle of many transfers, then both reconnect.
  Simulation network(SimulationConfig{});
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (std::uint64_t i = 0; i < 5; ++i) {
    TransferOptions options;
    options.operation = i + 1;
    transfers.push_back(std::make_unique<Transfer>(network, 200'000, options));
    transfers.back()->post();
  }
  network.run_for(100 * kMicrosecond);
  network.disconnect(0, 1);
  network.connect(0, 1);
  network.run_for(kMillisecond);  // data of the first incarnation still arrives
  for (auto& transfer : transfers) REQUIRE(transfer->ended());
  TransferOptions options;
  options.operation = 9;
  Transfer again(network, 200'000, options);
  again.post();
  REQUIRE(again.run(kSecond));
  CHECK(again.fault() == "");
}

// ---- bitmaps and lost control --------------------------------------------------------------------------------------

TEST_CASE("bitmap__of_several_chunks_repairs_exactly_what_is_missing") {
  SimulationConfig config;
  config.segment_bytes = 64;
  config.endpoint.early_segments = 100'000;
  Simulation network(config);
  const std::uint32_t segments = 3 * MLT_BITMAP_CHUNK_SEGMENTS + 77;
  const auto is_lost = [&](std::uint32_t s) {
    // Something in the first chunk, nothing in the second, edges of the others.
    return s == 0 || s == 8'191 || s == 2 * 8'192 || s == 3 * 8'192 || s == segments - 1 || (s < 8'192 && s % 97 == 5);
  };
  std::uint32_t lost = 0;
  for (std::uint32_t s = 0; s < segments; ++s) lost += is_lost(s) ? 1U : 0U;
  network.drop_if = [&](const Flight& f) {
    if (f.type != wire::PacketType::kData) return false;
    const wire::DataHeader header = data_header_of(f);
    return header.prefix.round == 0 && is_lost(header.offset_bytes / 64);
  };
  Transfer transfer(network, segments * 64);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  CHECK(transfer.received()->repaired_segments == lost);
  CHECK(network.counter(0, Counter::k_segments_repaired) == lost);
  CHECK(network.counter(1, Counter::k_duplicate_segments) == 0);
}

TEST_CASE("bitmap__chunks_may_be_lost_repeated_and_out_of_order") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    SimulationConfig config;
    config.seed = seed;
    config.segment_bytes = 64;
    config.link.data.drop = 0.05;
    config.link.control = {.drop = 0.4, .duplicate = 0.3, .reorder = 0.5, .corrupt = 0};
    Simulation network(config);
    Transfer transfer(network, 40'000 * 64);
    transfer.post();
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
  }
}

TEST_CASE("control__each_kind_may_be_lost_most_of_the_time") {
  for (const auto lost :
       {wire::PacketType::kAck, wire::PacketType::kProbe, wire::PacketType::kBitmap, wire::PacketType::kStop}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(static_cast<int>(lost));
      CAPTURE(seed);
      SimulationConfig config;
      config.seed = seed;
      config.link.data.drop = 0.05;
      config.window_bytes = 100'000;
      Simulation network(config);
      base::Prng prng(seed);
      network.drop_if = [&](const Flight& f) { return f.type == lost && !f.by_control_connection && prng.chance(0.8); };
      Transfer transfer(network, 400'000);
      transfer.post();
      REQUIRE(transfer.run());
      CHECK(transfer.fault() == "");
    }
  }
}

TEST_CASE("stop__lost_once_is_sent_again_within_a_few_round_trips") {
  Simulation network(SimulationConfig{});
  int stops = 0;
  network.drop_if = [&](const Flight& f) { return f.type == wire::PacketType::kStop && ++stops == 1; };
  Transfer transfer(network, 100'000);
  transfer.post();
  REQUIRE(transfer.run(5 * kMillisecond));
  CHECK(transfer.fault() == "");
  CHECK(transfer.sent()->status == CompletionStatus::kComplete);
}

TEST_CASE("stop__outcome_pushed_out_of_the_log_reads_as_finished") {
  SimulationConfig config;
  config.endpoint.finished_log = 1;
  Simulation network(config);
  network.drop_if = [](const Flight& f) { return f.type == wire::PacketType::kStop; };
  TransferOptions options;
  Transfer first(network, 10'000, options);
  first.post();
  network.run_for(200 * kMicrosecond);
  Transfer second(network, 10'000, options.numbered(2));
  second.post();
  network.run_for(200 * kMicrosecond);
  REQUIRE(first.received() != nullptr);
  REQUIRE(second.received() != nullptr);
  network.drop_if = nullptr;
  REQUIRE(first.run(200 * kMillisecond));
  REQUIRE(second.run(200 * kMillisecond));
  CHECK(first.sent()->status == CompletionStatus::kComplete);
}

TEST_CASE("ack__one_for_every_ten_packets") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 1'000 * kSegment);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(network.counter(1, Counter::k_acks_sent) >= 99);
  CHECK(network.counter(1, Counter::k_acks_sent) <= 101);
  CHECK(network.counter(1, Counter::k_stops_sent) == 1);
  CHECK(network.counter(1, Counter::k_bitmaps_sent) == 0);
  CHECK(network.counter(0, Counter::k_probes_sent) <= 1);  // the rate controller's question about the base
}

TEST_CASE("replies__leave_in_the_control_class") {
  SimulationConfig config;
  config.link.data.drop = 0.1;
  Simulation network(config);
  int answers = 0;
  network.on_run = [&](std::uint16_t from, const core::Transmit& run) {
    const bool data = (std::to_integer<unsigned>(run.slices[0].data[0]) & 0x0FU) == MLT_TYPE_DATA;
    if (data) {
      CHECK(run.dscp != network.endpoint(0).config().dscp.control);
      return;
    }
    if (from != 1) return;
    ++answers;
    CHECK(run.dscp == network.endpoint(1).config().dscp.control);
    CHECK(run.ecn == base::Ecn::kEct0);
    CHECK(run.datagram_count == 1);
  };
  Transfer transfer(network, 100'000);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(answers > 0);
}

TEST_CASE("stop__that_was_lost_is_repeated_with_the_outcome_however_many_transfers_ended_since") {
  SimulationConfig config;
  config.endpoint.finished_log = 1;  // forgets at once: what remains is the tag's own memory
  Simulation network(config);
  TransferOptions options;
  options.operation = 1;
  options.tag = 1;
  Transfer transfer(network, 10'000, options);
  network.drop_if = [](const Flight& flight) { return flight.type == wire::PacketType::kStop; };
  transfer.post();
  network.run_for(kMillisecond / 10);
  network.cancel(1, 1, CompletionKind::kReceive);
  network.drop_if = nullptr;
  for (std::uint64_t other = 2; other < 20; ++other) {
    TransferOptions more;
    more.operation = more.tag = other;
    Transfer ended(network, 1'000, more);
    ended.post();
    REQUIRE(ended.run());
  }
  REQUIRE(network.run_until([&] { return transfer.sent() != nullptr; }));
  REQUIRE(transfer.received() != nullptr);
  // Both sides tell the same story, whichever it was.
  CHECK(transfer.sent()->status == transfer.received()->status);
  CHECK(transfer.sent()->missing_bytes == transfer.received()->missing_bytes);
}
