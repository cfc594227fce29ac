// The sending half behind an endpoint: order, runs, priorities, window, rate, probes.
#include "core/sender.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "support/data_header.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

constexpr std::uint32_t kDatagram = kSegment + MLT_DATA_HEADER_BYTES;

struct Packet {
  wire::DataHeader header;
  std::uint8_t dscp = 0;
  base::Ecn ecn = base::Ecn::kNotEct;
  std::uint32_t segment() const { return header.offset_bytes / kSegment; }
};

// Every data packet that leaves host 0, in the order in which it leaves.
std::vector<Packet>& record(Simulation& network, std::vector<Packet>& packets) {
  network.drop_if = [&packets](const Flight& f) {
    if (f.type != wire::PacketType::kData || f.from != 0) return false;
    Packet packet;
    packet.header = data_header_of(f);
    packet.dscp = f.dscp;
    packet.ecn = f.ecn;
    packets.push_back(packet);
    return false;
  };
  return packets;
}

bool is_data(const core::Transmit& run) {
  return (static_cast<std::uint8_t>(run.slices[0].data[0]) & 0x0FU) == MLT_TYPE_DATA;
}

}  // namespace

// ---- order ---------------------------------------------------------------------------------------------------------

TEST_CASE("send_order__critical_then_important_then_the_rest") {
  Simulation network(SimulationConfig{});
  std::vector<Packet> packets;
  record(network, packets);
  TransferOptions options;
  base::Prng prng(5);
  for (int i = 0; i < 200; ++i) {
    SegmentPriority tag{static_cast<std::uint8_t>(prng.below(2))};
    if (prng.chance(0.4)) tag.bits |= SegmentPriority::kImportant;
    if (prng.chance(0.1)) tag.bits |= SegmentPriority::kCritical;
    options.priorities.push_back(tag);
  }
  Transfer transfer(network, 200 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run());
  REQUIRE(packets.size() == 200);
  for (std::size_t i = 1; i < packets.size(); ++i) {
    const auto before = options.priorities[packets[i - 1].segment()].pass();
    const auto after = options.priorities[packets[i].segment()].pass();
    CHECK(before <= after);
    if (before == after) CHECK(packets[i - 1].segment() < packets[i].segment());
  }
}

TEST_CASE("send_order__front_layers_before_back_layers_then_in_order_of_posting") {
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e8;
  Simulation network(config);
  std::vector<Packet> packets;
  record(network, packets);
  std::vector<std::unique_ptr<Transfer>> transfers;
  const std::uint32_t orders[] = {3, 1, 2, 1, 0};
  for (std::uint64_t i = 0; i < 5; ++i) {
    TransferOptions options;
    options.tag = options.operation = i + 1;
    options.order = orders[i];
    transfers.push_back(std::make_unique<Transfer>(network, 100 * kSegment, options));
  }
  for (auto& transfer : transfers) transfer->post();
  REQUIRE(network.run_until_completed(0, 5));
  // The first post may have left one run before the others came; all else follows the order.
  std::vector<std::uint64_t> tags;
  for (const Packet& packet : packets) {
    if (tags.empty() || tags.back() != packet.header.tag) tags.push_back(packet.header.tag);
  }
  REQUIRE(tags.size() >= 5);
  const std::vector<std::uint64_t> tail(tags.end() - 5, tags.end());
  // 2 may have been under way when 5, more urgent, was posted; each then continues in its place.
  CHECK(tail == std::vector<std::uint64_t>{5, 2, 4, 3, 1});
}

TEST_CASE("send_order__a_repair_follows_it_too") {
  Simulation network(SimulationConfig{});
  std::vector<Packet> packets;
  record(network, packets);
  const auto watch = network.drop_if;
  network.drop_if = [&, watch](const Flight& f) {
    watch(f);
    return f.type == wire::PacketType::kData && packets.back().header.prefix.round == 0;
  };
  TransferOptions options;
  for (std::uint32_t i = 0; i < 60; ++i)
    options.priorities.push_back(SegmentPriority{i % 3 == 0 ? SegmentPriority::kImportant : std::uint8_t{0}});
  Transfer transfer(network, 60 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run());
  REQUIRE(packets.size() == 120);
  for (std::size_t i = 61; i < 120; ++i) {
    CHECK(options.priorities[packets[i - 1].segment()].pass() <= options.priorities[packets[i].segment()].pass());
    CHECK((packets[i].header.prefix.flags & MLT_FLAG_REPAIR) != 0);
  }
}

// ---- priorities that come while the tensor is sent
// ------------------------------------------------------------------------

namespace {

// Gives what `truth` says, and remembers what it was classified for.
struct Classifier {
  explicit Classifier(std::vector<SegmentPriority> priorities_to_give)
      : truth(std::move(priorities_to_give)), priorities(truth.size(), SegmentPriority{SegmentPriority::kCritical}) {}

  std::vector<SegmentPriority> truth;
  std::vector<SegmentPriority> priorities;
  std::vector<std::uint32_t> classified;
  std::function<void(std::uint32_t count)> on_call;

  static void classify(void* context, std::uint32_t first, std::uint32_t count) {
    Classifier& self = *static_cast<Classifier*>(context);
    if (self.on_call) self.on_call(count);
    for (std::uint32_t i = first; i < first + count; ++i) {
      self.classified.push_back(i);
      self.priorities[i] = self.truth[i];
    }
  }
};

std::vector<SegmentPriority> a_third_important(std::uint32_t count) {
  base::Prng prng(11);
  std::vector<SegmentPriority> priorities(count, SegmentPriority{1});
  for (SegmentPriority& tag : priorities) tag.bits |= prng.chance(0.33) ? SegmentPriority::kImportant : std::uint8_t{0};
  return priorities;
}

}  // namespace

namespace {

// The transfer from post to end, its segments classified as they are reached.
void run_classified(Simulation& network, Transfer& transfer, Classifier& classifier) {
  core::SendRequest request = transfer.send_request();
  request.priorities = classifier.priorities;
  request.classify = Classifier::classify;
  request.classify_context = &classifier;
  REQUIRE(transfer.post_receive() == core::PostStatus::kPosted);
  REQUIRE(network.send(0, request) == core::PostStatus::kPosted);
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
}

}  // namespace

TEST_CASE("classify__is_called_for_each_segment_once_in_order_and_not_long_before_it_leaves") {
  constexpr std::uint32_t kCount = 1'000;
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e8;
  Simulation network(config);
  std::vector<Packet> packets;
  record(network, packets);
  Classifier classifier(a_third_important(kCount));
  std::size_t classified_at_first_run = 0;
  network.on_run = [&](std::uint16_t from, const core::Transmit& run) {
    if (from == 0 && is_data(run) && classified_at_first_run == 0)
      classified_at_first_run = classifier.classified.size();
  };
  Transfer transfer(network, kCount * kSegment, {});
  run_classified(network, transfer, classifier);
  CHECK(classified_at_first_run < kCount / 4);
  REQUIRE(classifier.classified.size() == kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) CHECK(classifier.classified[i] == i);
}

TEST_CASE("classify__what_leaves_is_what_tags_known_before_would_have_sent") {
  for (const double loss : {0.0, 0.2}) {
    CAPTURE(loss);
    std::vector<Packet> sent[2];
    for (const bool classified : {false, true}) {
      Simulation network(SimulationConfig{});
      std::vector<Packet>& packets = sent[classified ? 1 : 0];
      record(network, packets);
      base::Prng prng(23);
      const auto watch = network.drop_if;
      network.drop_if = [&, watch](const Flight& f) {
        watch(f);
        return f.type == wire::PacketType::kData && prng.chance(loss);
      };
      Classifier classifier(a_third_important(300));
      Transfer transfer(network, 300 * kSegment, {});
      core::SendRequest request = transfer.send_request();
      request.priorities = classified ? classifier.priorities : classifier.truth;
      if (classified) request.classify = Classifier::classify;
      request.classify_context = &classifier;
      REQUIRE(transfer.post_receive() == core::PostStatus::kPosted);
      REQUIRE(network.send(0, request) == core::PostStatus::kPosted);
      REQUIRE(transfer.run());
    }
    REQUIRE(sent[0].size() == sent[1].size());
    for (std::size_t i = 0; i < sent[0].size(); ++i) {
      CHECK(sent[0][i].segment() == sent[1][i].segment());
      CHECK(sent[0][i].ecn == sent[1][i].ecn);
      CHECK(sent[0][i].dscp == sent[1][i].dscp);
      CHECK(sent[0][i].header.prefix.flags == sent[1][i].header.prefix.flags);
    }
  }
}

TEST_CASE("classify__is_called_for_no_more_than_2048_segments_in_one_poll") {
  constexpr std::uint32_t kCount = 12'000;
  constexpr std::uint32_t kHead = 9'000;  // not important, but for one segment
  std::vector<SegmentPriority> truth(kCount, SegmentPriority{1});
  truth[5'000].bits |= SegmentPriority::kImportant;
  for (std::uint32_t i = kHead; i < kCount; ++i) truth[i].bits |= SegmentPriority::kImportant;
  Simulation network(SimulationConfig{});
  std::vector<Packet> packets;
  record(network, packets);
  Classifier classifier(truth);
  // A poll ends with a run, or with none at that moment: the host then sleeps.
  std::uint64_t runs = 0;
  network.on_run = [&](std::uint16_t from, const core::Transmit& run) { runs += from == 0 && is_data(run) ? 1U : 0U; };
  std::map<std::pair<base::TimeNs, std::uint64_t>, std::uint32_t> classified_by_poll;
  classifier.on_call = [&](std::uint32_t count) { classified_by_poll[{network.now(), runs}] += count; };
  Transfer transfer(network, kCount * kSegment, {});
  run_classified(network, transfer, classifier);
  for (const auto& [poll, count] : classified_by_poll) CHECK(count <= 2'048);
  CHECK(classifier.classified.size() == kCount);
  REQUIRE(packets.size() == kCount);
  CHECK(packets[0].segment() == 5'000);
  for (std::uint32_t i = 1; i <= kCount - kHead; ++i) CHECK(packets[i].segment() == kHead + i - 1);
  for (std::uint32_t i = kCount - kHead + 2; i < kCount; ++i) CHECK(packets[i - 1].segment() < packets[i].segment());
}

TEST_CASE("classify__without_a_place_for_every_tag_is_refused") {
  Simulation network(SimulationConfig{});
  Classifier classifier(a_third_important(10));
  Transfer transfer(network, 11 * kSegment, {});
  core::SendRequest request = transfer.send_request();
  request.classify = Classifier::classify;
  request.classify_context = &classifier;
  CHECK(network.send(0, request) == core::PostStatus::kBadPriorityCount);
  request.priorities = classifier.priorities;
  CHECK(network.send(0, request) == core::PostStatus::kBadPriorityCount);
  CHECK(classifier.classified.empty());
}

// ---- segments that become ready one after another ------------------------------------------------------------------

namespace {

// What a send may send so far; lives as long as the send.
struct Feed {
  explicit Feed(std::uint32_t segments) : words(base::words_for_bits(segments)) {
    feed.fresh = base::BitmapView(words.data(), segments);
  }
  std::vector<std::uint64_t> words;
  core::SendFeed feed;
};

}  // namespace

TEST_CASE("feed__a_segment_leaves_when_it_is_ready_and_the_last_of_all_ends_the_round") {
  Simulation network(SimulationConfig{});
  std::vector<Packet> packets;
  record(network, packets);
  Transfer transfer(network, 6 * kSegment, {});
  Feed fed(6);
  core::SendRequest request = transfer.send_request();
  request.feed = &fed.feed;
  REQUIRE(transfer.post_receive() == core::PostStatus::kPosted);
  REQUIRE(network.send(0, request) == core::PostStatus::kPosted);
  network.run_for(kMillisecond);
  CHECK(packets.empty());
  const auto now_ready = [&](std::initializer_list<std::uint32_t> segments) {
    for (const std::uint32_t segment : segments) fed.feed.add(segment);
    network.wake(0);
    network.run_for(kMillisecond);
  };
  now_ready({4, 1});
  REQUIRE(packets.size() == 2);
  CHECK(packets[0].segment() == 1);
  CHECK(packets[1].segment() == 4);
  // No peer is asked about a round that has not ended, however long that takes.
  network.run_for(kSecond);
  CHECK(network.counter(0, Counter::k_probes_sent) == 0);
  CHECK(transfer.sent() == nullptr);
  now_ready({0, 2, 3});
  now_ready({5});
  REQUIRE(packets.size() == 6);
  for (const Packet& packet : packets) {
    CHECK(((packet.header.prefix.flags & MLT_FLAG_END_OF_ROUND) != 0) == (packet.segment() == 5));
  }
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
}

TEST_CASE("feed__what_was_lost_meanwhile_is_repaired_when_the_round_is_over") {
  Simulation network(SimulationConfig{});
  std::vector<std::uint32_t> sent;
  network.drop_if = [&](const Flight& f) {
    if (f.type != wire::PacketType::kData) return false;
    sent.push_back(0);
    return sent.size() == 1;
  };
  Transfer transfer(network, 3 * kSegment, {});
  Feed fed(3);
  core::SendRequest request = transfer.send_request();
  request.feed = &fed.feed;
  REQUIRE(transfer.post_receive() == core::PostStatus::kPosted);
  REQUIRE(network.send(0, request) == core::PostStatus::kPosted);
  for (const std::uint32_t segment : {0U, 1U, 2U}) {
    fed.feed.add(segment);
    network.wake(0);
    network.run_for(kMillisecond);
  }
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  CHECK(sent.size() == 4);
}

TEST_CASE("feed__of_a_send_that_ended_early_is_not_looked_at_again") {
  Simulation network(SimulationConfig{});
  Transfer first(network, 3 * kSegment, {});
  auto fed = std::make_unique<Feed>(3);
  core::SendRequest request = first.send_request();
  request.feed = &fed->feed;
  REQUIRE(network.send(0, request) == core::PostStatus::kPosted);
  fed->feed.add(1);
  network.wake(0);
  network.run_for(kMillisecond);
  network.cancel(0, request.operation, core::CompletionKind::kSend);
  network.run_for(kMillisecond);
  REQUIRE(first.sent() != nullptr);
  fed.reset();
  Transfer second(network, 3 * kSegment, TransferOptions{}.numbered(2));
  second.post();
  REQUIRE(second.run());
  CHECK(second.fault() == "");
}

TEST_CASE("feed__of_another_length_than_the_tensor_has_segments_is_refused") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 11 * kSegment, {});
  Feed fed(10);
  core::SendRequest request = transfer.send_request();
  request.feed = &fed.feed;
  CHECK(network.send(0, request) == core::PostStatus::kBadPriorityCount);
}

// ---- runs and priorities
// -------------------------------------------------------------------------------------------------

TEST_CASE("run__one_peer_class_mark_and_path_equal_sizes_and_no_longer_than_the_rate_permits") {
  for (const double rate : {1.25e6, 2.5e7, 1.25e9, 1.25e10}) {
    for (const std::uint32_t most : {1U, 16U, 64U}) {
      CAPTURE(rate);
      CAPTURE(most);
      SimulationConfig config;
      config.endpoint.paths = 2;
      config.endpoint.timely.line_rate_bytes_per_second = rate;
      config.capabilities.max_run_segments = most;
      config.capabilities.max_run_bytes = 30'000;
      Simulation network(config);
      TransferOptions options;
      base::Prng prng(9);
      SegmentPriority tag;
      for (int i = 0; i < 300; ++i) {
        if (prng.chance(0.1)) tag.bits = static_cast<std::uint8_t>(prng.below(16));
        options.priorities.push_back(tag);
      }
      std::uint64_t runs = 0;
      std::uint64_t longest = 0;
      network.on_run = [&](std::uint16_t from, const core::Transmit& run) {
        if (from != 0 || !is_data(run)) return;
        ++runs;
        longest = std::max<std::uint64_t>(longest, run.datagram_count);
        const double seconds = run.datagram_count == 2 ? 1e-3 : 100e-6;
        const double allowed = network.endpoint(0).rate_bytes_per_second(1) * seconds;
        if (run.datagram_count > 1) CHECK(static_cast<double>(run.total_bytes) <= allowed * 1.0001);
        std::uint32_t slice = 0;
        for (std::uint32_t i = 0; i < run.datagram_count; ++i, slice += 2) {
          wire::DataHeader header;
          const auto head = std::span(run.slices[slice].data, run.slices[slice].size);
          REQUIRE(head.size() == MLT_DATA_HEADER_BYTES);
          REQUIRE(wire::decode_prefix(head, header.prefix) == wire::DropReason::kNone);
          header.offset_bytes = base::load_le32(head.data() + MLT_OFFSET_OFFSET);
          const SegmentPriority expected = options.priorities[header.offset_bytes / kSegment];
          CHECK(header.prefix.path == run.path);
          CHECK(run.dscp == network.endpoint(0).config().dscp.data[expected.traffic_class()]);
          CHECK(run.ecn == expected.ecn());
          const std::size_t size = head.size() + run.slices[slice + 1].size;
          if (i + 1 < run.datagram_count) CHECK(size == run.datagram_bytes);
        }
      };
      Transfer transfer(network, 299 * kSegment + 12, options);
      transfer.post();
      REQUIRE(transfer.run());
      CHECK(transfer.fault() == "");
      CHECK(runs > 0);
      if (rate >= 1.25e9 && most > 1) CHECK(longest > 5);
      if (rate == 2.5e7 && most > 1) CHECK(longest == 2);
      if (rate < 1e7) CHECK(longest == 1);
    }
  }
}

TEST_CASE("run__payload_slices_point_into_the_tensor") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 100'000);
  const std::byte* begin = transfer.data().data();
  std::uint64_t payload = 0;
  network.on_run = [&](std::uint16_t from, const core::Transmit& run) {
    if (from != 0) return;
    for (std::uint32_t i = 1; i < run.slice_count; i += 2) {
      CHECK(run.slices[i].data >= begin);
      CHECK(run.slices[i].data + run.slices[i].size <= begin + 100'000);
      payload += run.slices[i].size;
    }
  };
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(payload == 100'000);
}

TEST_CASE("run__a_uniform_tensor_goes_out_in_few_long_runs") {
  Simulation network(SimulationConfig{});  // 10 Gbit/s: 125 kB in 100 us, so the datapath's limit decides
  Transfer transfer(network, 1'000 * kSegment);
  transfer.post();
  REQUIRE(transfer.run());
  const std::uint64_t most = base::kMaxRunBytes / kDatagram;
  CHECK(network.counter(0, Counter::k_runs_sent) <= 1'000 / most + 3);
}

TEST_CASE("packets__are_self_describing_and_numbered_per_path") {
  SimulationConfig config;
  config.endpoint.paths = 3;
  Simulation network(config);
  std::vector<Packet> packets;
  record(network, packets);
  Transfer transfer(network, 300 * kSegment);
  transfer.post();
  REQUIRE(transfer.run());
  std::uint32_t next[3] = {1, 1, 1};
  for (const Packet& packet : packets) {
    CHECK(packet.header.tag == 7);
    CHECK(packet.header.generation == 0);
    CHECK(packet.header.total_bytes == 300 * kSegment);
    CHECK(packet.header.prefix.element == wire::ElementType::kFloat32);
    CHECK(packet.header.prefix.sequence == next[packet.header.prefix.path]++);
    CHECK((packet.header.prefix.flags & MLT_FLAG_END_OF_ROUND) == 0);  // with several paths a probe tells it
  }
  for (const std::uint32_t n : next) CHECK(n > 50);  // sprayed over all of them
}

// ---- window --------------------------------------------------------------------------------------------------------

TEST_CASE("window__is_never_exceeded") {
  for (const std::uint32_t window : {20'000U, 64'000U, 300'000U}) {
    for (const double drop : {0.0, 0.05}) {
      CAPTURE(window);
      CAPTURE(drop);
      SimulationConfig config;
      config.window_bytes = window;
      config.endpoint.max_window_bytes = 0;
      config.link.data.drop = drop;
      config.link.propagation_ns = 300 * kMicrosecond;
      Simulation network(config);
      std::uint64_t largest = 0;
      network.on_run = [&](std::uint16_t from, const core::Transmit& run) {
        if (from == 0 && is_data(run)) largest = std::max(largest, network.endpoint(0).in_flight_bytes(1));
      };
      Transfer transfer(network, 2'000'000);
      transfer.post();
      REQUIRE(transfer.run());
      CHECK(transfer.fault() == "");
      CHECK(largest <= window);
      CHECK(largest > window / 2);
    }
  }
}

TEST_CASE("window__smaller_than_a_packet_still_moves") {
  SimulationConfig config;
  config.window_bytes = 500;
  Simulation network(config);
  Transfer transfer(network, 20 * kSegment);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
}

TEST_CASE("window__replies_slower_than_any_timeout_still_open_it") {
  SimulationConfig config;
  config.window_bytes = 30'000;
  config.link.propagation_ns = 120 * kMillisecond;  // a round trip is five of the longest timeouts
  config.link.data.drop = 0.1;
  Simulation network(config);
  Transfer transfer(network, 200'000);
  transfer.post();
  REQUIRE(transfer.run(60 * kSecond));
  CHECK(transfer.fault() == "");
}

TEST_CASE("window__one_blocked_peer_does_not_hold_up_another") {
  SimulationConfig config;
  config.hosts = 3;
  config.window_bytes = 64'000;
  Simulation network(config);
  network.link(0, 1).data.drop = 1.0;
  network.link(0, 1).control.drop = 1.0;
  TransferOptions options;
  Transfer stuck(network, 1'000'000, options);
  options.to = 2;
  options.operation = 2;
  Transfer free(network, 1'000'000, options);
  stuck.post();
  free.post();
  REQUIRE(free.run(50 * kMillisecond));
  CHECK(free.fault() == "");
  CHECK_FALSE(stuck.ended());
}

// ---- rate ----------------------------------------------------------------------------------------------------------

TEST_CASE("rate__is_kept_on_average_and_starts_at_the_line") {
  for (const double line : {1.25e7, 1.25e8, 1.25e9}) {
    CAPTURE(line);
    SimulationConfig config;
    config.endpoint.timely.line_rate_bytes_per_second = line;
    config.link.rate_bytes_per_second = 1.25e10;
    Simulation network(config);
    Transfer transfer(network, 4'000'000);
    transfer.post();
    CHECK(network.endpoint(0).rate_bytes_per_second(1) == doctest::Approx(line));
    REQUIRE(transfer.run());
    const double wire_bytes = 4'000'000.0 * kDatagram / kSegment;
    const double seconds = static_cast<double>(transfer.received()->elapsed_ns) * 1e-9;
    CHECK(wire_bytes / seconds < line * 1.1);
    CHECK(wire_bytes / seconds > line * 0.85);
  }
}

TEST_CASE("rate__an_idle_path_is_used_in_full") {
  // The queue that one's own runs make is no congestion: once a 10 Gbit/s path was used to 18 %.
  for (const double line : {1.25e8, 1.25e9, 5e9}) {
    for (const base::DurationNs delay : {5 * kMicrosecond, 50 * kMicrosecond, 500 * kMicrosecond}) {
      CAPTURE(line);
      CAPTURE(delay);
      SimulationConfig config;
      config.endpoint.timely.line_rate_bytes_per_second = line;
      config.link.rate_bytes_per_second = line;
      config.link.propagation_ns = delay;
      config.window_bytes = 16U << 20;
      Simulation network(config);
      const double bytes = line * 0.015 > 2e7 ? 2e7 : line * 0.015;
      Transfer transfer(network, static_cast<std::size_t>(bytes) / 4 * 4);
      transfer.post();
      REQUIRE(transfer.run());
      const double sending_ns = static_cast<double>(transfer.received()->elapsed_ns - delay);
      CHECK(bytes / sending_ns * 1e9 > 0.85 * line);
    }
  }
}

TEST_CASE("rate__falls_towards_a_slow_link_and_is_remembered_by_the_next_transfer") {
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e9;
  config.link.rate_bytes_per_second = 1.25e8;
  Simulation network(config);
  Transfer first(network, 4'000'000);
  first.post();
  REQUIRE(first.run());
  CHECK(first.fault() == "");
  const double learnt = network.endpoint(0).rate_bytes_per_second(1);
  CHECK(learnt < 0.6 * 1.25e9);
  TransferOptions options;
  options.operation = 2;
  Transfer second(network, 1'000, options);
  second.post();
  CHECK(network.endpoint(0).rate_bytes_per_second(1) <= learnt + 1);
  REQUIRE(second.run());
}

TEST_CASE("rate__a_slow_link_is_shared_without_collapse") {
  // Goodput over a link of a tenth of the line rate with a finite queue: repairs and pauses must not eat it.
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e9;
  config.link.rate_bytes_per_second = 1.25e8;
  config.queue_bytes = 200'000;
  Simulation network(config);
  Transfer transfer(network, 20'000'000);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  const double goodput = 2e7 / (static_cast<double>(transfer.received()->elapsed_ns) * 1e-9);
  CHECK(goodput > 0.5 * 1.25e8);
}

TEST_CASE("rate__is_halved_once_for_every_round_of_which_most_was_lost") {
  struct Case {
    std::size_t segments;
    unsigned rounds;       // that lose packets
    unsigned lost_of_ten;  // packets of these
    std::uint64_t counted;
  };
  for (const Case& one : {Case{200, 1, 5, 0}, Case{200, 1, 6, 1}, Case{200, 3, 9, 3}, Case{1'000, 2, 9, 2},
                          Case{60, 1, 9, 0}, Case{20'000, 1, 6, 1}, Case{20'000, 1, 9, 1}, Case{20'000, 1, 4, 0}}) {
    CAPTURE(one.segments);
    CAPTURE(one.lost_of_ten);
    SimulationConfig config;
    config.endpoint.timely.line_rate_bytes_per_second = 1.25e9;
    Simulation network(config);
    unsigned sent[3] = {};
    network.drop_if = [&](const Flight& f) {
      const auto round = static_cast<unsigned>(f.bytes[3]);
      if (f.type != wire::PacketType::kData || f.from != 0 || round >= one.rounds) return false;
      // The first of ten arrive, the last too: a report of them comes soon.
      const unsigned place = sent[round]++ % 10;
      return place > 0 && place <= one.lost_of_ten;
    };
    Transfer transfer(network, one.segments * kSegment);
    transfer.post();
    network.run_for(kMicrosecond);
    REQUIRE(transfer.run(10 * kSecond));
    CHECK(transfer.fault() == "");
    CHECK(network.counter(0, Counter::k_rounds_lost) == one.counted);
    if (one.counted == 0) CHECK(network.endpoint(0).rate_bytes_per_second(1) > 0.8 * 1.25e9);
    if (one.segments <= 200 && one.counted == 1) CHECK(network.endpoint(0).rate_bytes_per_second(1) < 0.6 * 1.25e9);
  }
}

// A link that carries nothing for seconds loses every round. What comes after it must not crawl.
TEST_CASE("rate__that_lost_rounds_halve_still_sends_such_a_round_in_a_tenth_of_a_second") {
  constexpr base::DurationNs kOutage = 8 * kSecond;
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e8;
  Simulation network(config);
  network.drop_if = [&](const Flight& f) {
    return f.type == wire::PacketType::kData && f.from == 0 && network.now() < kOutage;
  };
  Transfer transfer(network, 140 * kSegment);
  transfer.post();
  network.run_for(kOutage);
  CHECK(network.counter(0, Counter::k_rounds_lost) > 8);
  CHECK(network.endpoint(0).rate_bytes_per_second(1) >= 140 * (kSegment + MLT_DATA_HEADER_BYTES) / 0.1);
  REQUIRE(transfer.run(kSecond));
  CHECK(transfer.fault() == "");
}

// ---- probes --------------------------------------------------------------------------------------------------------

TEST_CASE("probe__is_repeated_with_backoff_while_no_reply_comes") {
  Simulation network(SimulationConfig{});
  network.every_link([](Link& link) { link.data.drop = link.control.drop = 1.0; });
  network.control_connections_stalled = true;
  Transfer transfer(network, 1'000);
  REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
  network.run_for(10 * kSecond);
  const auto probes = network.counter(0, Counter::k_probes_sent);
  CHECK(probes > 100);  // at least every 50 ms, by both ways
  CHECK(probes < 1'000);
  CHECK(network.counter(0, Counter::k_tcp_fallback_packets_sent) > 0);
}

TEST_CASE("probe__waits_at_the_slowest_pace_for_a_receive_that_is_not_posted") {
  Simulation network(SimulationConfig{});
  Transfer transfer(network, 1'000);
  REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
  network.run_for(5 * kSecond);
  CHECK(network.counter(0, Counter::k_probes_sent) < 5'000 / 50 + 10);
  CHECK(network.counter(0, Counter::k_tcp_fallback_packets_sent) == 0);
  CHECK(network.counter(0, Counter::k_data_packets_sent) == 1);
}

TEST_CASE("probe__leaves_within_a_few_round_trips_when_end_of_round_is_lost") {
  Simulation network(SimulationConfig{});
  Transfer warm(network, 100'000);
  warm.post();
  REQUIRE(warm.run());
  int lost = 0;
  network.drop_if = [&](const Flight& f) {
    return f.type == wire::PacketType::kData && (static_cast<unsigned>(f.bytes[1]) & MLT_FLAG_END_OF_ROUND) != 0 &&
           lost++ == 0;
  };
  TransferOptions options;
  options.operation = 2;
  Transfer transfer(network, 10 * kSegment, options);
  transfer.post();
  REQUIRE(transfer.run(2 * kMillisecond));
  CHECK(transfer.fault() == "");
}

TEST_CASE("cancel__of_a_send_gives_the_tensor_back_at_once") {
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e7;
  Simulation network(config);
  Transfer transfer(network, 1'000'000);
  transfer.post();
  network.run_for(kMillisecond);
  network.cancel(0, 1, core::CompletionKind::kSend);
  REQUIRE(transfer.sent() != nullptr);
  CHECK(transfer.sent()->status == core::CompletionStatus::kCancelled);
  const auto sent = network.counter(0, Counter::k_data_packets_sent);
  transfer.data().clear();
  transfer.data().shrink_to_fit();  // a read of it from now on is an error that the address sanitizer sees
  network.run_for(100 * kMillisecond);
  CHECK(network.counter(0, Counter::k_data_packets_sent) == sent);
}

TEST_CASE("cancel__of_a_send_ends_its_receive_posted_before_or_after_and_the_next_of_the_tag_is_whole") {
  for (const bool posted_before : {true, false}) {
    CAPTURE(posted_before);
    SimulationConfig config;
    config.endpoint.timely.line_rate_bytes_per_second = 1.25e7;
    Simulation network(config);
    TransferOptions options;
    options.operation = 1;
    options.tag = 5;
    Transfer aborted(network, 1'000'000, options);
    if (posted_before) REQUIRE(aborted.post_receive() == core::PostStatus::kPosted);
    REQUIRE(aborted.post_send() == core::PostStatus::kPosted);
    network.run_for(kMillisecond);
    network.cancel(0, 1, core::CompletionKind::kSend);
    network.run_for(10 * kMillisecond);
    if (!posted_before) REQUIRE(aborted.post_receive() == core::PostStatus::kPosted);
    network.run_for(kMillisecond);
    REQUIRE(aborted.received() != nullptr);
    CHECK(aborted.received()->status == core::CompletionStatus::kCancelled);
    CHECK(network.counter(1, Counter::k_aborts_received) == 1);
    options.operation = 2;
    Transfer next(network, 5'000, options);
    next.post();
    REQUIRE(next.run());
    CHECK(next.fault() == "");
  }
}
