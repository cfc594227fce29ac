// Rings behind slow interfaces without classes: the replies of every host wait behind its own data. Round trips that
// contain that wait made both directions slow down for the queue of either: up to a fifth more time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "sim/collective_hosts.h"
#include "sim/collectives/all_reduce_times.h"
#include "sim/scenarios/stream.h"

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;

constexpr double kInterfaceRate = 25e6;  // 200 Mbit/s
constexpr std::size_t kBytes = 1'153'000;

struct RingCase {
  std::uint16_t ranks = 2;
  base::DurationNs gap_ns = 0;     // between two all-reduces, in the mean
  base::DurationNs paused_ns = 0;  // longest pause of a thread; one every two milliseconds
  double most = 0;                 // of the payload's time on the wire
  bool pauses_between_batches = true;
};

void pause_often(sim::Simulator& simulator, base::Prng& prng, std::uint16_t host, base::DurationNs longest_ns) {
  const auto next = static_cast<base::DurationNs>(prng.below(4 * kMillisecond));
  simulator.at(simulator.now() + next, [&simulator, &prng, host, longest_ns] {
    simulator.pause(host, static_cast<base::DurationNs>(prng.below(static_cast<std::uint64_t>(longest_ns))));
    pause_often(simulator, prng, host, longest_ns);
  });
}

// Median time, of the payload's time on the wire; the first ten, in which the rate is found, left out.
double median_of(const RingCase& one, std::uint64_t seed) {
  sim::Fabric fabric = test::fabric(kInterfaceRate);
  fabric.host_link.propagation_ns = 10 * kMicrosecond;
  sim::SimulatorConfig config = test::configured(10e9);
  config.seed = seed;
  config.window_bytes = 2'796'202;
  config.host.wake_up_ns = 20 * kMicrosecond;
  config.host.pauses_between_batches = one.pauses_between_batches;
  config.host.socket_buffer_bytes = 3 * config.window_bytes;
  sim::Simulator simulator(config, sim::star(one.ranks, fabric));
  sim::CollectiveHosts hosts(simulator);
  base::Prng prng(seed);
  simulator.connect_all();
  simulator.run_for(kMillisecond);
  for (std::uint16_t host = 0; one.paused_ns > 0 && host < one.ranks; ++host) {
    pause_often(simulator, prng, host, one.paused_ns);
  }
  std::vector<std::vector<float>> data(one.ranks, std::vector<float>(kBytes / sizeof(float), 1.0F));
  std::vector<double> times = test::run_all_reduces(simulator, hosts, {}, data, 60, [&] {
    if (one.gap_ns == 0) return;
    simulator.run_for(one.gap_ns / 2 +
                      static_cast<base::DurationNs>(prng.below(static_cast<std::uint64_t>(one.gap_ns))));
  });
  times.erase(times.begin(), times.begin() + 10);
  std::sort(times.begin(), times.end());
  const double share = 2.0 * (one.ranks - 1) / one.ranks;
  return times[times.size() / 2] * 1e-9 * kInterfaceRate / (share * static_cast<double>(kBytes));
}

}  // namespace

TEST_CASE("rings__replies_that_wait_behind_their_senders_own_data_slow_nobody_down") {
  // Headers and acknowledgements are 8.1 %.
  const RingCase cases[] = {
      {2, 0, 0, 1.11},
      {2, 3 * kMillisecond, 0, 1.11},
      {4, 0, 0, 1.1},
      {4, 3 * kMillisecond, 0, 1.1},
      {2, 0, 600 * kMicrosecond, 1.13},
      {2, 3 * kMillisecond, 600 * kMicrosecond, 1.13},
      {4, 0, 600 * kMicrosecond, 1.13},
      {4, 3 * kMillisecond, 600 * kMicrosecond, 1.13},
      {2, 0, 0, 1.11, false},
      {4, 0, 0, 1.1, false},
      {2, 3 * kMillisecond, 600 * kMicrosecond, 1.13, false},
      {4, 3 * kMillisecond, 600 * kMicrosecond, 1.13, false},
  };
  for (const RingCase& one : cases) {
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      const double taken = median_of(one, seed);
      MESSAGE(one.ranks << " hosts, " << one.gap_ns / kMillisecond << " ms between, pauses up to "
                        << one.paused_ns / kMicrosecond << " us, seed " << seed << ": " << taken);
      CHECK(taken < one.most);
    }
  }
}
