// Links whose delay varies, as between virtual machines and in clouds: packets are held back and released together,
// with no queue anywhere. Without knowing that from a queue, TIMELY needed 2 to 140 times as long as the wire.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/collective_hosts.h"
#include "sim/scenarios/stream.h"

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;

constexpr double kCardRate = 1.25e9;

struct Case {
  double rate_bytes_per_second;
  std::size_t bytes;
  base::DurationNs jitter_ns;
  double most;  // of the payload's time on the wire
};

// The median time of an all-reduce of two hosts, of the payload's time on the wire; the first five left out.
double all_reduce_of_two(const Case& one, double jitter_multiple) {
  sim::Fabric fabric = test::fabric(one.rate_bytes_per_second, 256U << 10);
  fabric.host_link.propagation_ns = fabric.core_link.propagation_ns = 10 * kMicrosecond;
  fabric.host_link.jitter_ns = one.jitter_ns;
  sim::SimulatorConfig config = test::configured(kCardRate);
  config.host.endpoint.timely.jitter_multiple = jitter_multiple;
  config.host.endpoint.operation_timeout_ns = 60 * kSecond;
  sim::Simulator simulator(config, sim::leaf_spine(1, 1, 2, fabric));
  sim::CollectiveHosts hosts(simulator);
  simulator.connect_all();
  simulator.run_for(kMillisecond);
  std::vector<std::vector<float>> data(2, std::vector<float>(one.bytes / sizeof(float), 1.0F));
  std::vector<double> times;
  for (std::uint64_t round = 1; round <= 25; ++round) {
    const base::TimeNs start = simulator.now();
    for (std::uint16_t rank = 0; rank < 2; ++rank) {
      collective::CollectiveRequest request;
      request.operation = round;
      request.output = std::as_writable_bytes(std::span(data[rank]));
      request.ranks = {0, 1};
      hosts.start(rank, request);
    }
    REQUIRE(simulator.run_until([&] { return hosts.done(0).size() >= round && hosts.done(1).size() >= round; },
                                20 * kSecond));
    REQUIRE(simulator.fault() == "");
    if (round > 5) times.push_back(static_cast<double>(simulator.now() - start) * 1e-9);
    simulator.run_for(2 * kMillisecond);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * one.rate_bytes_per_second / static_cast<double>(one.bytes);
}

}  // namespace

TEST_CASE("jitter__is_no_queue") {
  // Headers and acknowledgements are 8.4 %; at a fixed rate, the ring takes 1.10, 1.15 and 1.23 at 200 Mbit/s, and 1.09
  // to 1.37 at 10 Gbit/s.
  const Case cases[] = {
      {25e6, 1'153'000, 0, 1.12},
      {25e6, 1'153'000, 200 * kMicrosecond, 1.35},
      {25e6, 1'153'000, kMillisecond, 1.6},
      {25e6, 1'153'000, 2 * kMillisecond, 1.6},
      {1.25e9, 16'000'000, 0, 1.15},
      {1.25e9, 16'000'000, 100 * kMicrosecond, 3.2},
      {1.25e9, 16'000'000, 200 * kMicrosecond, 3.2},
      {1.25e9, 16'000'000, kMillisecond, 3.2},
  };
  for (const Case& one : cases) {
    const double taken = all_reduce_of_two(one, core::TimelyConfig{}.jitter_multiple);
    MESSAGE("two hosts of " << one.rate_bytes_per_second * 8e-6 << " Mbit/s, jitter of " << one.jitter_ns / 1'000
                            << " us: " << taken << " of the payload's time on the wire, " << all_reduce_of_two(one, 0)
                            << " where jitter counts as a queue");
    CHECK(taken < one.most);
  }
}
