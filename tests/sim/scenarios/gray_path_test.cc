// Four paths, one of them gray: it is avoided, and used again when it has healed. Section R2.2 of RECOVERY.md.
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

constexpr double kGrayRate = 4e8;
constexpr std::uint8_t kPaths = 4;
constexpr std::uint32_t kLeaf = 2;       // of host 0
constexpr std::uint32_t kGraySpine = 6;  // nodes: 2 hosts, 2 leaves, 4 spines

class FourPaths {
 public:
  explicit FourPaths(std::uint64_t seed)
      : simulator(seeded(seed), sim::leaf_spine(2, kPaths, 1, test::fabric(kGrayRate))), oracle(simulator, false) {
    simulator.connect_all();
    simulator.run_for(kMillisecond);
    Plan plan;
    plan.host = 0;
    plan.peer = 1;
    plan.tag = 9;
    plan.bytes = 500'000;
    stream = std::make_unique<test::Stream>(simulator, oracle, plan, 0.0, 2);
  }

  // What each path carried during `duration`, as parts of the whole, by spine; and the goodput.
  std::array<double, kPaths> shares(base::DurationNs duration) {
    std::array<std::uint64_t, kPaths> before{};
    for (std::uint32_t spine = 0; spine < kPaths; ++spine) before[spine] = carried(spine);
    const std::uint64_t delivered = stream->delivered_bytes();
    simulator.run_for(duration);
    goodput = static_cast<double>(stream->delivered_bytes() - delivered) / (static_cast<double>(duration) * 1e-9);
    std::array<double, kPaths> parts{};
    double sum = 0;
    for (std::uint32_t spine = 0; spine < kPaths; ++spine) {
      parts[spine] = static_cast<double>(carried(spine) - before[spine]);
      sum += parts[spine];
    }
    for (double& part : parts) part /= sum;
    return parts;
  }

  void set_gray(double loss) {
    for (const auto& [a, b] : {std::pair{kLeaf, kGraySpine}, std::pair{kGraySpine, kLeaf}}) {
      sim::Link& link = simulator.network().link(simulator.network().topology().edge(a, b));
      link.data.drop = link.control.drop = loss;
    }
  }

  void finish() {
    stream->stop();
    REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, 10 * kSecond));
    simulator.run_for(kSecond);
    oracle.finish();
    CHECK(simulator.fault() == "");
  }

  Simulator simulator;
  Oracle oracle;
  std::unique_ptr<test::Stream> stream;
  double goodput = 0;

 private:
  static sim::SimulatorConfig seeded(std::uint64_t seed) {
    sim::SimulatorConfig config = test::configured(kGrayRate, kPaths);
    config.seed = seed;
    return config;
  }
  std::uint64_t carried(std::uint32_t spine) {
    const std::uint32_t edge = simulator.network().topology().edge(kLeaf, kLeaf + 2 + spine);
    std::uint64_t packets = 0;
    for (std::uint32_t queue = 1; queue < sim::kQueues; ++queue) {
      packets += simulator.network().port(edge).counters(queue).sent_packets;
    }
    return packets;
  }
};

}  // namespace

TEST_CASE("four_paths__one_that_loses_five_percent_is_avoided_and_comes_back") {
  constexpr std::uint32_t kGray = kGraySpine - kLeaf - 2;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    FourPaths world(seed);
    const std::array<double, kPaths> clean = world.shares(50 * kMillisecond);
    const double clean_goodput = world.goodput;
    for (const double share : clean) CHECK(share == doctest::Approx(0.25).epsilon(0.1));
    world.set_gray(0.05);
    world.simulator.run_for(50 * kMillisecond);
    const double gray = world.shares(50 * kMillisecond)[kGray];
    const double gray_goodput = world.goodput;
    world.set_gray(0);
    world.simulator.run_for(100 * kMillisecond);
    const double healed = world.shares(50 * kMillisecond)[kGray];
    MESSAGE("seed ", seed, ": share of the gray path ", gray, ", healed ", healed, "; goodput ",
            gray_goodput / clean_goodput, " of clean, healed ", world.goodput / clean_goodput);
    CHECK(gray < 0.25 / 3);
    CHECK(gray_goodput > 0.9 * clean_goodput);
    CHECK(healed > 0.25 * 0.8);
    CHECK(world.goodput > 0.95 * clean_goodput);
    world.finish();
  }
}

TEST_CASE("four_paths__a_dead_one_is_avoided_within_a_second_and_comes_back") {
  constexpr std::uint32_t kDead = kGraySpine - kLeaf - 2;
  FourPaths world(4);
  world.shares(100 * kMillisecond);
  const double clean_goodput = world.goodput;
  world.set_gray(1);
  world.simulator.run_for(kSecond / 2);
  CHECK(world.shares(kSecond / 2)[kDead] < 0.001);
  CHECK(world.goodput > 0.9 * clean_goodput);
  world.set_gray(0);
  world.simulator.run_for(kSecond);
  CHECK(world.shares(100 * kMillisecond)[kDead] > 0.25 * 0.8);
  world.finish();
}
