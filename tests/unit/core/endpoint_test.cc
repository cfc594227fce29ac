// The nine entry points: statuses, drops by name, peers, completions, allocation, time.
#include "core/endpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "support/allocation_counter.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

// A valid data packet from host 0 to host 1.
std::vector<std::byte> data_packet(const Simulation& network, std::uint64_t tag, std::uint32_t total_bytes,
                                   std::uint32_t offset, std::uint32_t length) {
  wire::DataHeader header;
  header.prefix.cookie = network.cookie(0, 1);
  header.prefix.element = wire::ElementType::kFloat32;
  header.prefix.sequence = 1;
  header.tag = tag;
  header.total_bytes = total_bytes;
  header.offset_bytes = offset;
  std::vector<std::byte> bytes(MLT_DATA_HEADER_BYTES + length, std::byte{0x3C});
  wire::encode_data_header(header, bytes.data());
  return bytes;
}

}  // namespace

// ---- statuses ------------------------------------------------------------------------------------------------------

TEST_CASE("post__refuses_bad_requests_before_anything_is_touched") {
  SimulationConfig config;
  config.hosts = 3;
  Simulation network(config);
  network.disconnect(0, 2);
  Transfer transfer(network, 4'000);
  core::SendRequest send = transfer.send_request();
  core::ReceiveRequest receive = transfer.receive_request();
  receive.peer = 1;

  for (const std::uint16_t peer : {std::uint16_t{0}, std::uint16_t{3}, std::uint16_t{65'535}}) {
    send.peer = receive.peer = peer;
    CHECK(network.send(0, send) == PostStatus::kUnknownPeer);
    CHECK(network.receive(0, receive) == PostStatus::kUnknownPeer);
  }
  send.peer = receive.peer = 2;
  CHECK(network.send(0, send) == PostStatus::kPeerNotConnected);
  CHECK(network.receive(0, receive) == PostStatus::kPeerNotConnected);
  send.peer = receive.peer = 1;

  send.data = std::span(transfer.data()).first(3'998);
  CHECK(network.send(0, send) == PostStatus::kBadElementCount);
  send.data = transfer.data();
  receive.data = transfer.buffer().bytes().first(3'998);
  CHECK(network.receive(0, receive) == PostStatus::kBadElementCount);
  receive.data = transfer.buffer().bytes();

  const std::vector<core::SegmentPriority> priorities(2);
  send.priorities = priorities;  // 4,000 bytes are three segments
  CHECK(network.send(0, send) == PostStatus::kBadPriorityCount);
  send.priorities = {};

  for (const double bound : {-0.001, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    receive.loss_bound = bound;
    CHECK(network.receive(0, receive) == PostStatus::kBadLossBound);
  }
  receive.loss_bound = 0.1;
  for (const auto element : {wire::ElementType::kInt32, wire::ElementType::kUint8, wire::ElementType::kBool,
                             wire::ElementType::kInt64, wire::ElementType::kUint16}) {
    receive.element = element;
    CHECK(network.receive(0, receive) == PostStatus::kLossyInteger);
  }
  core::SharedLossBudget budget(100, 4, 0.1);
  receive.loss_bound = 0;
  receive.shared_budget = &budget;
  CHECK(network.receive(0, receive) == PostStatus::kLossyInteger);
  // Nothing of it left a trace.
  network.run_for(kSecond);
  CHECK(network.completed(0).empty());
  CHECK(network.counter(0, Counter::k_data_packets_sent) == 0);
  CHECK(network.counter(0, Counter::k_probes_sent) == 0);
}

TEST_CASE("post__refuses_more_than_four_gigabytes") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 8);
  core::SendRequest send = transfer.send_request();
  core::ReceiveRequest receive = transfer.receive_request();
  // Never dereferenced: the size alone is checked.
  send.data = {transfer.data().data(), std::size_t{1} << 32};
  receive.data = {transfer.buffer().bytes().data(), std::size_t{1} << 32};
  CHECK(network.send(0, send) == PostStatus::kTooLarge);
  CHECK(network.receive(1, receive) == PostStatus::kTooLarge);
}

TEST_CASE("post__refuses_when_full_and_takes_again_after_a_poll") {
  SimulationConfig config;
  config.endpoint.max_sends = config.endpoint.max_receives = 4;
  Simulation network(config);
  const Transfers transfers = transfers_of(network, 5, 20'000);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const auto expected = i < 4 ? PostStatus::kPosted : PostStatus::kTooManyOperations;
    CHECK(transfers[i]->post_send() == expected);
    CHECK(transfers[i]->post_receive() == expected);
  }
  REQUIRE(network.run_until_completed(0, 4));
  CHECK(transfers[4]->post_send() == PostStatus::kPosted);
  CHECK(transfers[4]->post_receive() == PostStatus::kPosted);
  REQUIRE(network.run_until_completed(0, 5));
  for (const auto& transfer : transfers) CHECK(transfer->fault() == "");
}

TEST_CASE("post__refuses_without_room_for_bitmaps_and_leaks_none") {
  SimulationConfig config;
  config.endpoint.bitmap_words = 64;  // 4,096 segments in all
  Simulation network(config);
  Transfer big(network, 5'000 * 1'432);
  CHECK(big.post_send() == PostStatus::kOutOfBitmaps);
  CHECK(big.post_receive() == PostStatus::kOutOfBitmaps);
  for (std::uint64_t i = 0; i < 50; ++i) {
    TransferOptions options;
    options.operation = i + 1;
    options.tag = 9;
    Transfer fits(network, 2'000 * 1'432, options);  // 32 words, a half of the arena
    fits.post();
    REQUIRE(fits.run());
    CHECK(fits.fault() == "");
  }
}

TEST_CASE("post__refuses_more_tags_in_use_than_the_table_holds_and_takes_others_once_they_are_not") {
  SimulationConfig config;
  config.endpoint.max_tags = 3;
  Simulation network(config);
  const Transfers transfers = transfers_of(network, 4, 1'000);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    CHECK(transfers[i]->post_send() == (i < 3 ? PostStatus::kPosted : PostStatus::kTooManyTags));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    REQUIRE(transfers[i]->post_receive() == PostStatus::kPosted);
    REQUIRE(transfers[i]->run());
  }
  CHECK(transfers[3]->post_receive() == PostStatus::kTooManyTags);
  REQUIRE(transfers[3]->post_send() == PostStatus::kPosted);  // now the others are forgotten, here and there
  network.run_for(kMillisecond);
  REQUIRE(transfers[3]->post_receive() == PostStatus::kPosted);
  REQUIRE(transfers[3]->run());
  for (const auto& transfer : transfers) CHECK(transfer->fault() == "");
}

TEST_CASE("post__finds_a_tag_though_another_peer_that_posts_no_receives_holds_all_it_can") {
  SimulationConfig config;
  config.hosts = 3;
  config.endpoint.max_tags = 100;
  Simulation network(config);
  std::vector<std::unique_ptr<Transfer>> stuck;
  PostStatus status = PostStatus::kPosted;
  while (status == PostStatus::kPosted) {
    stuck.push_back(std::make_unique<Transfer>(network, 1'000, TransferOptions{}.numbered(stuck.size() + 1)));
    status = stuck.back()->post_send();
  }
  CHECK(status == PostStatus::kTooManyTags);
  CHECK(stuck.size() == 101);
  for (std::uint64_t tag = 0; tag < 25; ++tag) {  // its share: a fourth
    TransferOptions options;
    options.to = 2;
    options.tag = tag;
    options.operation = 1'000 + tag;
    Transfer well(network, 1'000, options);
    well.post();
    REQUIRE(well.run());
    CHECK(well.fault() == "");
  }
}

// ---- drops by name -------------------------------------------------------------------------------------------------

TEST_CASE("on_datagram__counts_each_reason_and_writes_nothing") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 4'000);
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  const auto good = data_packet(network, 7, 4'000, 0, 1'432);
  const auto expect = [&](Counter counter, std::vector<std::byte> bytes) {
    const auto before = network.counter(1, counter);
    network.inject(1, bytes);
    CHECK(network.counter(1, counter) == before + 1);
  };
  const auto with = [&](std::size_t at, unsigned value) {
    auto bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return bytes;
  };
  expect(Counter::k_drop_too_short, {});
  expect(Counter::k_drop_too_short, std::vector<std::byte>(good.begin(), good.begin() + 15));
  expect(Counter::k_drop_too_short, std::vector<std::byte>(good.begin(), good.begin() + 39));
  expect(Counter::k_drop_bad_version, with(MLT_OFFSET_VERSION_TYPE, ((MLT_DATAGRAM_VERSION ^ 1) << 4) | 1));
  expect(Counter::k_drop_unknown_type, with(MLT_OFFSET_VERSION_TYPE, (MLT_DATAGRAM_VERSION << 4) | 11));
  expect(Counter::k_drop_unknown_flags, with(MLT_OFFSET_FLAGS, 0x40));
  expect(Counter::k_drop_unknown_element, with(MLT_OFFSET_PATH_ELEMENT, 0x0D));
  expect(Counter::k_drop_bad_length, std::vector<std::byte>(good.begin(), good.begin() + 40));
  expect(Counter::k_drop_bad_length, data_packet(network, 7, 1'000, 0, 1'432));
  expect(Counter::k_drop_bad_cookie, with(MLT_OFFSET_COOKIE + 5, 0x5A));  // all 64 bits count
  expect(Counter::k_drop_bad_cookie, with(MLT_OFFSET_COOKIE, 0x01));      // our own rank
  expect(Counter::k_drop_bad_cookie, with(MLT_OFFSET_COOKIE, 0x77));      // a rank outside the job
  expect(Counter::k_drop_bad_cookie, with(MLT_OFFSET_OFFSET, 0x98));      // a damaged header, wherever it is damaged
  auto other_path = good;
  wire::seal(std::span(other_path).first(MLT_DATA_HEADER_BYTES));  // takes the check out, and puts the new one in
  other_path[MLT_OFFSET_PATH_ELEMENT] = std::byte{0x17};
  wire::seal(std::span(other_path).first(MLT_DATA_HEADER_BYTES));
  expect(Counter::k_drop_bad_path, other_path);  // path 1 of one path
  expect(Counter::k_drop_bad_segment, data_packet(network, 7, 4'000, 8, 1'432));
  expect(Counter::k_drop_bad_segment, data_packet(network, 7, 4'000, 0, 1'428));
  expect(Counter::k_drop_bad_segment, data_packet(network, 7, 4'000, 2'864, 1'000));
  CHECK(network.counter(1, Counter::k_segments_placed) == 0);
  const auto bytes = transfer.buffer().bytes();
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == Transfer::kOld; }));
  network.inject(1, good);
  CHECK(network.counter(1, Counter::k_segments_placed) == 1);
  CHECK(network.completed(1).empty());
  expect(Counter::k_drop_mismatch, data_packet(network, 7, 4'004, 0, 1'432));
  REQUIRE(network.completed(1).size() == 1);
  CHECK(network.completed(1)[0].status == CompletionStatus::kSizeMismatch);
}

TEST_CASE("on_control__refuses_messages_that_are_not_of_their_connection") {
  SimulationConfig config;
  config.hosts = 3;
  Simulation network(config);
  wire::Stop stop;
  stop.prefix.type = wire::PacketType::kStop;
  stop.prefix.cookie = network.cookie(1, 0);
  stop.transfer = {7, 0};
  stop.receiver_total_bytes = 1'000;
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_stop(stop, bytes.data()));
  TransferOptions options;
  Transfer transfer(network, 1'000, options);
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  const auto dropped = network.counter(0, Counter::k_drop_bad_cookie);
  // Host 2 forwards what only host 1 may say.
  network.message(0, 2, bytes);
  CHECK(network.counter(0, Counter::k_stops_received) == 0);
  CHECK(network.counter(0, Counter::k_drop_bad_cookie) == dropped + 1);
  network.message(0, 1, std::span(bytes).first(20));  // cut off: its check is wrong
  CHECK(network.counter(0, Counter::k_drop_bad_cookie) == dropped + 2);
  auto cut = bytes;
  wire::seal(cut);
  cut.resize(20);
  wire::seal(cut);
  network.message(0, 1, cut);
  CHECK(network.counter(0, Counter::k_drop_too_short) == 1);
  // A data packet never comes this way.
  auto data = data_packet(network, 7, 1'000, 0, 1'000);
  network.message(1, 0, data);
  CHECK(network.counter(1, Counter::k_data_packets_received) == 0);
  CHECK(network.counter(1, Counter::k_drop_unknown_type) == 1);
}

TEST_CASE("on_datagram__a_stop_that_claims_success_for_another_size_ends_nothing") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 1'000, {});
  REQUIRE(transfer.post_send() == PostStatus::kPosted);
  wire::Stop stop;
  stop.prefix.type = wire::PacketType::kStop;
  stop.prefix.cookie = network.cookie(1, 0);
  stop.transfer = {7, 0};
  const auto inject = [&](wire::StopStatus status, std::uint32_t total, std::uint32_t missing) {
    stop.status = status;
    stop.receiver_total_bytes = total;
    stop.missing_bytes = missing;
    std::vector<std::byte> bytes(wire::kMaxControlBytes);
    bytes.resize(wire::encode_stop(stop, bytes.data()));
    network.inject(0, bytes);
  };
  inject(wire::StopStatus::kWithinBound, 5'000, 4'000);
  inject(wire::StopStatus::kComplete, 0, 0);
  CHECK(network.counter(0, Counter::k_drop_mismatch) == 2);
  CHECK(network.completed(0).empty());
  inject(wire::StopStatus::kSizeMismatch, 5'000, 5'000);
  REQUIRE(network.completed(0).size() == 1);
  CHECK(network.completed(0)[0].status == CompletionStatus::kSizeMismatch);
  CHECK(network.completed(0)[0].remote_total_bytes == 5'000);
}

TEST_CASE("on_datagram__random_bytes_and_mutations_never_hurt") {
  SimulationConfig config;
  Simulation network(config);
  std::vector<std::vector<std::byte>> seen;
  network.on_delivery = [&](std::uint16_t, const Flight& f) { seen.push_back(f.bytes); };
  Transfer transfer(network, 50'000);
  network.link(0, 1).data.drop = 0.2;
  transfer.post();
  REQUIRE(transfer.run());
  network.on_delivery = nullptr;
  TransferOptions options;
  options.operation = 2;
  Transfer target(network, 50'000, options);
  REQUIRE(target.post_receive() == PostStatus::kPosted);
  base::Prng prng(42);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes;
    if (prng.chance(0.1)) {
      bytes.resize(prng.below(2'000));
      for (auto& b : bytes) b = static_cast<std::byte>(prng.next());
      // Half of these get past the cookie.
      if (bytes.size() >= 16 && prng.chance(0.5)) {
        constexpr std::array<unsigned, 6> kTypes = {1, 2, 3, 4, 5, MLT_TYPE_PARITY};
        const unsigned type = kTypes[prng.below(kTypes.size())];
        bytes[0] = static_cast<std::byte>((MLT_DATAGRAM_VERSION << 4) | type);
        bytes[1] = std::byte{0};
        bytes[2] &= std::byte{0x07};  // path 0, an element that there is
        base::store_le64(bytes.data() + 8, network.cookie(0, 1));
        const bool has_payload = wire::has_payload(static_cast<wire::PacketType>(type));
        const std::size_t covered = has_payload ? std::size_t{MLT_DATA_HEADER_BYTES} : bytes.size();
        if (bytes.size() >= covered) wire::seal(std::span(bytes).first(covered));
      }
    } else {
      bytes = seen[prng.below(seen.size())];
      for (std::uint64_t flips = 1 + prng.below(4); flips > 0; --flips) {
        const std::size_t at =
            prng.chance(0.7) ? prng.below(std::min<std::size_t>(bytes.size(), 60)) : prng.below(bytes.size());
        if (at < 8 || at >= 16) bytes[at] = static_cast<std::byte>(prng.next());
      }
      if (prng.chance(0.2)) bytes.resize(prng.below(bytes.size() + 1));
    }
    network.inject(static_cast<std::uint16_t>(prng.below(2)), bytes);
    if (i % 100 == 0) network.run_for(base::kMicrosecond * 50);
  }
  CHECK(target.buffer().intact());
  CHECK(transfer.buffer().intact());
  network.run_for(kMillisecond);
}

// ---- completions ---------------------------------------------------------------------------------------------------

TEST_CASE("poll_completion__bitmap_holds_until_the_next_entry_point_and_its_slot_is_freed_then") {
  core::EndpointConfig config;
  config.rank = 1;
  config.max_receives = 1;
  core::Endpoint endpoint(config);
  core::PeerUp up;
  up.peer = 0;
  up.local_cookie = 0x10'0000;
  up.remote_cookie = 0x20'0001;
  up.segment_bytes = 8;
  up.window_bytes = 1'000;
  up.early_segments = 1;
  endpoint.on_control(0, up);
  std::vector<std::byte> buffer(24);
  core::ReceiveRequest request;
  request.data = buffer;
  request.deadline_ns = 10;
  REQUIRE(endpoint.post_recv(0, request) == PostStatus::kPosted);
  CHECK(endpoint.next_timeout() == 10);
  endpoint.on_timeout(10);
  core::Completion completion;
  REQUIRE(endpoint.poll_completion(completion));
  CHECK(completion.status == CompletionStatus::kDeadline);
  REQUIRE(completion.received_bitmap.size() == 1);
  CHECK((completion.received_bitmap[0] & 7U) == 0);
  CHECK(completion.segment_count == 3);
  CHECK(endpoint.next_timeout() == base::kNever);  // a question is not an entry
  CHECK(endpoint.post_recv(20, request) == PostStatus::kPosted);
  CHECK_FALSE(endpoint.poll_completion(completion));
}

TEST_CASE("closing__reports_over_the_control_connection_how_recent_receives_ended") {
  Simulation network(SimulationConfig{});
  network.drop_if = [](const Flight& f) { return f.type == wire::PacketType::kStop && !f.by_control_connection; };
  Transfer transfer(network, 10'000);
  transfer.post();
  REQUIRE(network.run_until_completed(1, 1));
  CHECK(transfer.sent() == nullptr);
  network.endpoint(1).on_control(network.now(), core::Closing{});
  auto output = std::make_unique<core::ControlOutput>();
  REQUIRE(network.endpoint(1).poll_control(network.now(), *output));
  CHECK(output->peer == 0);
  network.message(0, 1, std::span(output->bytes).first(output->size));
  REQUIRE(network.run_until_completed(0, 1, kMillisecond));
  CHECK(transfer.sent()->status == CompletionStatus::kComplete);
}

TEST_CASE("peer_down__fails_every_operation_with_it_and_no_other") {
  SimulationConfig config;
  config.hosts = 3;
  Simulation network(config);
  network.link(0, 1).data.drop = 1.0;
  TransferOptions options;
  Transfer lost(network, 50'000, options);
  lost.post();
  options.operation = 2;
  options.tag = 8;
  Transfer never_sent(network, 50'000, options);
  REQUIRE(never_sent.post_receive() == PostStatus::kPosted);
  options.operation = 3;
  options.to = 2;
  Transfer other(network, 500'000, options);
  other.post();
  network.run_for(100 * base::kMicrosecond);
  network.disconnect(0, 1);
  REQUIRE(lost.ended());
  REQUIRE(never_sent.received() != nullptr);
  CHECK(lost.sent()->status == CompletionStatus::kPeerFailed);
  CHECK(lost.received()->status == CompletionStatus::kPeerFailed);
  CHECK(lost.received()->peer == 0);
  CHECK(never_sent.received()->status == CompletionStatus::kPeerFailed);
  REQUIRE(other.run());
  CHECK(other.fault() == "");
  network.endpoint(0).on_control(network.now(), core::PeerDown{1});  // again: no effect
  network.endpoint(0).on_control(network.now(), core::PeerDown{99});
  network.run_for(kSecond);
  CHECK(network.completed(0).size() == 2);
}

// ---- allocation and time -------------------------------------------------------------------------------------------

TEST_CASE("endpoint__allocates_nothing_after_set_up") {
  SimulationConfig config;
  config.hosts = 3;
  config.endpoint.paths = 3;
  config.link.data = {.drop = 0.1, .duplicate = 0.05, .reorder = 0.1, .corrupt = 0};
  config.link.control = config.link.data;
  config.window_bytes = 200'000;
  Simulation network(config);
  std::uint64_t before = 0;
  std::uint64_t during = 0;
  std::uint64_t entries = 0;
  network.simulator().on_entry = [&](bool entering) {
    if (entering) {
      before = allocations();
      return;
    }
    during += allocations() - before;
    ++entries;
  };
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (std::uint64_t i = 0; i < 60; ++i) {
    TransferOptions options;
    options.tag = i % 20;
    options.operation = i + 1;
    options.from = static_cast<std::uint16_t>(i % 3);
    options.to = static_cast<std::uint16_t>((i + 1) % 3);
    options.loss_bound = i % 2 == 0 ? 0.0 : 0.05;
    if (i % 10 == 9) options.deadline_ns = kMillisecond;
    transfers.push_back(std::make_unique<Transfer>(network, 100'000, options));
    if (i % 5 == 0) {
      REQUIRE(transfers.back()->post_send() == PostStatus::kPosted);
      network.run_for(500 * base::kMicrosecond);
      REQUIRE(transfers.back()->post_receive() == PostStatus::kPosted);
    } else {
      transfers.back()->post();
    }
  }
  network.run_for(kMillisecond);
  network.cancel(1, 2, CompletionKind::kReceive);
  network.disconnect(0, 2);
  network.connect(0, 2);
  network.run_for(5 * kSecond);
  CHECK(network.counter(0, Counter::k_segments_repaired) > 0);
  CHECK(entries > 1'000);
  CHECK(allocations() > 1'000);  // the counter counts: the fixture allocates all the time
  CHECK(during == 0);
}

TEST_CASE("next_timeout__is_never_when_nothing_is_in_progress") {
  Simulation network(SimulationConfig{});
  CHECK(network.endpoint(0).next_timeout() == base::kNever);
  Transfer transfer(network, 100'000);
  transfer.post();
  REQUIRE(transfer.run());
  network.run_for(kSecond);
  CHECK(network.endpoint(0).next_timeout() == base::kNever);
  CHECK(network.endpoint(1).next_timeout() == base::kNever);
  CHECK(network.endpoint(0).in_flight_bytes(1) < 10 * 1'472);  // fewer than one ACK's worth
}

TEST_CASE("time__may_start_anywhere_and_its_low_half_may_wrap") {
  for (const base::TimeNs start : {base::TimeNs{0}, base::TimeNs{0xFFFF'FFFF} - 500'000, base::TimeNs{1} << 60}) {
    CAPTURE(start);
    SimulationConfig config;
    config.start_ns = start;
    config.link.data.drop = config.link.control.drop = 0.05;
    config.window_bytes = 100'000;
    Simulation network(config);
    Transfer transfer(network, 2'000'000);
    transfer.post();
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    CHECK(transfer.received()->elapsed_ns < 100 * kMillisecond);
  }
}

TEST_CASE("segment_count__is_the_length_of_the_tags") {
  Simulation network(SimulationConfig{});
  CHECK(network.endpoint(0).segment_count(1, 0) == 1);
  CHECK(network.endpoint(0).segment_count(1, 1'432) == 1);
  CHECK(network.endpoint(0).segment_count(1, 1'433) == 2);
  CHECK(network.endpoint(0).segment_count(0, 1'433) == 0);
  CHECK(network.endpoint(0).segment_count(9, 1'433) == 0);
  CHECK(network.endpoint(0).segment_count(1, std::uint64_t{1} << 32) == 0);
}
