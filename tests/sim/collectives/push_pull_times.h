// Times of push-pulls one after another between simulated hosts around one switch: each of `workers` hosts has a worker
// and a service beside it, which share its link, and each of `spare` hosts a service.
//
// Drives push-pull and summation as the engine does its own.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "collective/push_pull.h"
#include "collective/summation.h"
#include "sim/scenarios/stream.h"
#include "sim/scenarios/times.h"
#include "sim/simulator_verbs.h"

namespace mlt::test {

struct PushPulls {
  std::uint16_t workers = 8;
  std::uint16_t spare = 0;
  std::size_t bytes = 8U << 20;
  std::optional<collective::ServiceLoads> loads;  // those beside the workers first; none: equal
  double rate = 1.25e9;                           // of a host's link
  base::DurationNs propagation_ns = 2 * base::kMicrosecond;
  std::uint32_t segment_bytes = 8'928;
  int warm_up = 1;  // operations that are not timed
  int operations = 3;
};

// Bytes of tensors that a link carries in a second.
inline double payload_rate(const PushPulls& what) {
  return what.rate * what.segment_bytes / (what.segment_bytes + MLT_DATA_HEADER_BYTES + sim::kOverheadBytes);
}

// Seconds of equation 6 of BytePS: the least that the busiest link needs. Its k is at most n.
inline double least_seconds(const PushPulls& what) {
  const double n = what.workers, k = what.spare;
  return 2 * n * (n - 1) / (n * n + k * n - 2 * k) * static_cast<double>(what.bytes) / payload_rate(what);
}

// Loads of equations 1 and 2: of the services beside workers, then of the others.
inline collective::ServiceLoads best_loads(std::uint16_t workers, std::uint16_t spare) {
  const double n = workers, k = spare;
  std::vector<double> loads(workers, n - k);
  loads.resize(std::size_t{workers} + spare, 2 * (n - 1));
  return collective::ServiceLoads(loads);
}

class PushPullHosts {
 public:
  PushPullHosts(sim::Simulator& simulator, std::uint16_t workers, const std::optional<collective::ServiceLoads>& loads)
      : simulator_(simulator), workers_(workers) {
    std::vector<std::uint16_t> services;
    for (std::uint16_t rank = workers; rank < simulator.hosts(); ++rank) services.push_back(rank);
    for (std::uint16_t rank = 0; rank < simulator.hosts(); ++rank) {
      machines_.push_back(std::make_unique<Machine>(simulator, rank));
      if (rank < workers) {
        machines_.back()->push_pull.emplace(
            collective::PushPullConfig{rank, services, 0, 30 * base::kSecond, base::kSecond, loads}, *machines_.back());
      } else {
        collective::SummationConfig config;
        config.workers = workers;
        config.services = static_cast<std::uint16_t>(services.size());
        config.rank = rank;
        machines_.back()->summation.emplace(config, *machines_.back());
      }
    }
    simulator.on_completion = [this](std::uint16_t rank, const core::Completion& completion) {
      Machine& machine = *machines_[rank];
      if (machine.push_pull) machine.push_pull->on_completion(simulator_.now(), completion);
      if (machine.summation) machine.summation->on_completion(simulator_.now(), completion);
      settle(rank);
    };
    simulator.on_machine_message = [this](std::uint16_t rank, std::uint16_t from, std::span<const std::byte> bytes) {
      const auto message = collective::decode(bytes);
      MLT_CHECK(message);
      Machine& machine = *machines_[rank];
      if (machine.push_pull) machine.push_pull->on_message(simulator_.now(), from, *message);
      if (machine.summation) machine.summation->on_message(simulator_.now(), from, *message);
      settle(rank);
    };
  }
  ~PushPullHosts() {
    simulator_.on_completion = nullptr;
    simulator_.on_machine_message = nullptr;
  }
  PushPullHosts(const PushPullHosts&) = delete;
  PushPullHosts& operator=(const PushPullHosts&) = delete;

  // Push-pulls each worker's tensor as key 0, and returns the nanoseconds until the last worker has its result.
  double run(std::vector<std::vector<float>>& tensors) {
    const base::TimeNs start = simulator_.now();
    ++started_;
    for (std::uint16_t rank = 0; rank < workers_; ++rank) {
      collective::PushPullRequest request;
      request.operation = started_;
      request.input = request.output = tensors[rank];
      machines_[rank]->push_pull->start(simulator_.now(), request);
      settle(rank);
    }
    const auto is_over = [&] {
      send_begun_results();
      for (std::uint16_t rank = 0; rank < workers_; ++rank) {
        if (machines_[rank]->done.size() < started_) return false;
      }
      return true;
    };
    MLT_CHECK(simulator_.run_until(is_over, 30 * base::kSecond) && simulator_.fault().empty());
    for (std::uint16_t rank = 0; rank < workers_; ++rank) MLT_CHECK(machines_[rank]->done.back().error.empty());
    return static_cast<double>(simulator_.now() - start);
  }

 private:
  struct Machine final : sim::SimulatorVerbs {
    using sim::SimulatorVerbs::SimulatorVerbs;

    std::optional<collective::PushPull> push_pull;
    std::optional<collective::Summation> summation;
    std::vector<collective::PushPullDone> done;
  };

  void settle(std::uint16_t rank) {
    Machine& machine = *machines_[rank];
    if (machine.push_pull) machine.push_pull->retry(simulator_.now());
    if (machine.summation) machine.summation->retry(simulator_.now());
    collective::PushPullDone done;
    while (machine.push_pull && machine.push_pull->poll_done(done)) machine.done.push_back(done);
    simulator_.host(rank).wake(simulator_.now());
  }
  void send_begun_results() {
    for (std::uint16_t rank = workers_; rank < machines_.size(); ++rank) {
      if (machines_[rank]->summation->has_begun_results()) settle(rank);
    }
  }

  sim::Simulator& simulator_;
  std::uint16_t workers_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::size_t started_ = 0;
};

// A worker and the service beside it meet at a switch of their host's own, over links that limit nothing.
inline sim::Topology shared_hosts(const PushPulls& what) {
  const auto ranks = static_cast<std::uint16_t>(2 * what.workers + what.spare);
  sim::Topology topology = sim::from_cables(ranks, what.workers + 1U, {}, fabric(what.rate, 1'000'000));
  const sim::Fabric network = fabric(what.rate, 1'000'000);
  sim::Link link = network.host_link, local = network.host_link;
  link.propagation_ns = what.propagation_ns;
  local.rate_bytes_per_second = 40 * what.rate;
  local.propagation_ns = 200;
  const sim::PortConfig unlimited = sim::uniform_port({}, sim::kUnlimited, sim::kUnlimited);
  const std::uint32_t center = ranks + std::uint32_t{what.workers};
  for (std::uint16_t host = 0; host < what.workers; ++host) {
    const std::uint32_t inside = ranks + std::uint32_t{host};
    topology.add_cable(host, inside, local, unlimited, unlimited);
    topology.add_cable(what.workers + std::uint32_t{host}, inside, local, unlimited, unlimited);
    topology.add_cable(inside, center, link, unlimited, network.port);
  }
  for (std::uint32_t rank = 2U * what.workers; rank < ranks; ++rank) {
    topology.add_cable(rank, center, link, network.port, network.port);
  }
  return topology;
}

inline Times time_push_pulls(const PushPulls& what) {
  sim::SimulatorConfig config = configured(what.rate);
  config.segment_bytes = what.segment_bytes;
  config.window_bytes = 4U << 20;
  config.host.endpoint.max_segment_bytes = what.segment_bytes;
  config.host.endpoint.timely.packet_bytes = what.segment_bytes + MLT_DATA_HEADER_BYTES + sim::kOverheadBytes;
  config.adjust_peer = [workers = what.workers](std::uint16_t host, core::PeerUp& up) {
    const auto [low, high] = std::minmax(host, up.peer);
    up.holds_back = low < workers && high == low + workers;  // shared memory
  };
  sim::Simulator simulator(config, shared_hosts(what));
  PushPullHosts hosts(simulator, what.workers, what.loads);
  simulator.connect_all();
  simulator.run_for(10 * base::kMillisecond);
  std::vector<std::vector<float>> tensors(what.workers, std::vector<float>(what.bytes / sizeof(float), 1.0F));
  Times times;
  for (int i = 0; i < what.warm_up + what.operations; ++i) {
    const double ns = hosts.run(tensors);
    if (i >= what.warm_up) times.ns.push_back(ns);
    simulator.run_for(base::kMillisecond);  // not in step with what the last operation left behind
  }
  std::ranges::sort(times.ns);
  return times;
}

}  // namespace mlt::test
