// Receives that are posted for up to a size: what they take as their size, and what follows from it (clause 7.1.5).
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "core/receiver.h"
#include "support/data_header.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

constexpr std::size_t kMaxBytes = 50'000;

// A send, and a receive of up to `max_bytes` with the same tag.
struct UpTo {
  Transfer sending;
  Transfer receiving;

  UpTo(Simulation& network, std::size_t bytes, std::size_t max_bytes, const TransferOptions& options = {})
      : sending(network, bytes, options), receiving(network, max_bytes, options), network_(network) {}

  core::ReceiveRequest request() {
    core::ReceiveRequest request = receiving.receive_request();
    request.up_to = true;
    return request;
  }
  PostStatus post_receive() { return network_.receive(receiving.options().to, request()); }
  void post(bool early) {
    if (early) REQUIRE(sending.post_send() == PostStatus::kPosted);
    if (early) network_.run_for(kMillisecond);
    REQUIRE(post_receive() == PostStatus::kPosted);
    if (!early) REQUIRE(sending.post_send() == PostStatus::kPosted);
  }
  // The front of the buffer, as long as what was sent, without missing segments; the rest is untouched.
  void check_buffer() {
    const std::span<const std::byte> bytes = receiving.buffer().bytes();
    const std::size_t sent = sending.data().size();
    CHECK(receiving.buffer().intact());
    for (std::uint32_t segment = 0; segment < received().segment_count; ++segment) {
      const std::size_t begin = std::size_t{segment} * kSegment;
      const auto got = bytes.subspan(begin, std::min<std::size_t>(kSegment, sent - begin));
      if (received().arrived(segment)) {
        CHECK(std::ranges::equal(got, std::span(sending.data()).subspan(begin, got.size())));
      } else {
        CHECK(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0}; }));
      }
    }
    CHECK(std::ranges::all_of(bytes.subspan(sent), [](std::byte b) { return b == Transfer::kOld; }));
  }
  const Completed& sent() const { return *sending.sent(); }
  const Completed& received() const { return *receiving.received(); }

 private:
  Simulation& network_;
};

}  // namespace

TEST_CASE("up_to__takes_a_tensor_of_any_size_that_fits") {
  for (const bool early : {false, true}) {
    for (const std::uint8_t paths : {std::uint8_t{1}, std::uint8_t{4}}) {
      for (const std::size_t bytes :
           {std::size_t{0}, std::size_t{4}, std::size_t{kSegment}, std::size_t{20'000}, kMaxBytes - 4, kMaxBytes}) {
        CAPTURE(early);
        CAPTURE(paths);
        CAPTURE(bytes);
        SimulationConfig config;
        config.endpoint.paths = paths;
        Simulation network(config);
        UpTo transfer(network, bytes, kMaxBytes);
        transfer.post(early);
        REQUIRE(transfer.sending.run());
        CHECK(transfer.received().status == CompletionStatus::kComplete);
        CHECK(transfer.received().total_bytes == bytes);
        CHECK(transfer.sent().status == CompletionStatus::kComplete);
        CHECK(transfer.sent().total_bytes == bytes);
        transfer.check_buffer();
      }
    }
  }
}

TEST_CASE("up_to__a_longer_tensor_fails_at_both_ranks_and_the_next_works") {
  for (const bool early : {false, true}) {
    CAPTURE(early);
    Simulation network(SimulationConfig{});
    TransferOptions options;
    UpTo longer(network, kMaxBytes + 4, kMaxBytes, options);
    longer.post(early);
    REQUIRE(longer.sending.run());
    CHECK(longer.received().status == CompletionStatus::kSizeMismatch);
    CHECK(longer.received().total_bytes == kMaxBytes);
    CHECK(longer.received().remote_total_bytes == kMaxBytes + 4);
    CHECK(longer.received().elapsed_ns < kMillisecond);
    CHECK(longer.sent().status == CompletionStatus::kSizeMismatch);
    CHECK(longer.sent().remote_total_bytes == kMaxBytes);
    const auto bytes = longer.receiving.buffer().bytes();
    CHECK(std::ranges::all_of(bytes, [](std::byte b) { return b == Transfer::kOld; }));

    options.operation = 2;
    UpTo next(network, 8'000, kMaxBytes, options);
    next.post(early);
    REQUIRE(next.sending.run());
    CHECK(next.received().status == CompletionStatus::kComplete);
    CHECK(next.received().total_bytes == 8'000);
    next.check_buffer();
  }
}

TEST_CASE("up_to__another_element_type_fails_at_both_ranks") {
  Simulation network(SimulationConfig{});
  TransferOptions options;
  Transfer sending(network, 8'000, options);
  options.element = wire::ElementType::kInt32;
  UpTo receiving(network, 0, kMaxBytes, options);
  REQUIRE(receiving.post_receive() == PostStatus::kPosted);
  REQUIRE(sending.post_send() == PostStatus::kPosted);
  REQUIRE(sending.run());
  CHECK(sending.sent()->status == CompletionStatus::kTypeMismatch);
  CHECK(receiving.received().status == CompletionStatus::kTypeMismatch);
}

// Of 10 segments one may be lost with a bound of a tenth, although a tenth of the maximum would be ten.
TEST_CASE("up_to__the_bound_is_of_the_size_that_was_sent") {
  for (const auto stop : {core::StopPolicy::kPatient, core::StopPolicy::kEager}) {
    for (const std::uint32_t lost : {1U, 2U}) {
      CAPTURE(static_cast<int>(stop));
      CAPTURE(lost);
      Simulation network(SimulationConfig{});
      network.drop_if = [&](const Flight& f) {
        if (f.type != wire::PacketType::kData) return false;
        const wire::DataHeader header = data_header_of(f);
        return header.prefix.round == 0 && header.offset_bytes / kSegment >= 3 &&
               header.offset_bytes / kSegment < 3 + lost;
      };
      TransferOptions options;
      options.loss_bound = 0.1;
      options.stop = stop;
      UpTo transfer(network, 10 * kSegment, 100 * kSegment, options);
      transfer.post(false);
      REQUIRE(transfer.sending.run());
      CHECK(transfer.received().total_bytes == 10 * kSegment);
      CHECK(transfer.received().allowed_missing_bytes == kSegment);
      CHECK(transfer.received().segment_count == 10);
      CHECK(transfer.received().missing_bytes <= kSegment);
      if (lost == 1) {
        CHECK(transfer.received().status == CompletionStatus::kWithinBound);
        CHECK(transfer.received().missing_bytes == kSegment);
      }
      if (lost == 2) CHECK(network.counter(0, Counter::k_segments_repaired) > 0);
      CHECK(transfer.sent().status == transfer.received().status);
      CHECK(transfer.sent().missing_bytes == transfer.received().missing_bytes);
      transfer.check_buffer();
    }
  }
}

TEST_CASE("up_to__a_shared_budget_allows_a_segment_of_the_size_that_was_sent") {
  Simulation network(SimulationConfig{});
  core::SharedLossBudget budget(1'000'000, 4, 0.5);
  UpTo transfer(network, 400, kMaxBytes);
  core::ReceiveRequest request = transfer.request();
  request.shared_budget = &budget;
  REQUIRE(network.receive(1, request) == PostStatus::kPosted);
  REQUIRE(transfer.sending.post_send() == PostStatus::kPosted);
  REQUIRE(transfer.sending.run());
  CHECK(transfer.received().status == CompletionStatus::kComplete);
  CHECK(transfer.received().allowed_missing_bytes == 400);
  CHECK(budget.left_bytes() == 2'000'000);
}

// What was dropped before the size was known is no loss of the network either (7.5.10).
TEST_CASE("up_to__early_data_that_found_no_room_is_repaired") {
  SimulationConfig config;
  config.endpoint.early_segments = 1;
  config.early_segments = 1'000;  // the peer promises more than it keeps
  Simulation network(config);
  TransferOptions options;
  options.loss_bound = 0.9;
  UpTo transfer(network, 8 * kSegment, kMaxBytes, options);
  transfer.post(true);
  REQUIRE(transfer.sending.run());
  CHECK(network.counter(1, Counter::k_early_segments_dropped) > 0);
  CHECK(transfer.received().status == CompletionStatus::kComplete);
  transfer.check_buffer();
}

TEST_CASE("up_to__a_probe_that_came_before_the_receive_names_the_size") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{20'000}, kMaxBytes + 4}) {
    CAPTURE(bytes);
    Simulation network(SimulationConfig{});
    network.drop_if = [](const Flight& flight) { return flight.type == wire::PacketType::kData; };
    UpTo transfer(network, bytes, kMaxBytes);
    REQUIRE(transfer.sending.post_send() == PostStatus::kPosted);
    network.run_for(20 * kMillisecond);
    REQUIRE(transfer.post_receive() == PostStatus::kPosted);
    network.drop_if = nullptr;
    REQUIRE(transfer.sending.run(kSecond));
    if (bytes > kMaxBytes) {
      CHECK(transfer.received().status == CompletionStatus::kSizeMismatch);
      CHECK(transfer.received().remote_total_bytes == bytes);
      continue;
    }
    CHECK(transfer.received().status == CompletionStatus::kComplete);
    CHECK(transfer.received().total_bytes == bytes);
    transfer.check_buffer();
  }
}

TEST_CASE("up_to__a_send_that_is_cancelled_ends_it_and_the_next_works") {
  for (const bool before_the_post : {false, true}) {
    CAPTURE(before_the_post);
    Simulation network(SimulationConfig{});
    network.drop_if = [](const Flight& flight) { return flight.type == wire::PacketType::kData; };
    TransferOptions options;
    UpTo cancelled(network, 8'000, kMaxBytes, options);
    cancelled.post(before_the_post);
    if (!before_the_post) network.run_for(kMillisecond);
    network.cancel(0, options.operation, CompletionKind::kSend);
    network.drop_if = nullptr;
    REQUIRE(network.run_until([&] { return cancelled.receiving.received() != nullptr; }, kSecond));
    CHECK(cancelled.received().status == CompletionStatus::kCancelled);
    options.operation = 2;
    UpTo next(network, 4'000, kMaxBytes, options);
    next.post(false);
    REQUIRE(next.sending.run());
    CHECK(next.received().status == CompletionStatus::kComplete);
    CHECK(next.received().total_bytes == 4'000);
    next.check_buffer();
  }
}

TEST_CASE("up_to__a_deadline_completes_what_has_a_size_and_fails_what_has_none") {
  for (const bool has_size : {false, true}) {
    CAPTURE(has_size);
    Simulation network(SimulationConfig{});
    // Of the tensor only the first segment arrives, or nothing.
    network.drop_if = [&](const Flight& f) {
      if (f.type == wire::PacketType::kProbe) return !has_size;
      return f.type == wire::PacketType::kData && !(has_size && data_header_of(f).offset_bytes == 0);
    };
    TransferOptions options;
    options.deadline_ns = 50 * kMillisecond;
    UpTo transfer(network, 8'000, kMaxBytes, options);
    transfer.post(false);
    REQUIRE(transfer.sending.run());
    CHECK(transfer.received().elapsed_ns >= 50 * kMillisecond);
    CHECK(transfer.received().elapsed_ns < 100 * kMillisecond);
    if (has_size) {
      CHECK(transfer.received().status == CompletionStatus::kDeadline);
      CHECK(transfer.received().total_bytes == 8'000);
      CHECK(transfer.received().missing_bytes == 8'000 - kSegment);
      CHECK(transfer.sent().status == CompletionStatus::kDeadline);
      transfer.check_buffer();
    } else {
      CHECK(transfer.received().status == CompletionStatus::kTimedOut);
      CHECK(transfer.received().total_bytes == kMaxBytes);
      CHECK(transfer.sent().status == CompletionStatus::kCancelled);
      const auto bytes = transfer.receiving.buffer().bytes();
      CHECK(std::ranges::all_of(bytes, [](std::byte b) { return b == Transfer::kOld; }));
    }
  }
}

// A sender that is not honest names two sizes.
TEST_CASE("up_to__the_size_that_is_named_first_holds") {
  Simulation network(SimulationConfig{});
  UpTo transfer(network, 0, kMaxBytes);
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  const auto arrives = [&](std::uint32_t total_bytes, std::uint32_t offset) {
    wire::DataHeader header;
    header.prefix.element = wire::ElementType::kFloat32;
    header.prefix.sequence = 1;
    header.prefix.cookie = network.cookie(0, 1);
    header.tag = transfer.receiving.options().tag;
    header.total_bytes = total_bytes;
    header.offset_bytes = offset;
    std::vector<std::byte> bytes(MLT_DATA_HEADER_BYTES + std::min(total_bytes - offset, kSegment), std::byte{1});
    wire::encode_data_header(header, bytes.data());
    network.inject(1, bytes);
  };
  arrives(4'000, 0);
  arrives(4'000, 2 * kSegment);
  CHECK(network.counter(1, Counter::k_segments_placed) == 2);
  CHECK(network.completed(1).empty());
  arrives(2'000, kSegment);
  REQUIRE(network.completed(1).size() == 1);
  CHECK(network.completed(1)[0].status == CompletionStatus::kSizeMismatch);
  CHECK(network.completed(1)[0].total_bytes == 4'000);
  CHECK(network.completed(1)[0].remote_total_bytes == 2'000);
  CHECK(transfer.receiving.buffer().intact());
}
