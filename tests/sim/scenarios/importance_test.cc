// Under congestion the unimportant packets are the ones lost, and front layers finish first. Paper, section 4.2.2.
#include <doctest/doctest.h>

#include <array>

#include "sim/scenarios/stream.h"

using namespace mlt;
using base::kMillisecond;
using base::kSecond;
using sim::Oracle;
using sim::Plan;
using sim::Simulator;

namespace {

constexpr double kRate = 1.25e9;
constexpr std::uint16_t kSenders = 8;

// Every other segment important, all of one class.
std::vector<core::SegmentPriority> half_important(std::uint32_t bytes, std::uint32_t segment_bytes) {
  std::vector<core::SegmentPriority> priorities(core::SegmentGrid(bytes, segment_bytes).count());
  for (std::size_t i = 0; i < priorities.size(); ++i)
    priorities[i] = i % 2 == 0 ? core::SegmentPriority::important(3) : core::SegmentPriority{3};
  return priorities;
}

}  // namespace

TEST_CASE("congestion__drops_ect_at_least_ten_times_less_than_not_ect") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    sim::SimulatorConfig config = test::configured(kRate);
    config.seed = seed;
    // Eight into one, into 1 MB a queue with the threshold at 100 KB, below what the rate controller rests at. What is
    // not important may be lost, so that nothing is repaired and the load of both kinds stays equal.
    sim::Fabric fabric = test::fabric(kRate, 1'000'000, 100'000);
    fabric.host_link.jitter_ns = 3 * base::kMicrosecond;
    Simulator simulator(config, sim::star(kSenders + 1, fabric));
    simulator.connect_all();
    Oracle oracle(simulator, false);
    simulator.run_for(kMillisecond);
    std::vector<std::unique_ptr<test::Stream>> streams;
    for (std::uint16_t sender = 0; sender < kSenders; ++sender) {
      Plan plan;
      plan.host = sender;
      plan.peer = kSenders;
      plan.tag = sender;
      plan.bytes = 200'000 + 8'000U * sender;
      plan.priorities = half_important(plan.bytes, config.segment_bytes);
      streams.push_back(std::make_unique<test::Stream>(simulator, oracle, plan, 0.5, 2));
    }
    simulator.run_for(25 * kMillisecond);
    for (const auto& stream : streams) stream->stop();
    REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, 10 * kSecond));
    const std::uint32_t bottleneck = simulator.network().topology().edge(kSenders + 1U, kSenders);
    const sim::QueueCounters& queue = simulator.network().port(bottleneck).counters(1 + 3);
    const double ect = static_cast<double>(queue.dropped[1]) / static_cast<double>(queue.offered[1]);
    const double not_ect = static_cast<double>(queue.dropped[0]) / static_cast<double>(queue.offered[0]);
    MESSAGE("seed ", seed, ": drop rate ECT ", ect, " (", queue.offered[1], " offered), Not-ECT ", not_ect, " (",
            queue.offered[0], " offered), marked ", queue.marked);
    CHECK(queue.dropped[0] > 100);  // there was congestion
    // Equal load: the same number of segments of each kind was first sent.
    CHECK(static_cast<double>(queue.offered[1]) == doctest::Approx(static_cast<double>(queue.offered[0])).epsilon(0.2));
    CHECK(10 * ect <= not_ect);
    simulator.run_for(kSecond);
    oracle.finish();
    CHECK(simulator.fault() == "");
  }
}

TEST_CASE("layers__finish_from_front_to_back_although_they_start_from_the_back") {
  constexpr std::uint32_t kLayers = 7;
  sim::SimulatorConfig config = test::configured(kRate);
  Simulator simulator(config, sim::star(kSenders + 1, test::fabric(kRate, 400'000, 60'000)));
  simulator.connect_all();
  Oracle oracle(simulator, false);
  std::array<double, kLayers> finished{};
  const auto oracle_check = simulator.on_completion;
  simulator.on_completion = [&](std::uint16_t rank, const core::Completion& completion) {
    oracle_check(rank, completion);
    if (completion.kind != core::CompletionKind::kReceive) return;
    finished[completion.tag] += static_cast<double>(simulator.now()) / kSenders;
  };
  simulator.run_for(kMillisecond);
  for (std::uint16_t sender = 0; sender < kSenders; ++sender) {
    for (std::uint32_t layer = kLayers; layer-- > 0;) {  // as the backward pass makes them
      Plan plan;
      plan.host = sender;
      plan.peer = kSenders;
      plan.tag = layer;
      plan.bytes = 400'000;
      plan.order = layer;
      plan.uniform_priority = core::SegmentPriority::important(core::class_of_layer(layer, kLayers, 7));
      Plan receive = plan;
      std::swap(receive.host, receive.peer);
      oracle.post_receive(receive);
      oracle.post_send(plan);
    }
  }
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, 10 * kSecond));
  for (std::uint32_t layer = 1; layer < kLayers; ++layer) CHECK(finished[layer - 1] < finished[layer]);
  simulator.run_for(kSecond);
  oracle.finish();
  CHECK(simulator.fault() == "");
}

TEST_CASE("starvation__behind_an_urgent_class_is_not_taken_for_loss") {
  // An urgent flow keeps the port busy; what waits behind it is not lost, however long it waits. Probes overtake it.
  sim::SimulatorConfig config = test::configured(kRate);
  config.window_bytes = 4U << 20;
  Simulator simulator(config, sim::star(3, test::fabric(kRate)));
  simulator.connect_all();
  Oracle oracle(simulator, true);  // rule 8: patient receives lose nothing
  simulator.run_for(kMillisecond);
  Plan back;
  back.host = 0;
  back.peer = 2;
  back.tag = 1;
  back.bytes = 300'000;
  back.uniform_priority = core::SegmentPriority::important(6);
  Plan front = back;
  front.host = 1;
  front.bytes = 4'000'000;
  front.uniform_priority = core::SegmentPriority::important(0);
  for (const Plan& send : {front, back}) {
    Plan receive = send;
    receive.host = send.peer;
    receive.peer = send.host;
    receive.loss_bound = 0.5;
    oracle.post_receive(receive);
    oracle.post_send(send);
  }
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, 10 * kSecond));
  simulator.run_for(kSecond);
  oracle.finish();
  CHECK(simulator.fault() == "");
}
