// Parity packets from send to receive: when they are sent, what they restore, and what a receiver makes of any others.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "support/data_header.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

SimulationConfig with_parity() {
  SimulationConfig config;
  config.endpoint.erasure_correction = true;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e9;
  config.link.rate_bytes_per_second = 1.25e9;
  config.link.propagation_ns = 5 * kMillisecond;
  return config;
}

bool is_parity_test_data(const Flight& flight) { return flight.type == wire::PacketType::kData; }
bool is_parity(const Flight& flight) { return flight.type == wire::PacketType::kParity; }
bool parity_ends_round(const Flight& flight) {
  return wire::has_payload(flight.type) && (std::to_integer<unsigned>(flight.bytes[1]) & MLT_FLAG_END_OF_ROUND) != 0;
}

wire::ParityHeader parity_header_of(const Flight& flight) {
  wire::ParityHeader header;
  std::span<const std::byte> payload;
  REQUIRE(wire::decode_prefix(flight.bytes, header.prefix) == wire::DropReason::kNone);
  REQUIRE(wire::decode_parity(flight.bytes, header, payload) == wire::DropReason::kNone);
  return header;
}

struct World {
  explicit World(const SimulationConfig& config = with_parity()) : network(config) {}

  // One transfer after the other; `lost`: of the segments of round 0, and every packet of parity likewise.
  CompletionStatus transfer(std::size_t bytes, const std::function<bool(const Flight&)>& lost,
                            const TransferOptions& options = {}, bool may_have_parity = true) {
    flights.clear();
    network.drop_if = [&](const Flight& flight) {
      flights.push_back(flight);
      return lost(flight);
    };
    Transfer transfer(network, bytes, options.numbered(++operations));
    REQUIRE(transfer.post_receive() == PostStatus::kPosted);
    core::SendRequest request = transfer.send_request();
    request.may_have_parity = may_have_parity;
    REQUIRE(network.send(request.peer == 1 ? 0 : 1, request) == PostStatus::kPosted);
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    took_ns = transfer.received()->elapsed_ns;
    network.run_for(50 * kMillisecond);
    network.drop_if = nullptr;
    return transfer.received()->status;
  }
  // The sender learns that a hundredth is lost.
  void learn_loss() {
    int data = 0;
    for (int i = 0; i < 3; ++i) {
      transfer(
          1'000'000, [&](const Flight& flight) { return is_parity_test_data(flight) && ++data % 100 == 0; }, {}, false);
    }
  }
  auto count(bool (*of)(const Flight&)) const { return std::ranges::count_if(flights, of); }
  std::uint64_t counter(std::uint16_t host, Counter which) { return network.counter(host, which); }

  Simulation network;
  std::vector<Flight> flights;
  std::uint64_t operations = 0;
  DurationNs took_ns = 0;
};

bool none(const Flight&) { return false; }

// The first packets of the segments with these numbers.
std::function<bool(const Flight&)> segments_lost(std::set<std::uint32_t> segments) {
  return [segments](const Flight& flight) {
    if (!is_parity_test_data(flight)) return false;
    const wire::DataHeader header = data_header_of(flight);
    return header.prefix.round == 0 && segments.contains(header.offset_bytes / kSegment);
  };
}

}  // namespace

TEST_CASE("parity__is_not_sent_before_a_loss_is_known") {
  World world;
  for (int i = 0; i < 5; ++i) {
    world.transfer(1'000'000, none);
    CHECK(world.count(is_parity) == 0);
  }
  CHECK(world.counter(0, Counter::k_parity_packets_sent) == 0);
}

TEST_CASE("parity__restores_lost_segments_without_a_request") {
  World world;
  world.learn_loss();
  const std::uint64_t requests = world.counter(1, Counter::k_bitmaps_sent);
  const std::set<std::uint32_t> lost = {0, 1, 17, 100, 176, 350, 351, 352, 697, 698};
  CHECK(world.transfer(1'000'000, segments_lost(lost)) == CompletionStatus::kComplete);
  CHECK(world.count(is_parity) > 20);
  CHECK(world.counter(1, Counter::k_segments_restored) == lost.size());
  CHECK(world.counter(1, Counter::k_bitmaps_sent) == requests);
  CHECK(world.counter(0, Counter::k_parity_packets_sent) == world.counter(1, Counter::k_parity_packets_received));
  // Serialisation and half a round trip; a request and its repair would take another one.
  CHECK(world.took_ns < 10 * kMillisecond);
  CHECK(world.network.endpoint(1).usage().parity_packets.used == 0);
}

TEST_CASE("parity__ends_the_round_in_place_of_the_last_segment") {
  World world;
  world.learn_loss();
  world.transfer(1'000'000, none);
  CHECK(world.count(is_parity) > 0);
  CHECK(world.count(parity_ends_round) == 1);
  const auto last_data = std::find_if(world.flights.rbegin(), world.flights.rend(), is_parity_test_data);
  const auto first_parity = std::ranges::find_if(world.flights, is_parity);
  CHECK(last_data.base() <= first_parity);  // all of it behind all segments
  const auto last = std::find_if(world.flights.rbegin(), world.flights.rend(), is_parity);
  CHECK(parity_ends_round(*last));
  const wire::ParityHeader header = parity_header_of(*last);
  CHECK(header.block == 3);
  CHECK(header.block_segments == 175);
}

TEST_CASE("parity__that_does_not_suffice_is_completed_by_a_request") {
  World world;
  world.learn_loss();
  std::set<std::uint32_t> many;
  for (std::uint32_t i = 200; i < 240; ++i) many.insert(i);
  CHECK(world.transfer(1'000'000, segments_lost(many)) == CompletionStatus::kComplete);
  CHECK(world.counter(1, Counter::k_segments_restored) < 40);
  CHECK(world.network.endpoint(1).usage().parity_packets.used == 0);
  // All of it is lost, or all but the last.
  CHECK(world.transfer(1'000'000, [](const Flight& flight) { return is_parity(flight); }) ==
        CompletionStatus::kComplete);
  const auto lost = segments_lost({5});
  CHECK(world.transfer(1'000'000, [&](const Flight& flight) {
    return lost(flight) || (is_parity(flight) && !parity_ends_round(flight));
  }) == CompletionStatus::kComplete);
}

TEST_CASE("parity__and_segments_sent_again_restore_together") {
  World world;
  world.learn_loss();
  std::set<std::uint32_t> many;
  for (std::uint32_t i = 0; i < 12; ++i) many.insert(i);
  const auto lost = segments_lost(many);
  // Of what is sent again only the last few arrive: enough for the parities that were kept.
  CHECK(world.transfer(1'000'000, [&](const Flight& flight) {
    if (!is_parity_test_data(flight)) return lost(flight);
    const wire::DataHeader header = data_header_of(flight);
    return lost(flight) || (header.prefix.round == 1 && header.offset_bytes < 6 * kSegment);
  }) == CompletionStatus::kComplete);
  CHECK(world.counter(1, Counter::k_segments_restored) >= 6);
}

TEST_CASE("parity__of_tensors_of_any_size_restores_their_last_segment") {
  World world;
  world.learn_loss();
  for (const std::size_t bytes : {4UL, 1'432UL, 1'436UL, 100'000UL, 320'768UL, 322'200UL, 999'996UL}) {
    CAPTURE(bytes);
    const auto last = static_cast<std::uint32_t>((bytes - 1) / kSegment);
    const std::uint64_t before = world.counter(1, Counter::k_segments_restored);
    CHECK(world.transfer(bytes, segments_lost({0, last})) == CompletionStatus::kComplete);
    // Of the smallest tensors parity costs more than the repair that it makes improbable, unless round trips are long.
    if (world.count(is_parity) > 1) CHECK(world.counter(1, Counter::k_segments_restored) > before);
  }
}

TEST_CASE("parity__is_not_sent_over_short_or_several_paths_nor_with_critical_segments_nor_unless_asked_for") {
  const auto sent = [](const SimulationConfig& config, const TransferOptions& options = {}, bool asked_for = true) {
    World world(config);
    world.learn_loss();
    world.transfer(1'000'000, segments_lost({3, 30}), options, asked_for);
    return world.counter(0, Counter::k_parity_packets_sent);
  };
  CHECK(sent(with_parity()) > 0);
  CHECK(sent(with_parity(), {}, false) == 0);
  SimulationConfig config = with_parity();
  config.endpoint.erasure_correction = false;
  CHECK(sent(config) == 0);
  config = with_parity();
  config.link.propagation_ns = 200 * kMicrosecond;
  CHECK(sent(config) == 0);
  config.endpoint.min_parity_round_trip_ns = 0;
  CHECK(sent(config) > 0);
  config = with_parity();
  config.endpoint.paths = 2;
  CHECK(sent(config) == 0);
  TransferOptions critical;
  critical.uniform_priority.bits |= SegmentPriority::kCritical;
  CHECK(sent(with_parity(), critical) == 0);
}

TEST_CASE("parity__stays_on_for_a_sender_whose_memory_for_sums_is_in_use_or_too_small") {
  for (const std::uint64_t bytes : {0ULL, 20'000ULL}) {
    SimulationConfig config = with_parity();
    config.endpoint.parity_sum_bytes = bytes;
    World world(config);
    world.learn_loss();
    CHECK(world.transfer(1'000'000, segments_lost({3, 30, 698})) == CompletionStatus::kComplete);
    CHECK(world.counter(1, Counter::k_segments_restored) == 3);
  }
  // Several at once: one sums up ahead, and the blocks of the others take turns.
  World world;
  world.learn_loss();
  std::vector<std::unique_ptr<Transfer>> all = transfers_of(world.network, 4, 500'000, {}, 100);
  int data = 0;
  world.network.drop_if = [&](const Flight& flight) { return is_parity_test_data(flight) && ++data % 90 == 0; };
  for (const auto& one : all) {
    REQUIRE(one->post_receive() == PostStatus::kPosted);
    core::SendRequest request = one->send_request();
    request.may_have_parity = true;
    REQUIRE(world.network.send(0, request) == PostStatus::kPosted);
  }
  REQUIRE(
      world.network.run_until([&] { return std::ranges::all_of(all, [](const auto& one) { return one->ended(); }); }));
  for (const auto& one : all) CHECK(one->fault() == "");
  CHECK(world.counter(1, Counter::k_segments_restored) > 10);
}

TEST_CASE("parity__of_a_receive_that_is_not_posted_is_not_kept") {
  World world;
  world.learn_loss();
  world.network.drop_if = segments_lost({3, 30});
  Transfer transfer(world.network, 200'000, TransferOptions{}.numbered(500));
  core::SendRequest request = transfer.send_request();
  request.may_have_parity = true;
  REQUIRE(world.network.send(0, request) == PostStatus::kPosted);
  world.network.run_for(8 * kMillisecond);
  CHECK(world.counter(0, Counter::k_parity_packets_sent) > 0);
  CHECK(world.counter(1, Counter::k_parity_packets_unused) == world.counter(0, Counter::k_parity_packets_sent));
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
}

TEST_CASE("parity__of_a_receive_that_adds_is_of_no_use") {
  World world;
  world.learn_loss();
  world.network.drop_if = segments_lost({3, 30});
  for (const bool places_in_data : {false, true}) {
    const std::uint64_t restored = world.counter(1, Counter::k_segments_restored);
    Transfer transfer(world.network, 200'000, TransferOptions{}.numbered(places_in_data ? 501 : 502));
    core::ReceiveRequest receive = transfer.receive_request();
    const auto place = [](void* context, std::uint64_t offset, std::span<const std::byte> payload) {
      std::ranges::copy(payload, static_cast<std::byte*>(context) + offset);
    };
    receive.place = place;
    receive.place_context = receive.data.data();
    receive.places_in_data = places_in_data;
    REQUIRE(world.network.receive(1, receive) == PostStatus::kPosted);
    core::SendRequest request = transfer.send_request();
    request.may_have_parity = true;
    REQUIRE(world.network.send(0, request) == PostStatus::kPosted);
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    CHECK(world.counter(1, Counter::k_segments_restored) == restored + (places_in_data ? 2 : 0));
  }
}

TEST_CASE("parity__does_not_delay_a_receive_within_its_bound") {
  World world;
  world.learn_loss();
  TransferOptions options;
  options.loss_bound = 0.1;
  // The first parity packet may have overtaken a segment: the receive waits for the second.
  CHECK(world.transfer(1'000'000, segments_lost({3}), options) == CompletionStatus::kComplete);
  CHECK(world.transfer(1'000'000, segments_lost({3, 30}), options) == CompletionStatus::kComplete);
  CHECK(world.counter(1, Counter::k_segments_restored) == 3);
  CHECK(world.transfer(1'000'000, segments_lost({3, 30, 60}), options) == CompletionStatus::kWithinBound);
  CHECK(world.counter(1, Counter::k_segments_restored) == 3);
  CHECK(world.counter(0, Counter::k_parity_packets_sent) > 0);
}

TEST_CASE("parity__that_finds_no_space_is_counted_and_repaired") {
  SimulationConfig config = with_parity();
  config.endpoint.parity_packets = 2;
  World world(config);
  world.learn_loss();
  CHECK(world.transfer(1'000'000, segments_lost({3, 4, 5, 6})) == CompletionStatus::kComplete);
  CHECK(world.counter(1, Counter::k_parity_packets_dropped) > 0);
  CHECK(world.counter(1, Counter::k_segments_restored) == 2);  // once two of the four had come again
  CHECK(world.transfer(1'000'000, segments_lost({3, 4})) == CompletionStatus::kComplete);
  CHECK(world.counter(1, Counter::k_segments_restored) == 4);
}

TEST_CASE("parity__that_is_wrong_repeated_or_late_changes_nothing") {
  World world;
  world.learn_loss();
  world.transfer(1'000'000, segments_lost({3, 30}));
  const auto first = std::ranges::find_if(world.flights, is_parity);
  REQUIRE(first != world.flights.end());
  const Flight sent = *first;
  const std::uint64_t unused = world.counter(1, Counter::k_parity_packets_unused);
  world.network.inject(1, sent.bytes);  // its transfer has ended
  CHECK(world.counter(1, Counter::k_parity_packets_unused) == unused + 1);

  Transfer transfer(world.network, 1'000'000, TransferOptions{}.numbered(++world.operations));
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  const auto inject = [&](auto change, std::size_t payload_bytes = kSegment) {
    wire::ParityHeader header = parity_header_of(sent);
    header.tag = transfer.options().tag;
    header.generation = 0;
    header.prefix.sequence = 1;
    header.prefix.cookie = world.network.cookie(0, 1);
    change(header);
    std::vector<std::byte> bytes(MLT_DATA_HEADER_BYTES + payload_bytes, std::byte{0x77});
    wire::encode_parity_header(header, bytes.data());
    world.network.inject(1, bytes);
  };
  using Header = wire::ParityHeader;
  const auto counted = [&](Counter which, auto change, std::size_t payload_bytes = kSegment) {
    const std::uint64_t before = world.counter(1, which);
    inject(change, payload_bytes);
    return world.counter(1, which) - before;
  };
  CHECK(counted(Counter::k_drop_bad_segment, [](Header& header) { header.block = 4; }) == 1);
  CHECK(counted(Counter::k_drop_bad_segment, [](Header& header) { header.block = 65'535; }) == 1);
  CHECK(counted(Counter::k_drop_bad_segment, [](Header&) {}, 1'000) == 1);
  CHECK(counted(Counter::k_drop_bad_length, [](Header& header) { header.index = 32; }) == 1);
  CHECK(counted(Counter::k_drop_bad_length, [](Header& header) { header.block_segments = 0; }) == 1);
  CHECK(counted(Counter::k_drop_bad_cookie, [](Header& header) { header.prefix.cookie ^= 1ULL << 40; }) == 1);
  CHECK(world.network.endpoint(1).usage().parity_packets.used == 0);
  inject([](Header&) {});
  CHECK(world.network.endpoint(1).usage().parity_packets.used == 1);
  CHECK(counted(Counter::k_parity_packets_unused, [](Header&) {}) == 1);
  CHECK(counted(Counter::k_drop_bad_segment, [](Header& header) { header.block_segments = 100; }) == 1);
  // Of a transfer that was not posted: nothing is buffered.
  CHECK(counted(Counter::k_parity_packets_unused, [](Header& header) { header.tag = 99'999; }) == 1);
  CHECK(world.network.endpoint(1).usage().parity_packets.used == 1);
  // Another size ends the receive, as in DATA.
  CHECK(counted(Counter::k_drop_mismatch, [](Header& header) { header.total_bytes = 999'996; }) == 1);
  CHECK(transfer.received() != nullptr);
  CHECK(world.network.endpoint(1).usage().parity_packets.used == 0);
}

TEST_CASE("parity__is_forgotten_with_its_receive") {
  World world;
  world.learn_loss();
  Transfer transfer(world.network, 1'000'000, TransferOptions{}.numbered(++world.operations));
  // All segments of a block are lost, and the rest of the parity.
  world.network.drop_if = [](const Flight& flight) {
    return is_parity_test_data(flight) ? data_header_of(flight).offset_bytes < 100 * kSegment
                                       : parity_ends_round(flight);
  };
  REQUIRE(transfer.post_receive() == PostStatus::kPosted);
  core::SendRequest request = transfer.send_request();
  request.may_have_parity = true;
  REQUIRE(world.network.send(0, request) == PostStatus::kPosted);
  const auto used = [&] { return world.network.endpoint(1).usage().parity_packets.used; };
  REQUIRE(world.network.run_until([&] { return used() > 0; }));
  world.network.cancel(1, transfer.options().operation, CompletionKind::kReceive);
  CHECK(used() == 0);
}
