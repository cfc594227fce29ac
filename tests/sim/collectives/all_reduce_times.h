// Times of all-reduces one after another between simulated hosts around one switch, of which one sends over a link that
// loses packets.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "sim/collective_hosts.h"
#include "sim/scenarios/stream.h"
#include "sim/scenarios/times.h"

namespace mlt::test {

struct AllReduces {
  std::uint16_t ranks = 8;
  std::size_t bytes = 64U << 10;
  double loss_bound = 0;
  collective::CollectiveAlgorithm algorithm = collective::CollectiveAlgorithm::kAutomatic;
  double loss = 0.02;     // of the data that rank 0 sends
  bool all_lose = false;  // of what every rank sends
  double control_loss = 0;
  double rate = 1.25e9;
  double line_rate = 0;  // that the hosts start at; 0: `rate`
  double slowness = 1;   // of rank 1's link, in both directions: its rate is `rate` over this
  bool shares_by_rate = false;
  int warm_up = 0;                                           // operations that are not timed
  base::DurationNs propagation_ns = 2 * base::kMicrosecond;  // of a host's link
  std::uint32_t segment_bytes = 1'432;
  std::uint8_t paths = 1;  // over the same link
  int operations = 1'000;
  std::uint64_t seed = 1;
};

struct AllReduceTimes : Times {  // until the last rank has its result
  double missing = 0;            // of all that ranks received of sums
};

// All-reduces of these tensors, one of each rank, one after another; calls `between` after each. Returns the time until
// the last rank has its result, of each.
template <typename Between>
std::vector<double> run_all_reduces(sim::Simulator& simulator, sim::CollectiveHosts& hosts,
                                    collective::CollectiveRequest request, std::span<std::vector<float>> tensors,
                                    int operations, Between&& between) {
  const auto ranks = static_cast<std::uint16_t>(tensors.size());
  for (std::uint16_t rank = 0; rank < ranks; ++rank) request.ranks.push_back(rank);
  std::vector<double> ns;
  for (std::size_t i = 1; i <= static_cast<std::size_t>(operations); ++i) {
    const base::TimeNs start = simulator.now();
    request.operation = i;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      request.output = std::as_writable_bytes(std::span(tensors[rank]));
      hosts.start(rank, request);
    }
    const auto over = [&] {
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        if (hosts.done(rank).size() < i) return false;
      }
      return true;
    };
    MLT_CHECK(simulator.run_until(over, 10 * base::kSecond) && simulator.fault().empty());
    ns.push_back(static_cast<double>(simulator.now() - start));
    between();
  }
  return ns;
}

inline AllReduceTimes time_all_reduces(const AllReduces& what) {
  sim::Fabric network = fabric(what.rate, 1'000'000);
  network.host_link.propagation_ns = what.propagation_ns;
  sim::Topology topology = sim::star(what.ranks, network);
  for (std::uint16_t rank = 0; rank < (what.all_lose ? what.ranks : 1); ++rank) {
    sim::Link& lossy = topology.edges[topology.edge(rank, what.ranks)].link;
    lossy.data.drop = what.loss;
    lossy.control.drop = what.control_loss;
  }
  for (const auto& [from, to] : {std::pair{1U, std::uint32_t{what.ranks}}, {std::uint32_t{what.ranks}, 1U}}) {
    topology.edges[topology.edge(from, to)].link.rate_bytes_per_second /= what.slowness;
  }
  sim::SimulatorConfig config = configured(what.line_rate > 0 ? what.line_rate : what.rate);
  config.seed = what.seed;
  config.segment_bytes = what.segment_bytes;
  config.host.endpoint.paths = what.paths;
  config.host.endpoint.timely.packet_bytes = what.segment_bytes + MLT_DATA_HEADER_BYTES + sim::kOverheadBytes;
  sim::Simulator simulator(config, topology);
  sim::CollectiveHosts hosts(simulator, what.shares_by_rate);
  simulator.connect_all();
  simulator.run_for(10 * base::kMillisecond);
  std::vector<std::vector<float>> tensors(what.ranks, std::vector<float>(what.bytes / sizeof(float), 1.0F));
  collective::CollectiveRequest request;
  request.reduction = collective::Reduction::kMean;
  request.loss_bound = what.loss_bound;
  request.algorithm = what.algorithm;
  AllReduceTimes times;
  // Not in step with what the last operation left behind.
  times.ns = run_all_reduces(simulator, hosts, request, tensors, what.warm_up + what.operations,
                             [&] { simulator.run_for(base::kMillisecond); });
  times.ns.erase(times.ns.begin(), times.ns.begin() + what.warm_up);
  std::uint64_t missing = 0;
  const double received = static_cast<double>(what.bytes) * (what.ranks - 1);
  for (std::uint16_t rank = 0; rank < what.ranks; ++rank) {
    for (const collective::CollectiveDone& done : hosts.done(rank)) {
      // Of all chunks that the rank received of sums.
      const double most = what.loss_bound * static_cast<double>(what.bytes) * (what.ranks - 1) / what.ranks;
      MLT_CHECK(done.error.empty() && static_cast<double>(done.missing_bytes) <= most);
      missing += done.missing_bytes;
    }
  }
  times.missing = static_cast<double>(missing) / received / (what.warm_up + what.operations);
  std::ranges::sort(times.ns);
  return times;
}

}  // namespace mlt::test
