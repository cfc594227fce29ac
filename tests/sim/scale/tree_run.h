// An all-reduce by halving and doubling (a tree of log2 n levels) of many simulated ranks: production endpoints and
// state machines, on a leaf-spine whose links lose packets. What a rank costs must grow as log n.
//
// Only ranks that exchange something are connected, as if connections were made on first use: a full mesh of 4,096
// ranks is 8.4 million connections. Absent on purpose: the rendezvous, which the simulator does not have.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "collective/collective.h"
#include "sim/collective_hosts.h"
#include "sim/simulator.h"

namespace mlt::test {

struct TreeAllReduce {
  std::uint16_t ranks = 64;  // a multiple of ranks_per_leaf, or fewer
  std::uint16_t ranks_per_leaf = 32;
  std::uint32_t spines = 8;
  std::size_t elements = 16'384;  // floats
  double loss = 0.001;            // of a packet, on its way from host to host
  int rounds = 3;
  std::uint64_t seed = 1;
};

struct TreeCost {
  std::uint64_t events = 0;
  std::uint64_t datagrams = 0;
  std::uint64_t lost = 0;
  std::uint64_t connections = 0;
  std::uint64_t resident_bytes = 0;  // that all of it added to this process
  double cpu_seconds = 0;            // of the all-reduces
  double set_up_cpu_seconds = 0;
  double virtual_seconds = 0;  // of one all-reduce, the mean
};

inline double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

inline std::uint64_t resident_bytes() {
  unsigned long all = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  MLT_CHECK(file != nullptr && std::fscanf(file, "%lu %lu", &all, &resident) == 2);
  std::fclose(file);
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Runs it; MLT_CHECKs that every all-reduce completes with the sum at every rank.
inline TreeCost run_tree(const TreeAllReduce& what) {
  constexpr double kRate = 1.25e9;
  const std::uint64_t resident_before = resident_bytes();
  double cpu = cpu_seconds();

  sim::Fabric fabric;
  fabric.host_link.rate_bytes_per_second = fabric.core_link.rate_bytes_per_second = kRate;
  fabric.host_link.propagation_ns = fabric.core_link.propagation_ns = 2 * base::kMicrosecond;
  // Two links of a host are on every way.
  fabric.host_link.data.drop = fabric.host_link.control.drop = what.loss / 2;
  fabric.port = sim::uniform_port({}, 1'000'000, sim::kUnlimited);
  const std::uint16_t per_leaf = std::min(what.ranks, what.ranks_per_leaf);
  MLT_CHECK(what.ranks % per_leaf == 0);

  sim::SimulatorConfig config;
  config.seed = what.seed;
  config.host.endpoint.timely.line_rate_bytes_per_second = kRate;
  config.host.endpoint.operation_timeout_ns = 20 * base::kSecond;
  // Address space of the tables, of which thousands of endpoints need more than a process may map.
  config.host.endpoint.max_sends = config.host.endpoint.max_receives = 1'024;
  config.host.endpoint.max_tags = 65'536;
  config.host.endpoint.unknown_tags = 16;
  config.host.endpoint.bitmap_words = 1U << 14;
  config.host.endpoint.parity_packets = 16;
  sim::Simulator simulator(config, sim::leaf_spine(what.ranks / per_leaf, what.spines, per_leaf, fabric));
  sim::CollectiveHosts hosts(simulator);

  std::vector<std::vector<float>> tensors(what.ranks, std::vector<float>(what.elements));
  collective::CollectiveRequest request;
  request.reduction = collective::Reduction::kSum;
  request.algorithm = collective::CollectiveAlgorithm::kHalving;
  for (std::uint16_t rank = 0; rank < what.ranks; ++rank) request.ranks.push_back(rank);
  // Those that exchange something: partners in the tree, and neighbours, which exchange rates.
  std::set<std::pair<std::uint16_t, std::uint16_t>> pairs;
  for (std::uint16_t rank = 0; rank < what.ranks; ++rank) {
    request.output = std::as_writable_bytes(std::span(tensors[rank]));
    const auto made = collective::make_collective(request, {request.ranks, rank}, {});
    made->begin();
    for (const collective::Stream& stream : made->streams) pairs.emplace(std::minmax(rank, stream.peer));
  }
  for (const auto& [a, b] : pairs) simulator.connect(a, b);
  simulator.run_for(base::kMillisecond);

  TreeCost cost;
  cost.connections = pairs.size();
  cost.set_up_cpu_seconds = cpu_seconds() - cpu;
  cpu = cpu_seconds();
  const std::uint64_t events_before = simulator.events();
  const base::TimeNs start = simulator.now();
  for (int round = 0; round < what.rounds; ++round) {
    std::vector<float> expected(what.elements);
    for (std::uint16_t rank = 0; rank < what.ranks; ++rank) {
      for (std::size_t i = 0; i < what.elements; ++i) {
        tensors[rank][i] = static_cast<float>((rank + i + static_cast<std::size_t>(round)) % 8);  // every sum is exact
        expected[i] += tensors[rank][i];
      }
    }
    request.operation = static_cast<core::OperationId>(round) + 1;
    std::size_t left = what.ranks;
    for (std::uint16_t rank = 0; rank < what.ranks; ++rank) {
      request.output = std::as_writable_bytes(std::span(tensors[rank]));
      hosts.start(rank, request);
    }
    // Looks at one rank at a time: at all of them, the look itself would cost n per event.
    const auto is_over = [&] {
      while (left > 0 && hosts.done(static_cast<std::uint16_t>(left - 1)).size() == request.operation) --left;
      return left == 0;
    };
    MLT_CHECK(simulator.run_until(is_over, 10 * base::kSecond));
    MLT_CHECK(simulator.fault().empty());
    for (std::uint16_t rank = 0; rank < what.ranks; ++rank) {
      if (const std::string& error = hosts.done(rank).back().error; !error.empty()) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.c_str());
        MLT_CHECK(error.empty());
      }
      MLT_CHECK(tensors[rank] == expected);
    }
  }
  cost.virtual_seconds = 1e-9 * static_cast<double>(simulator.now() - start) / what.rounds;
  cost.cpu_seconds = cpu_seconds() - cpu;
  cost.events = simulator.events() - events_before;
  cost.datagrams = simulator.ledger().packets(sim::Fate::k_sent);
  cost.lost = simulator.ledger().packets(sim::Fate::k_dropped_loss);
  cost.resident_bytes = resident_bytes() - resident_before;
  return cost;
}

}  // namespace mlt::test
