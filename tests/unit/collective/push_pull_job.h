// Push-pull and summation over production endpoints under virtual time: workers and services on one virtual network.
// Ranks may die, at once for all others or not, and single connections may end.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "collective/push_pull.h"
#include "collective/summation.h"
#include "support/simulation.h"
#include "support/tensors.h"

namespace mlt::test {

using base::TimeNs;
using namespace mlt::collective;

constexpr mlt::base::DurationNs kDefaultTimeoutNs = 2 * mlt::base::kSecond;

// Drives the two machines as the engine does: completions in, posts and messages out.
class Job {
 public:
  Job(const SimulationConfig& network_config, std::uint16_t workers, std::uint16_t services,
      SummationConfig summation_config = {}, std::uint16_t max_dead_services = 0,
      const std::vector<std::optional<ServiceLoads>>& loads = {},     // of each worker; none: equal
      std::optional<std::uint16_t> without_checksums = std::nullopt)  // a rank
      : without_checksums_(without_checksums),
        workers_(workers),
        network_(with_hosts(network_config, static_cast<std::uint16_t>(workers + services))) {
    std::vector<std::uint16_t> service_ranks;
    for (std::uint16_t i = 0; i < services; ++i) service_ranks.push_back(static_cast<std::uint16_t>(workers + i));
    for (std::uint16_t rank = 0; rank < workers + services; ++rank) {
      hosts_.push_back(std::make_unique<Host>(*this, rank));
      if (rank < workers) {
        hosts_.back()->push_pull = std::make_unique<PushPull>(
            PushPullConfig{rank, service_ranks, max_dead_services, kDefaultTimeoutNs,
                           summation_config.max_takeover_wait_ns, rank < loads.size() ? loads[rank] : std::nullopt,
                           has_checksums(rank, summation_config)},
            *hosts_.back());
      } else {
        summation_config.workers = workers;
        summation_config.services = services;
        summation_config.rank = rank;
        SummationConfig own = summation_config;
        own.checksums = has_checksums(rank, summation_config);
        hosts_.back()->summation = std::make_unique<Summation>(own, *hosts_.back());
      }
    }
  }

  Simulation& network() { return network_; }
  void start(std::uint16_t worker, const PushPullRequest& request) {
    hosts_[worker]->push_pull->start(network_.now(), request);
    pump();
  }
  // What rank `from` sends to a worker beside the protocol.
  void say(std::uint16_t from, std::uint16_t worker, const Message& message) {
    hosts_[worker]->push_pull->on_message(network_.now(), from, message);
    pump();
  }
  // Messages to `rank` vanish, as before serve() is called there.
  void silence(std::uint16_t rank) { silent_ = rank; }
  // Until `worker` has finished `count` push-pulls in all.
  bool run_until_done(std::uint16_t worker, std::size_t count) {
    return network_.run_until([&] {
      pump();
      return hosts_[worker]->done.size() >= count;
    });
  }
  // Until a transfer has ended at `rank` that the rank has not been told of; no rank is told of any meanwhile.
  bool run_until_arrived(std::uint16_t rank) {
    return network_.run_until([&] { return network_.completed(rank).size() > hosts_[rank]->taken; });
  }
  void run_until_summed(std::uint16_t service, std::uint64_t rounds) {
    REQUIRE(network_.run_until([&] {
      pump();
      return hosts_[service]->summation->rounds_summed() >= rounds;
    }));
  }
  void run_for(mlt::base::DurationNs duration) {
    const TimeNs until = network_.now() + duration;
    network_.run_until(
        [&] {
          pump();
          return network_.now() >= until;
        },
        duration);
  }
  // The connection between every rank and `rank` ends, as when its process dies. With `prng` each other rank notices it
  // by itself, up to `max_delay_ns` later.
  void kill(std::uint16_t rank, mlt::base::Prng* prng = nullptr, std::uint64_t max_delay_ns = 0) {
    dead_.insert(rank);
    for (std::uint16_t other = 0; other < hosts_.size(); ++other) {
      if (dead_.contains(other)) continue;
      if (prng == nullptr) {
        end_connection(other, rank);
      } else {
        network_.at(network_.now() + static_cast<TimeNs>(1 + prng->below(max_delay_ns)), [this, other, rank] {
          if (!dead_.contains(other)) end_connection(other, rank);
        });
      }
    }
    pump();
  }
  // One connection ends; both ranks live, and with `prng` notice it by themselves, up to `max_delay_ns` later.
  void cut(std::uint16_t a, std::uint16_t b, mlt::base::Prng* prng = nullptr, std::uint64_t max_delay_ns = 0) {
    if (!cut_.insert({std::min(a, b), std::max(a, b)}).second) return;
    const auto first = static_cast<TimeNs>(prng == nullptr ? 0 : prng->below(max_delay_ns));
    const auto second = static_cast<TimeNs>(prng == nullptr ? 0 : prng->below(max_delay_ns));
    const bool is_swapped = second < first;
    const std::uint16_t early = is_swapped ? b : a, late = is_swapped ? a : b;
    const TimeNs later = std::max(first, second) - std::min(first, second);
    const auto end = [this, early, late, later] {
      if (dead_.contains(early) || dead_.contains(late)) return;
      network_.disconnect(early, late, later);
      notice_end(early, late);
      if (later == 0) return notice_end(late, early);
      // Just before its endpoint does: in the same moment completions might be taken between both.
      network_.at(network_.now() + later - 1, [this, early, late] {
        if (!dead_.contains(late)) notice_end(late, early);
      });
    };
    if (prng == nullptr) {
      end();
    } else {
      network_.at(network_.now() + std::min(first, second), end);
    }
    pump();
  }
  bool is_dead(std::uint16_t rank) const { return dead_.contains(rank); }
  const std::vector<PushPullDone>& done(std::uint16_t worker) const { return hosts_[worker]->done; }
  const std::vector<std::string>& notices(std::uint16_t rank) const { return hosts_[rank]->notices; }
  // Why the others continue without this rank; empty if they do not.
  const std::string& exclusion(std::uint16_t rank) const { return hosts_[rank]->exclusion; }
  std::string cause;  // of the death, as the ranks know it
  // Of a rank that posts a receive: whether a bit of what arrives is changed before it is written or summed.
  std::function<bool(std::uint16_t, const core::ReceiveRequest&)> is_damaged = [](auto, const auto&) { return false; };
  const ChecksumCounts& checksum_counts(std::uint16_t rank) const {
    return rank < workers_ ? hosts_[rank]->push_pull->checksum_counts() : hosts_[rank]->summation->checksum_counts();
  }
  mlt::base::DurationNs message_ns = 100'000;
  std::map<std::pair<std::uint16_t, std::uint16_t>, mlt::base::DurationNs> slow_ns;  // from the first to the second
  TimeNs next_timeout(std::uint16_t worker) const { return hosts_[worker]->push_pull->next_timeout(); }
  Summation& summation(std::uint16_t rank) { return *hosts_[rank]->summation; }
  // What the rank knows of who takes no further part; of a job with several services.
  const Survivors& survivors(std::uint16_t rank) const {
    return rank < workers_ ? *hosts_[rank]->push_pull->survivors() : hosts_[rank]->summation->survivors();
  }

 private:
  // Changes a bit of the first packet of a receive.
  struct Damage {
    core::ReceiveRequest request;
    bool is_done = false;

    static void place(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
      auto& [request, is_done] = *static_cast<Damage*>(context);
      std::vector<std::byte> arrived(payload.begin(), payload.end());
      if (!arrived.empty() && !std::exchange(is_done, true)) arrived.back() ^= std::byte{4};
      if (request.place != nullptr) return request.place(request.place_context, offset_bytes, arrived);
      std::ranges::copy(arrived, request.data.begin() + static_cast<std::ptrdiff_t>(offset_bytes));
    }
  };
  bool has_checksums(std::uint16_t rank, const SummationConfig& config) const {
    return config.checksums && without_checksums_ != rank;
  }

  struct Host final : Verbs {
    Host(Job& owner, std::uint16_t own_rank) : job(owner), rank(own_rank) {}
    mlt::core::PostStatus post_send(TimeNs, const mlt::core::SendRequest& request) override {
      return job.network_.send(rank, request);
    }
    mlt::core::PostStatus post_recv(TimeNs, const mlt::core::ReceiveRequest& request) override {
      if (!job.is_damaged(rank, request)) return job.network_.receive(rank, request);
      job.damages_.push_back(std::make_unique<Damage>(Damage{request}));
      core::ReceiveRequest damaged = request;
      damaged.place = &Damage::place;
      damaged.place_context = job.damages_.back().get();
      return job.network_.receive(rank, damaged);
    }
    void cancel(TimeNs, OperationId operation, mlt::core::CompletionKind kind) override {
      job.network_.cancel(rank, operation, kind);
    }
    bool send_message(std::uint16_t peer, std::span<const std::byte> bytes) override {
      if (job.dead_.contains(peer) || job.dead_.contains(rank)) return false;
      if (job.closed_.contains({rank, peer})) return false;
      const auto message = decode(bytes);
      REQUIRE(message.has_value());
      const auto slow = job.slow_ns.find({rank, peer});
      const auto delay_ns = slow == job.slow_ns.end() ? job.message_ns : slow->second;
      job.network_.at(job.network_.now() + delay_ns, [this, peer, copy = *message] {
        Host& to = *job.hosts_[peer];
        if (job.dead_.contains(peer) || job.silent_ == peer || job.closed_.contains({peer, rank})) return;
        if (to.push_pull) to.push_pull->on_message(job.network_.now(), rank, copy);
        if (to.summation) to.summation->on_message(job.network_.now(), rank, copy);
        job.network_.wake(peer);
      });
      return true;
    }
    std::uint32_t segment_bytes(std::uint16_t) const override { return 1'432; }
    std::string peer_error(std::uint16_t peer) const override { return job.dead_.contains(peer) ? job.cause : ""; }
    void notice(const std::string& text) override { notices.push_back(text); }
    void excluded(const std::string& text) override { exclusion = text; }

    Job& job;
    std::uint16_t rank;
    std::unique_ptr<PushPull> push_pull;
    std::unique_ptr<Summation> summation;
    std::size_t taken = 0;
    TimeNs timer_ns = mlt::base::kNever;  // the earliest that is scheduled
    std::vector<PushPullDone> done;
    std::vector<std::string> notices;
    std::string exclusion;
  };

  static SimulationConfig with_hosts(SimulationConfig config, std::uint16_t hosts) {
    config.hosts = hosts;
    return config;
  }

  void pump() {
    bool any = true;
    while (any) {
      any = false;
      for (const auto& host : hosts_) {
        if (dead_.contains(host->rank)) continue;
        while (host->taken < network_.completed(host->rank).size()) {
          const auto completed = network_.completed(host->rank)[host->taken++];
          mlt::core::Completion completion = completed;
          completion.received_bitmap = completed.bitmap;
          any = true;
          if (host->push_pull) host->push_pull->on_completion(network_.now(), completion);
          if (host->summation) host->summation->on_completion(network_.now(), completion);
        }
        if (host->summation) host->summation->retry(network_.now());
        schedule(*host);
        if (!host->push_pull) continue;
        host->push_pull->retry(network_.now());
        PushPullDone done;
        while (host->push_pull->poll_done(done)) host->done.push_back(done);
      }
    }
  }

  void end_connection(std::uint16_t at, std::uint16_t rank) {
    network_.disconnect(at, rank);
    notice_end(at, rank);
  }
  void notice_end(std::uint16_t at, std::uint16_t rank) {
    closed_.insert({at, rank});
    if (hosts_[at]->push_pull) hosts_[at]->push_pull->on_peer_down(network_.now(), rank);
    if (hosts_[at]->summation) hosts_[at]->summation->on_peer_down(network_.now(), rank);
    network_.wake(at);
  }

  void schedule(Host& host) {
    const TimeNs due = host.summation ? host.summation->next_timeout() : host.push_pull->next_timeout();
    if (due >= host.timer_ns || due == mlt::base::kNever || dead_.contains(host.rank)) return;
    host.timer_ns = due;
    network_.at(due, [this, &host] {
      host.timer_ns = mlt::base::kNever;
      if (dead_.contains(host.rank)) return;
      if (host.summation) host.summation->on_timeout(network_.now());
      if (host.push_pull) host.push_pull->on_timeout(network_.now());
      network_.wake(host.rank);
      schedule(host);
    });
  }

  std::optional<std::uint16_t> without_checksums_;
  std::uint16_t workers_;
  Simulation network_;
  std::vector<std::unique_ptr<Damage>> damages_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::set<std::uint16_t> dead_;
  std::set<std::pair<std::uint16_t, std::uint16_t>> cut_;     // pairs whose connection ended, or will
  std::set<std::pair<std::uint16_t, std::uint16_t>> closed_;  // a rank, and one whose connection ended there
  std::optional<std::uint16_t> silent_;
};

inline PushPullRequest push_pull_of(std::uint64_t key, std::vector<float>& values, double bound) {
  PushPullRequest request;
  request.operation = key + 1;
  request.key = key;
  request.input = values;
  request.output = values;
  request.loss_bound = bound;
  return request;
}

inline SimulationConfig lossy(double drop, std::uint64_t seed = SimulationConfig{}.seed) {
  SimulationConfig config;
  config.seed = seed;
  config.link.data.drop = config.link.control.drop = drop;
  return config;
}

// Of half of all seeds equal ones, else drawn, the same for all workers; some services have none. Not from the
// scenario's own draws, which stay the same.
inline std::vector<std::optional<ServiceLoads>> drawn_loads(std::uint64_t seed, std::uint16_t workers,
                                                            std::uint16_t services) {
  mlt::base::Prng prng(seed * 1'000'003);
  if (prng.chance(0.5)) return {};
  std::vector<double> loads;
  for (std::uint16_t i = 0; i < services; ++i) loads.push_back(prng.chance(0.2) ? 0 : prng.uniform());
  loads[prng.below(services)] += 0.3;
  return std::vector<std::optional<ServiceLoads>>(workers, ServiceLoads(loads));
}

inline SummationConfig may_die(std::uint16_t workers) {
  SummationConfig config;
  config.max_dead_workers = workers;
  return config;
}

inline SummationConfig waits(mlt::base::DurationNs duration) {
  SummationConfig config;
  config.max_wait_ns = duration;
  return config;
}

}  // namespace mlt::test
