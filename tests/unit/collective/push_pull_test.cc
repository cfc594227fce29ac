// Push-pull and summation over production endpoints under virtual time: workers and services on one virtual network.
#include "collective/push_pull.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "base/prng.h"
#include "collective/summation.h"
#include "support/simulation.h"

namespace {

using mlt::base::TimeNs;
using namespace mlt::collective;
using mlt::test::Simulation;
using mlt::test::SimulationConfig;

constexpr mlt::base::DurationNs kDefaultTimeoutNs = 2 * mlt::base::kSecond;

// Drives the two machines as the engine does: completions in, posts and messages out.
class Job {
 public:
  Job(const SimulationConfig& network_config, std::uint16_t workers, std::uint16_t services,
      SummationConfig summation_config = {}, std::uint16_t max_dead_services = 0)
      : workers_(workers), network_(with_hosts(network_config, static_cast<std::uint16_t>(workers + services))) {
    std::vector<std::uint16_t> service_ranks;
    for (std::uint16_t i = 0; i < services; ++i) service_ranks.push_back(static_cast<std::uint16_t>(workers + i));
    for (std::uint16_t rank = 0; rank < workers + services; ++rank) {
      hosts_.push_back(std::make_unique<Host>(*this, rank));
      if (rank < workers) {
        hosts_.back()->push_pull =
            std::make_unique<PushPull>(service_ranks, *hosts_.back(), kDefaultTimeoutNs, max_dead_services);
      } else {
        summation_config.workers = workers;
        hosts_.back()->summation = std::make_unique<Summation>(summation_config, *hosts_.back());
      }
    }
  }

  Simulation& network() { return network_; }
  void start(std::uint16_t worker, const PushPullRequest& request) {
    hosts_[worker]->push_pull->start(network_.now(), request);
    const TimeNs due = hosts_[worker]->push_pull->next_timeout();
    if (due != mlt::base::kNever) {
      network_.at(due, [this, worker] { hosts_[worker]->push_pull->on_timeout(network_.now()); });
    }
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
  // One connection ends; both ranks live.
  void cut(std::uint16_t a, std::uint16_t b) {
    end_connection(a, b);
    if (hosts_[b]->push_pull) hosts_[b]->push_pull->on_peer_down(network_.now(), a);
    if (hosts_[b]->summation) hosts_[b]->summation->on_peer_down(network_.now(), a);
    cut_.insert({std::min(a, b), std::max(a, b)});
    pump();
  }
  bool is_dead(std::uint16_t rank) const { return dead_.contains(rank); }
  const std::vector<PushPullDone>& done(std::uint16_t worker) const { return hosts_[worker]->done; }
  const std::vector<std::string>& notices(std::uint16_t rank) const { return hosts_[rank]->notices; }
  std::string cause;  // of the death, as the ranks know it
  mlt::base::DurationNs message_ns = 100'000;
  TimeNs next_timeout(std::uint16_t worker) const { return hosts_[worker]->push_pull->next_timeout(); }
  Summation& summation(std::uint16_t rank) { return *hosts_[rank]->summation; }

 private:
  struct Host final : Verbs {
    Host(Job& owner, std::uint16_t own_rank) : job(owner), rank(own_rank) {}
    mlt::core::PostStatus post_send(TimeNs, const mlt::core::SendRequest& request) override {
      return job.network_.send(rank, request);
    }
    mlt::core::PostStatus post_recv(TimeNs, const mlt::core::ReceiveRequest& request) override {
      return job.network_.receive(rank, request);
    }
    void cancel(TimeNs, OperationId operation, mlt::core::CompletionKind kind) override {
      job.network_.cancel(rank, operation, kind);
    }
    bool send_message(std::uint16_t peer, std::span<const std::byte> bytes) override {
      if (job.dead_.contains(peer) || job.dead_.contains(rank)) return false;
      if (job.cut_.contains({std::min(peer, rank), std::max(peer, rank)})) return false;
      const auto message = decode(bytes);
      REQUIRE(message.has_value());
      job.network_.at(job.network_.now() + job.message_ns, [this, peer, copy = *message] {
        Host& to = *job.hosts_[peer];
        if (job.dead_.contains(peer) || job.silent_ == peer) return;
        if (to.push_pull) to.push_pull->on_message(job.network_.now(), rank, copy);
        if (to.summation) to.summation->on_message(job.network_.now(), rank, copy);
      });
      return true;
    }
    std::uint32_t segment_bytes(std::uint16_t) const override { return 1'432; }
    std::string peer_error(std::uint16_t peer) const override { return job.dead_.contains(peer) ? job.cause : ""; }
    void notice(const std::string& text) override { notices.push_back(text); }

    Job& job;
    std::uint16_t rank;
    std::unique_ptr<PushPull> push_pull;
    std::unique_ptr<Summation> summation;
    std::size_t taken = 0;
    TimeNs timer_ns = mlt::base::kNever;  // of the service: the earliest that is scheduled
    std::vector<PushPullDone> done;
    std::vector<std::string> notices;
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
        if (host->summation) {
          host->summation->retry(network_.now());
          schedule(*host);
        }
        if (!host->push_pull) continue;
        host->push_pull->retry(network_.now());
        PushPullDone done;
        while (host->push_pull->poll_done(done)) host->done.push_back(done);
      }
    }
  }

  void end_connection(std::uint16_t at, std::uint16_t rank) {
    network_.disconnect(at, rank);
    if (hosts_[at]->push_pull) hosts_[at]->push_pull->on_peer_down(network_.now(), rank);
    if (hosts_[at]->summation) hosts_[at]->summation->on_peer_down(network_.now(), rank);
  }

  void schedule(Host& host) {
    const TimeNs due = host.summation->next_timeout();
    if (due >= host.timer_ns || due == mlt::base::kNever || dead_.contains(host.rank)) return;
    host.timer_ns = due;
    network_.at(due, [this, &host] {
      host.timer_ns = mlt::base::kNever;
      if (!dead_.contains(host.rank)) host.summation->on_timeout(network_.now());
      schedule(host);
    });
  }

  std::uint16_t workers_;
  Simulation network_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::set<std::uint16_t> dead_;
  std::set<std::pair<std::uint16_t, std::uint16_t>> cut_;
  std::optional<std::uint16_t> silent_;
};

// Small integers: their sums and halves are exact, whatever the order.
std::vector<float> gradient(std::size_t elements, std::uint16_t worker, std::size_t iteration) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>((i * 7 + worker * 13 + iteration * 5) % 97) + 1.0F;
  }
  return values;
}

PushPullRequest request_of(std::uint64_t key, std::vector<float>& values, double bound) {
  PushPullRequest request;
  request.operation = key + 1;
  request.key = key;
  request.input = values;
  request.output = values;
  request.loss_bound = bound;
  return request;
}

SimulationConfig lossy(double drop, std::uint64_t seed = SimulationConfig{}.seed) {
  SimulationConfig config;
  config.seed = seed;
  config.link.data.drop = config.link.control.drop = drop;
  return config;
}

}  // namespace

TEST_CASE("push_pull__averages_exactly_without_loss_over_partitions_and_services") {
  // 8 partitions over 2 services, 3 iterations, in place.
  const std::size_t elements = kPartitionElements * 5 / 2;
  Job job(SimulationConfig{}, 3, 2);
  for (std::size_t iteration = 0; iteration < 3; ++iteration) {
    std::vector<std::vector<float>> tensors;
    for (std::uint16_t worker = 0; worker < 3; ++worker) tensors.push_back(gradient(elements, worker, iteration));
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(9, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, iteration + 1));
    bool exact = true;
    for (std::size_t i = 0; i < elements; ++i) {
      float sum = 0;
      for (std::uint16_t worker = 0; worker < 3; ++worker) {
        sum += static_cast<float>((i * 7 + worker * 13 + iteration * 5) % 97) + 1.0F;
      }
      exact = exact && tensors[0][i] == sum * (1.0F / 3.0F);
    }
    CHECK(exact);
    CHECK(tensors[0] == tensors[1]);
    CHECK(tensors[0] == tensors[2]);
  }
  CHECK(job.summation(3).rounds_summed() + job.summation(4).rounds_summed() == 24);
}

TEST_CASE("push_pull__under_loss_all_workers_get_the_same_bits_averaged_by_what_arrived") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Job job(lossy(0.05, seed), 2, 1);
    const std::size_t elements = 40'000;
    for (std::size_t iteration = 0; iteration < 5; ++iteration) {
      std::vector<std::vector<float>> tensors{gradient(elements, 0, iteration), gradient(elements, 1, iteration)};
      const auto pushed = tensors;
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.2));
      for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, iteration + 1));
      CHECK(tensors[0] == tensors[1]);
      // Each element is the mean of both, one worker's own, or, where both lost it, zero.
      std::size_t mean = 0, single = 0, neither = 0, wrong = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        const float got = tensors[0][i];
        if (got == (pushed[0][i] + pushed[1][i]) * 0.5F) {
          ++mean;
        } else if (got == pushed[0][i] || got == pushed[1][i]) {
          ++single;
        } else if (got == 0.0F) {
          ++neither;
        } else {
          ++wrong;
        }
      }
      CHECK(wrong == 0);
      const std::uint64_t missing = job.done(0)[iteration].missing_bytes + job.done(1)[iteration].missing_bytes;
      CHECK(missing <= 2 * static_cast<std::uint64_t>(0.2 * elements) * sizeof(float));
      CHECK((single + 2 * neither) * sizeof(float) <= missing);
      CHECK(mean > elements / 2);
    }
  }
}

// In place, and into memory of its own, whose contents no worker may end with.
TEST_CASE("push_pull__with_lossy_results_a_worker_keeps_its_own_term_of_what_the_result_misses") {
  std::size_t own = 0, different = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Job job(lossy(0.05, seed), 2, 1);
    const std::size_t elements = 40'000;
    const double bound = 0.2;
    const std::vector<std::vector<float>> terms{gradient(elements, 0, 0), gradient(elements, 1, 0)};
    std::vector<std::vector<float>> inputs = terms, outputs(2, std::vector<float>(elements, -1.0F));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      PushPullRequest request = request_of(1, inputs[worker], bound);
      if (seed % 2 == 0) request.output = outputs[worker];
      request.lossy_results = true;
      job.start(worker, request);
    }
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
    const auto& results = seed % 2 == 0 ? outputs : inputs;
    std::uint64_t lacking = 0;
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      CHECK(job.done(worker)[0].error == "");
      const std::uint64_t missing = job.done(worker)[0].missing_bytes;
      CHECK(missing <= 2 * static_cast<std::uint64_t>(bound * elements) * sizeof(float));
      lacking += missing;
      std::size_t not_mean = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        const float got = results[worker][i];
        if (got == (terms[0][i] + terms[1][i]) * 0.5F) continue;
        REQUIRE((got == terms[0][i] || got == terms[1][i] || got == 0.0F));
        ++not_mean;
        own += got == terms[worker][i] ? 1U : 0U;
        different += got != results[1U - worker][i] ? 1U : 0U;
      }
      // Lost by one of the two pushes, or by this worker's result.
      CHECK(static_cast<double>(not_mean) <= 3 * bound * elements);
    }
    CHECK(lacking > 0);
  }
  CHECK(own > 1'000);
  CHECK(different > 1'000);
}

TEST_CASE("push_pull__bound_zero_under_loss_is_exact") {
  SimulationConfig config = lossy(0.1);
  config.link.data.duplicate = 0.05;
  config.link.data.reorder = 0.05;
  Job job(config, 2, 1);
  std::vector<std::vector<float>> tensors{gradient(100'000, 0, 0), gradient(100'000, 1, 0)};
  const auto pushed = tensors;
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  bool exact = true;
  for (std::size_t i = 0; i < 100'000; ++i) exact = exact && tensors[0][i] == (pushed[0][i] + pushed[1][i]) * 0.5F;
  CHECK(exact);
  CHECK(tensors[0] == tensors[1]);
  CHECK(job.done(0)[0].missing_bytes == 0);
}

TEST_CASE("push_pull__sum_without_average_and_empty_tensor") {
  Job job(SimulationConfig{}, 2, 1);
  std::vector<std::vector<float>> tensors{{1, 2, 3}, {10, 20, 30}};
  std::vector<float> nothing[2];
  for (std::uint16_t worker = 0; worker < 2; ++worker) {
    PushPullRequest request = request_of(1, tensors[worker], 0.0);
    request.average = false;
    job.start(worker, request);
    job.start(worker, request_of(2, nothing[worker], 0.0));
  }
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 2));
  CHECK(tensors[0] == std::vector<float>{11, 22, 33});
  CHECK(tensors[1] == tensors[0]);
}

TEST_CASE("push_pull__different_sizes_are_refused_with_both_named_to_every_worker") {
  for (const std::size_t elements :
       {std::size_t{20}, std::size_t{1'000'000}}) {  // also of another number of partitions
    Job job(SimulationConfig{}, 3, 1);
    std::vector<float> small(10), large(elements), same(10);
    job.start(0, request_of(4, small, 0.0));
    job.run_for(mlt::base::kMillisecond);  // its push is on the way, or has arrived
    job.start(1, request_of(4, large, 0.0));
    REQUIRE(job.run_until_done(0, 1));
    REQUIRE(job.run_until_done(1, 1));
    job.start(2, request_of(4, same, 0.0));
    REQUIRE(job.run_until_done(2, 1));
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const auto& done = job.done(rank)[0];
      CHECK(done.status == mlt::core::CompletionStatus::kSizeMismatch);
      CHECK(done.error.find("rank 1 has " + std::to_string(elements) + " elements") != std::string::npos);
      CHECK(done.error.find("rank 0 has 10 elements") != std::string::npos);
      CHECK(done.elapsed_ns < mlt::base::kSecond);
      // The key stays refused, at once and with the cause.
      job.start(rank, request_of(4, small, 0.0));
      REQUIRE(job.run_until_done(rank, 2));
      CHECK(job.done(rank)[1].error.find("failed before") != std::string::npos);
    }
    // Other keys go on.
    std::vector<float> three[3] = {gradient(10, 0, 0), gradient(10, 1, 0), gradient(10, 2, 0)};
    for (std::uint16_t rank = 0; rank < 3; ++rank) job.start(rank, request_of(5, three[rank], 0.0));
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      REQUIRE(job.run_until_done(rank, 3));
      CHECK(job.done(rank)[2].status == mlt::core::CompletionStatus::kComplete);
    }
  }
}

TEST_CASE("push_pull__only_the_service_of_a_partition_ends_it") {
  Job job(SimulationConfig{}, 3, 2);
  // Partition 0 of key 4 is of service rank 3.
  std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(4, tensors[worker], 0.0));
  for (const std::uint16_t outsider : {std::uint16_t{2}, std::uint16_t{4}}) {
    job.say(outsider, 0, Refused{4, 0, "no"});
    job.say(outsider, 0, Aborted{4, 0, 1});
    job.say(outsider, 0, Registered{4, 0, true});
  }
  for (std::uint16_t worker = 0; worker < 3; ++worker) {
    REQUIRE(job.run_until_done(worker, 1));
    CHECK(job.done(worker)[0].error == "");
    CHECK(tensors[worker][0] == 1.0F);
  }
  job.say(3, 0, Refused{4, 0, "no"});
  job.start(0, request_of(4, tensors[0], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error.find("rank 3 rejected key") != std::string::npos);
}

TEST_CASE("push_pull__a_dead_worker_fails_the_others_with_its_rank") {
  Job job(SimulationConfig{}, 3, 1);
  std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
  job.start(0, request_of(1, tensors[0], 0.0));
  job.start(1, request_of(1, tensors[1], 0.0));
  job.run_for(5'000'000);
  CHECK(job.done(0).empty());
  job.kill(2);
  REQUIRE(job.run_until_done(0, 1));
  REQUIRE(job.run_until_done(1, 1));
  for (std::uint16_t worker = 0; worker < 2; ++worker) {
    CHECK(job.done(worker)[0].failed_peer == 2);
    CHECK(job.done(worker)[0].error.find("rank 2") != std::string::npos);
  }
}

// Parts of the sum have gone back, and their cancellation overtakes the message that names the dead worker.
TEST_CASE("push_pull__a_worker_that_dies_while_it_pushes_is_named_to_all_others") {
  std::size_t failed = 0;
  for (std::int64_t after_us = 200; after_us <= 3'000; after_us += 200) {
    CAPTURE(after_us);
    Job job(SimulationConfig{}, 3, 1);
    std::vector<std::vector<float>> tensors(3, std::vector<float>(250'000, 1.0F));
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
    job.run_for(after_us * 1'000);
    job.message_ns = 5'000'000;
    job.kill(2);
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, 1));
      const PushPullDone& done = job.done(worker)[0];
      if (done.error.empty()) continue;  // it was complete
      ++failed;
      CHECK(done.failed_peer == 2);
      CHECK(done.error.find("rank 2") != std::string::npos);
    }
  }
  CHECK(failed > 0);
}

TEST_CASE("push_pull__results_go_back_while_pushes_arrive") {
  const std::size_t elements = 250'000;  // one partition
  Job job(SimulationConfig{}, 1, 1);
  std::vector<float> tensor(elements, 1.0F);
  job.start(0, request_of(1, tensor, 0.0));
  REQUIRE(job.run_until_done(0, 1));
  job.start(0, request_of(1, tensor, 0.0));  // registered
  REQUIRE(job.run_until_done(0, 2));
  const mlt::base::DurationNs both_ways = job.done(0)[1].elapsed_ns;
  Simulation network{SimulationConfig{}};
  mlt::core::SendRequest send;
  send.peer = 1;
  send.tag = 1;
  send.data = std::as_bytes(std::span(tensor));
  send.element = mlt::wire::ElementType::kFloat32;
  mlt::core::ReceiveRequest receive;
  receive.peer = 0;
  receive.tag = 1;
  receive.data = std::as_writable_bytes(std::span(tensor));
  receive.element = mlt::wire::ElementType::kFloat32;
  // Warm like the second push-pull.
  mlt::base::DurationNs one_way = 0;
  for (std::size_t count = 1; count <= 2; ++count) {
    REQUIRE(network.receive(1, receive) == mlt::core::PostStatus::kPosted);
    REQUIRE(network.send(0, send) == mlt::core::PostStatus::kPosted);
    REQUIRE(network.run_until_completed(0, count));
    one_way = network.completed(0).back().elapsed_ns;
  }
  CAPTURE(both_ways);
  CAPTURE(one_way);
  CHECK(both_ways < one_way * 3 / 2);
}

TEST_CASE("push_pull__a_dead_service_fails_the_worker_with_its_rank") {
  Job job(SimulationConfig{}, 2, 1);
  std::vector<float> tensor(5'000, 1.0F);
  job.start(0, request_of(1, tensor, 0.0));
  job.run_for(5'000'000);
  job.kill(2);
  REQUIRE(job.run_until_done(0, 1));
  CHECK(job.done(0)[0].failed_peer == 2);
}

TEST_CASE("push_pull__the_cause_of_a_death_is_named_if_it_is_known") {
  for (const std::uint16_t dead : {std::uint16_t{1}, std::uint16_t{2}}) {  // a worker, the service
    for (const char* cause : {"", "rank 9 failed (ValueError)"}) {
      CAPTURE(dead);
      CAPTURE(cause);
      Job job(SimulationConfig{}, 2, 1);
      job.cause = cause;
      std::vector<float> tensor(5'000, 1.0F);
      job.start(0, request_of(1, tensor, 0.0));
      job.run_for(5'000'000);
      job.kill(dead);
      REQUIRE(job.run_until_done(0, 1));
      const std::string& error = job.done(0)[0].error;
      CAPTURE(error);
      CHECK((error.find("failed or left") == std::string::npos) == (*cause != '\0'));
      CHECK(error.find(cause) != std::string::npos);
    }
  }
}

// Worker 0 leaves after a round of key 1 that it has completed; worker 1 completes it with the same result.
static void leave_after_a_round(Job& job, std::vector<std::vector<float>>& tensors) {
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.1));
  REQUIRE(job.run_until_done(0, 1));
  job.kill(0);
  REQUIRE(job.run_until_done(1, 1));
  CHECK(job.done(1)[0].error == "");
  CHECK(tensors[0] == tensors[1]);
}

TEST_CASE("push_pull__a_worker_that_leaves_after_the_last_round_takes_nothing_from_the_others") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Job job(lossy(0.1, seed), 2, 1);
    std::vector<std::vector<float>> tensors{gradient(50'000, 0, 0), gradient(50'000, 1, 0)};
    leave_after_a_round(job, tensors);
  }
}

TEST_CASE("push_pull__a_partition_that_is_over_does_not_end_the_others_when_a_worker_leaves") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Job job(lossy(0.1, seed), 2, 1);
    const std::size_t elements = kPartitionElements * 2 + 50'000;
    std::vector<std::vector<float>> tensors{gradient(elements, 0, 0), gradient(elements, 1, 0)};
    leave_after_a_round(job, tensors);
    // The next round can't be: it says so when it is started.
    job.start(1, request_of(1, tensors[1], 0.1));
    REQUIRE(job.run_until_done(1, 2));
    CHECK(job.done(1)[1].failed_peer == 0);
  }
}

TEST_CASE("push_pull__one_key_twice_at_a_time_is_refused") {
  Job job(SimulationConfig{}, 2, 1);
  std::vector<float> tensor(100, 1.0F), other(100, 1.0F);
  job.start(0, request_of(1, tensor, 0.0));
  job.start(0, request_of(1, other, 0.0));
  REQUIRE(job.run_until_done(0, 1));
  CHECK(job.done(0)[0].error.find("in progress") != std::string::npos);
  job.start(1, request_of(1, other, 0.0));
  CHECK(job.run_until_done(1, 1));
  CHECK(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error == "");
}

TEST_CASE("push_pull__a_key_that_is_used_otherwise_names_both_uses") {
  Job job(SimulationConfig{}, 1, 1);
  std::vector<float> tensor(100, 1.0F), other(90, 1.0F);
  job.start(0, request_of(1, tensor, 0.1));
  REQUIRE(job.run_until_done(0, 1));
  PushPullRequest request = request_of(1, other, 0.25);
  request.average = false;
  job.start(0, request);
  REQUIRE(job.run_until_done(0, 2));
  for (const char* fact :
       {"key 1 ", "100 elements, loss bound 0.1, averaged", "90 elements, loss bound 0.25, summed"}) {
    CHECK(job.done(0)[1].error.find(fact) != std::string::npos);
  }
}

TEST_CASE("push_pull__a_service_that_never_confirms_ends_the_key_in_time_with_its_rank") {
  for (const mlt::base::DurationNs timeout_ns : {mlt::base::DurationNs{0}, 500 * mlt::base::kMillisecond}) {
    CAPTURE(timeout_ns);
    Job job(SimulationConfig{}, 1, 2);
    job.silence(2);
    std::vector<float> tensor(2 * kMinPartitionBytes / sizeof(float), 1.0F);
    PushPullRequest request = request_of(0, tensor, 0.0);  // partition 1 is on rank 2
    request.timeout_ns = timeout_ns;
    job.start(0, request);
    const mlt::base::DurationNs expected = timeout_ns > 0 ? timeout_ns : kDefaultTimeoutNs;
    job.run_for(expected - 1'000'000);
    CHECK(job.done(0).empty());
    REQUIRE(job.run_until_done(0, 1));
    const PushPullDone& done = job.done(0)[0];
    CHECK(done.status == mlt::core::CompletionStatus::kTimedOut);
    CHECK(done.failed_peer == 2);
    CHECK(done.elapsed_ns == expected);
    CHECK(done.error.find("rank 2 never confirmed") != std::string::npos);
    CHECK(done.error.find("mlt serve") != std::string::npos);
    CHECK(job.next_timeout(0) == mlt::base::kNever);
  }
}

TEST_CASE("push_pull__a_key_that_finds_no_room_in_time_ends_like_the_one_that_takes_it") {
  SimulationConfig config;
  config.endpoint.max_receives = 1;
  Job job(config, 2, 1);  // worker 1 never pushes, so that worker 0's first key holds its only slot
  std::vector<float> first(100, 1.0F), second(100, 1.0F);
  PushPullRequest request = request_of(1, first, 0.0);
  request.timeout_ns = 3 * mlt::base::kSecond;
  job.start(0, request);
  job.run_for(5'000'000);
  request = request_of(2, second, 0.0);
  request.timeout_ns = mlt::base::kSecond;
  job.start(0, request);
  REQUIRE(job.run_until_done(0, 1));
  CHECK(job.done(0)[0].key == 2);
  CHECK(job.done(0)[0].status == mlt::core::CompletionStatus::kTimedOut);
  CHECK(job.done(0)[0].elapsed_ns == mlt::base::kSecond);
  CHECK(job.done(0)[0].error.find("operation slot") != std::string::npos);
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].elapsed_ns == 3 * mlt::base::kSecond);
}

TEST_CASE("summation__more_keys_than_the_endpoint_has_slots_all_get_their_turn") {
  constexpr std::size_t kKeys = 1'100;
  Job job(SimulationConfig{}, 1, 1);
  std::vector<std::vector<float>> tensors(kKeys, std::vector<float>(10, 1.0F));
  for (std::size_t round = 1; round <= 3; ++round) {
    for (std::size_t key = 0; key < kKeys; ++key) job.start(0, request_of(key, tensors[key], 0.0));
    REQUIRE(job.run_until_done(0, round * kKeys));
  }
  std::size_t failed = 0;
  for (const PushPullDone& done : job.done(0)) failed += done.error.empty() ? 0U : 1U;
  CHECK(failed == 0);
  CHECK(job.summation(1).rounds_summed() == 3 * kKeys);
}

// Between two iterations every receive that stands ready is of some other key.
TEST_CASE("summation__receives_that_stand_idle_leave_room_for_the_key_in_use") {
  constexpr std::size_t kKeys = 1'100;
  for (const double drop : {0.0, 0.05}) {
    CAPTURE(drop);
    Job job(lossy(drop), 2, 1);
    std::vector<std::vector<float>> tensors(2, std::vector<float>(10, 1.0F));
    for (std::size_t key = 0; key < kKeys; ++key) {
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(key, tensors[worker], 0.0));
      for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, key + 1));
      REQUIRE(job.done(0)[key].error == "");
      REQUIRE(job.done(1)[key].error == "");
    }
  }
}

TEST_CASE("summation__a_failure_is_announced_also_when_the_last_result_finds_its_worker_gone") {
  SimulationConfig config;
  config.endpoint.max_sends = 1;  // the result for worker 1 waits behind worker 0's
  Job job(config, 2, 1);
  std::vector<std::vector<float>> tensors(2, std::vector<float>(5'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
  job.run_until_summed(2, 1);
  REQUIRE(job.network().run_until_completed(2, 3));  // worker 0 has its result, and the service is yet to notice
  job.kill(1);
  REQUIRE(job.run_until_done(0, 1));
  CHECK(job.done(0)[0].error == "");
  job.start(0, request_of(1, tensors[0], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].status == mlt::core::CompletionStatus::kPeerFailed);
  CHECK(job.done(0)[1].failed_peer == 1);
}

namespace {

SummationConfig may_die(std::uint16_t workers) {
  SummationConfig config;
  config.max_dead_workers = workers;
  return config;
}

SummationConfig waits(mlt::base::DurationNs duration) {
  SummationConfig config;
  config.max_wait_ns = duration;
  return config;
}

// Whether each element is the mean of some workers' pushes, of those in `always` at least.
bool is_mean_of_some(const std::vector<float>& got, const std::vector<std::vector<float>>& pushed,
                     const std::set<std::uint16_t>& always) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    bool found = false;
    for (std::uint32_t subset = 1; subset < (1U << pushed.size()) && !found; ++subset) {
      float sum = 0;
      int terms = 0;
      bool has_all = true;
      for (std::uint16_t worker = 0; worker < pushed.size(); ++worker) {
        const bool is_in = ((subset >> worker) & 1U) != 0;
        if (is_in) sum += pushed[worker][i], ++terms;
        has_all = has_all && (is_in || !always.contains(worker));
      }
      found = has_all && std::abs(got[i] - sum / static_cast<float>(terms)) < 1e-3F;
    }
    if (!found) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("push_pull__a_worker_that_may_die_counts_as_loss_in_the_round_in_flight_and_later") {
  for (const std::uint16_t services : {std::uint16_t{1}, std::uint16_t{2}}) {
    for (std::int64_t after_us = 0; after_us <= 3'000; after_us += 300) {
      CAPTURE(services);
      CAPTURE(after_us);
      Job job(SimulationConfig{}, 3, services, may_die(1));
      const std::size_t elements = 250'000;
      for (std::size_t iteration = 0; iteration < 3; ++iteration) {
        std::vector<std::vector<float>> tensors;
        for (std::uint16_t worker = 0; worker < 3; ++worker) tensors.push_back(gradient(elements, worker, iteration));
        const auto pushed = tensors;
        for (std::uint16_t worker = 0; worker < 3; ++worker) {
          if (!job.is_dead(worker)) job.start(worker, request_of(1, tensors[worker], 0.0));
        }
        if (iteration == 1) {
          job.run_for(after_us * 1'000);
          job.kill(2);
        }
        for (std::uint16_t worker = 0; worker < 3; ++worker) {
          if (job.is_dead(worker)) continue;
          REQUIRE(job.run_until_done(worker, iteration + 1));
          CHECK(job.done(worker)[iteration].error == "");
          CHECK(job.done(worker)[iteration].status == mlt::core::CompletionStatus::kComplete);
        }
        CHECK(tensors[0] == tensors[1]);
        if (iteration == 1) CHECK(is_mean_of_some(tensors[0], pushed, {0, 1}));
        if (iteration == 2) {
          bool exact = true;
          for (std::size_t i = 0; i < elements; ++i) {
            exact = exact && tensors[0][i] == (pushed[0][i] + pushed[1][i]) * 0.5F;
          }
          CHECK(exact);
        }
      }
      CHECK(job.summation(3).workers_gone() == 1);
      REQUIRE(job.notices(3).size() == 1);
      CHECK(job.notices(3)[0].find("rank 2") != std::string::npos);
      CHECK(job.notices(3)[0].find("1 of at most 1") != std::string::npos);
      REQUIRE(job.notices(0).size() == 1);  // not once for each service
      CHECK(job.notices(0)[0].find("rank 2") != std::string::npos);
    }
  }
}

TEST_CASE("push_pull__a_worker_that_dies_before_it_registers_or_before_the_others_do_counts_as_loss") {
  for (const bool is_first : {true, false}) {
    Job job(SimulationConfig{}, 3, 1, may_die(1));
    std::vector<std::vector<float>> tensors{gradient(5'000, 0, 0), gradient(5'000, 1, 0)};
    const auto pushed = tensors;
    if (is_first) job.kill(2);
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
    job.run_for(5'000'000);
    if (!is_first) {
      CHECK(job.done(0).empty());
      job.kill(2);
    }
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
    CHECK(tensors[0] == tensors[1]);
    CHECK(tensors[0][7] == (pushed[0][7] + pushed[1][7]) * 0.5F);
  }
}

TEST_CASE("push_pull__deaths_beyond_the_bound_fail_the_others_and_name_every_dead_worker") {
  for (const char* cause : {"", "its process was killed"}) {
    Job job(SimulationConfig{}, 4, 1, may_die(1));
    job.cause = cause;
    std::vector<std::vector<float>> tensors(4, std::vector<float>(5'000, 1.0F));
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
    job.run_for(5'000'000);
    job.kill(3);
    job.run_for(5'000'000);
    CHECK(job.done(0).empty());
    job.kill(2);
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, 1));
      const PushPullDone& done = job.done(worker)[0];
      CHECK(done.status == mlt::core::CompletionStatus::kPeerFailed);
      CHECK(done.failed_peer == 2);
      CHECK(done.error.find("rank 2") != std::string::npos);
      CHECK(done.error.find(*cause == '\0' ? "before it rank 3 failed" : "before it its process") != std::string::npos);
    }
    // Later keys too.
    job.start(0, request_of(2, tensors[0], 0.0));
    REQUIRE(job.run_until_done(0, 2));
    CHECK(job.done(0)[1].failed_peer == 2);
  }
}

TEST_CASE("push_pull__the_last_worker_does_not_sum_alone") {
  Job job(SimulationConfig{}, 2, 1, may_die(9));
  std::vector<float> tensor(100, 3.0F);
  job.start(0, request_of(1, tensor, 0.0));
  job.kill(1);
  REQUIRE(job.run_until_done(0, 1));  // one is left
  CHECK(job.done(0)[0].error == "");
  CHECK(tensor[0] == 3.0F);
  job.kill(0);
  job.run_for(5'000'000);
  CHECK(job.summation(2).workers_gone() == 2);
}

TEST_CASE("push_pull__gone_from_a_rank_that_is_no_service_is_ignored") {
  Job job(SimulationConfig{}, 3, 1, may_die(1));
  job.say(1, 0, Gone{2, 1});
  job.say(3, 0, Gone{3, 1});
  job.say(3, 0, Gone{~std::uint64_t{0}, 1});
  CHECK(job.notices(0).empty());
  job.say(3, 0, Gone{2, 1});
  CHECK(job.notices(0).size() == 1);
}

TEST_CASE("push_pull__a_late_push_counts_as_loss_within_the_bound_and_its_worker_gets_the_same_result") {
  for (const std::uint32_t standing : {512U, 0U}) {  // its receive stands ready, or is posted on demand
    CAPTURE(standing);
    SummationConfig config = waits(20 * mlt::base::kMillisecond);
    config.max_standing = standing;
    Job job(SimulationConfig{}, 3, 1, config);
    const std::size_t elements = 50'000;
    const double bound = 0.4;  // of three workers one may be missing
    for (std::size_t iteration = 0; iteration < 6; ++iteration) {
      CAPTURE(iteration);
      std::vector<std::vector<float>> tensors;
      for (std::uint16_t worker = 0; worker < 3; ++worker) tensors.push_back(gradient(elements, worker, iteration));
      const auto pushed = tensors;
      const bool is_late = iteration == 1 || iteration == 2 || iteration == 4;
      for (std::uint16_t worker = 0; worker < (is_late ? 2 : 3); ++worker) {
        job.start(worker, request_of(1, tensors[worker], bound));
      }
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        REQUIRE(job.run_until_done(worker, iteration + 1));
        CHECK(job.done(worker)[iteration].error == "");
      }
      if (is_late) job.start(2, request_of(1, tensors[2], bound));
      REQUIRE(job.run_until_done(2, iteration + 1));
      const PushPullDone& done = job.done(2)[iteration];
      CHECK(done.error == "");
      CHECK(done.missing_bytes == (is_late ? elements * sizeof(float) : 0));
      CHECK(tensors[0] == tensors[1]);
      CHECK(tensors[0] == tensors[2]);
      const float expected =
          is_late ? (pushed[0][9] + pushed[1][9]) * 0.5F : (pushed[0][9] + pushed[1][9] + pushed[2][9]) * (1.0F / 3.0F);
      CHECK(tensors[0][9] == expected);
    }
    CHECK(job.summation(3).late_pushes() == 3);
    REQUIRE(job.notices(3).size() == 1);  // one in a second
    CHECK(job.notices(3)[0].find("no push of rank 2 within 20 ms") != std::string::npos);
  }
}

// The two buffers of a service: results of a round must have left before the round after the next begins.
TEST_CASE("push_pull__others_run_two_rounds_ahead_of_a_late_worker_which_then_catches_up") {
  Job job(SimulationConfig{}, 3, 1, waits(200 * mlt::base::kMillisecond));
  const std::size_t elements = 20'000;
  std::vector<std::vector<std::vector<float>>> tensors(4);
  const auto start = [&](std::uint16_t worker, std::size_t iteration) {
    job.start(worker, request_of(1, tensors[iteration][worker], 0.4));
  };
  for (std::size_t iteration = 0; iteration < 4; ++iteration) {
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      tensors[iteration].push_back(gradient(elements, worker, iteration));
    }
  }
  for (std::uint16_t worker = 0; worker < 3; ++worker) start(worker, 0);
  for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
  for (const std::size_t iteration : {std::size_t{1}, std::size_t{2}}) {
    for (std::uint16_t worker = 0; worker < 2; ++worker) start(worker, iteration);
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, iteration + 1));
  }
  for (std::uint16_t worker = 0; worker < 2; ++worker) start(worker, 3);
  job.run_for(100 * mlt::base::kMillisecond);
  CHECK(job.done(0).size() == 3);
  for (const std::size_t iteration : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    start(2, iteration);
    REQUIRE(job.run_until_done(2, iteration + 1));
    CHECK(job.done(2)[iteration].error == "");
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, iteration + 1));
    CHECK(tensors[iteration][0] == tensors[iteration][2]);
    CHECK(tensors[iteration][1] == tensors[iteration][2]);
  }
  CHECK(job.done(2)[3].missing_bytes == 0);
}

TEST_CASE("push_pull__a_late_push_fails_an_exact_round_and_names_the_late_workers_to_all") {
  for (const double bound : {0.0, 0.1}) {  // 0.1: the two that are late are more than that
    CAPTURE(bound);
    Job job(SimulationConfig{}, 4, 1, waits(20 * mlt::base::kMillisecond));
    const std::size_t elements = 50'000;
    std::vector<std::vector<float>> tensors(4, std::vector<float>(elements, 1.0F));
    for (std::uint16_t worker = 0; worker < 4; ++worker) job.start(worker, request_of(1, tensors[worker], bound));
    for (std::uint16_t worker = 0; worker < 4; ++worker) REQUIRE(job.run_until_done(worker, 1));
    const TimeNs began = job.network().now();
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], bound));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, 2));
      const PushPullDone& done = job.done(worker)[1];
      CHECK(done.status == mlt::core::CompletionStatus::kTimedOut);
      CHECK(done.failed_peer == 2);
      CHECK(done.error.find("rank 2, rank 3 within 20 ms") != std::string::npos);
    }
    CHECK(job.network().now() - began < 100 * mlt::base::kMillisecond);
    job.start(2, request_of(1, tensors[2], bound));
    REQUIRE(job.run_until_done(2, 2));
    CHECK(job.done(2)[1].error.find("rank 2, rank 3") != std::string::npos);
  }
}

TEST_CASE("push_pull__the_clock_of_late_pushes_waits_for_every_registration_and_not_for_dead_workers") {
  SummationConfig config = waits(20 * mlt::base::kMillisecond);
  config.max_dead_workers = 1;
  Job job(SimulationConfig{}, 3, 1, config);
  std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
  job.start(0, request_of(1, tensors[0], 0.0));
  job.run_for(500 * mlt::base::kMillisecond);  // the first step of the others may take long
  CHECK(job.done(0).empty());
  job.kill(1);
  job.run_for(500 * mlt::base::kMillisecond);
  CHECK(job.done(0).empty());
  job.start(2, request_of(1, tensors[2], 0.0));
  REQUIRE(job.run_until_done(0, 1));
  REQUIRE(job.run_until_done(2, 1));
  CHECK(job.done(0)[0].error == "");
  job.start(0, request_of(1, tensors[0], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].failed_peer == 2);
}

// It answers heartbeats, and never comes.
TEST_CASE("push_pull__a_worker_that_takes_no_result_is_named_or_left_out") {
  for (const std::uint16_t may_lose : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(may_lose);
    SummationConfig config = waits(20 * mlt::base::kMillisecond);
    config.max_dead_workers = may_lose;
    Job job(SimulationConfig{}, 3, 1, config);
    std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(1, tensors[worker], 0.4));
    for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
    for (std::size_t round = 2; round <= 6; ++round) {
      const TimeNs began = job.network().now();
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.4));
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        REQUIRE(job.run_until_done(worker, round));
        const PushPullDone& done = job.done(worker)[round - 1];
        CHECK(done.error.empty() == (may_lose == 1 || round < 4));
        if (done.error.empty() || round > 4) continue;
        CHECK(done.status == mlt::core::CompletionStatus::kTimedOut);
        CHECK(done.failed_peer == 2);
        CHECK(done.error.find("rank 2 did not take a result for 20 ms") != std::string::npos);
      }
      CHECK(job.network().now() - began < 200 * mlt::base::kMillisecond);
    }
    CHECK(job.summation(3).workers_gone() == may_lose);
    if (may_lose == 0) continue;
    job.start(2, request_of(1, tensors[2], 0.4));  // it learns that the others went on
    REQUIRE(job.run_until_done(2, 2));
    CHECK(job.done(2)[1].error.find("rank 2 did not take a result") != std::string::npos);
  }
}

TEST_CASE("push_pull__a_late_worker_of_an_exact_sum_is_left_out_where_so_many_may_be_dead") {
  SummationConfig config = waits(20 * mlt::base::kMillisecond);
  config.max_dead_workers = 1;
  Job job(SimulationConfig{}, 3, 2, config);
  std::vector<std::vector<float>> tensors(3, std::vector<float>(300'000));
  const auto fill = [&] {
    for (std::uint16_t worker = 0; worker < 3; ++worker) std::ranges::fill(tensors[worker], 1.0F + worker);
  };
  fill();
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
  for (std::size_t round = 2; round <= 5; ++round) {
    fill();
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, round));
      CHECK(job.done(worker)[round - 1].error == "");
      CHECK(tensors[worker] == std::vector<float>(300'000, 1.5F));
    }
  }
  CHECK(job.summation(3).workers_gone() == 1);
  CHECK(job.summation(4).workers_gone() == 1);
}

TEST_CASE("push_pull__failures_are_announced_while_a_late_worker_has_not_taken_its_result") {
  Job job(SimulationConfig{}, 3, 1, waits(20 * mlt::base::kMillisecond));
  std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(1, tensors[worker], 0.4));
  for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
  for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{2}}) {
    job.start(worker, request_of(1, tensors[worker], 0.4));
  }
  for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{2}}) REQUIRE(job.run_until_done(worker, 2));
  job.start(0, request_of(1, tensors[0], 0.4));
  job.run_for(2 * mlt::base::kMillisecond);
  job.kill(2);
  job.run_for(10 * mlt::base::kMillisecond);
  REQUIRE(job.done(0).size() == 3);
  CHECK(job.done(0)[2].failed_peer == 2);
}

// Both live: to the service the worker is dead, and the worker's push-pulls fail.
TEST_CASE("push_pull__a_connection_that_breaks_between_a_worker_and_a_service_costs_that_worker_alone") {
  for (std::int64_t after_us = 0; after_us <= 3'000; after_us += 250) {
    CAPTURE(after_us);
    Job job(SimulationConfig{}, 3, 2, may_die(1));
    std::vector<std::vector<float>> tensors(3, std::vector<float>(300'000));
    const auto start = [&](std::uint16_t worker) {
      std::ranges::fill(tensors[worker], 1.0F + worker);
      job.start(worker, request_of(1, tensors[worker], 0.0));
    };
    for (std::uint16_t worker = 0; worker < 3; ++worker) start(worker);
    for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
    for (std::uint16_t worker = 0; worker < 3; ++worker) start(worker);
    job.run_for(after_us * 1'000);
    const bool was_done = job.done(2).size() == 2;
    job.cut(2, 3);
    if (was_done) job.kill(2);  // it has no push that it could cancel
    if (!was_done) {
      REQUIRE(job.run_until_done(2, 2));
      CHECK(job.done(2)[1].failed_peer == 3);
      job.kill(2);
    }
    for (std::size_t round = 2; round <= 4; ++round) {
      if (round > 2) start(0), start(1);
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        REQUIRE(job.run_until_done(worker, round));
        CHECK(job.done(worker)[round - 1].error == "");
      }
      CHECK(tensors[0] == tensors[1]);
    }
    CHECK(tensors[0] == std::vector<float>(300'000, 1.5F));
  }
}

TEST_CASE("push_pull__a_takeover_names_the_workers_that_do_not_report") {
  SummationConfig config;
  config.max_takeover_wait_ns = 50 * mlt::base::kMillisecond;
  config.max_dead_workers = 1;
  Job job(SimulationConfig{}, 3, 2, config, 1);
  std::vector<std::vector<float>> tensors(3, std::vector<float>(300'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
  job.cut(2, 3);
  job.start(2, request_of(1, tensors[2], 0.0));
  REQUIRE(job.run_until_done(2, 2));
  CHECK(job.done(2)[1].elapsed_ns < 100 * mlt::base::kMillisecond);
  CHECK(job.done(2)[1].error.find("gone for rank 2, but not for rank 0, rank 1") != std::string::npos);
}

TEST_CASE("summation__a_move_with_results_to_a_partition_that_was_registered_is_refused_to_all") {
  Job job(SimulationConfig{}, 2, 2, {}, 1);
  std::vector<std::vector<float>> tensors(2, std::vector<float>(300'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  Register shape;
  shape.key = 2;
  shape.elements = 10;
  shape.tensor_elements = 10;
  shape.segment_bytes = 1'432;
  job.summation(2).on_message(job.network().now(), 0, shape);
  job.summation(2).on_message(job.network().now(), 1, Move{shape, 1, {}});
  std::vector<float> tensor(10, 1.0F);
  job.start(0, request_of(2, tensor, 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error.find("rank 1 has had results of it from another service") != std::string::npos);
}

// Workers that die or come late at any moment, over links that lose: every survivor ends with the same bits, made of
// pushes that each is there or not, and of all survivors' where nothing may be lost.
TEST_CASE("push_pull__drawn_deaths_and_delays_leave_the_survivors_alike") {
  std::size_t deaths = 0, late = 0, rounds = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(2 + prng.below(3));
    const auto services = static_cast<std::uint16_t>(1 + prng.below(2));
    const bool is_bounded = prng.chance(0.5);
    SummationConfig config;
    config.max_dead_workers = static_cast<std::uint16_t>(1 + prng.below(2));
    config.max_standing = prng.chance(0.3) ? 0 : 512;
    if (is_bounded && prng.chance(0.5)) config.max_wait_ns = 30 * mlt::base::kMillisecond;
    const bool may_wait = config.max_wait_ns > 0;
    const double bound = is_bounded ? 0.9 : 0.0;  // whoever is late
    SimulationConfig network = lossy(prng.chance(0.5) ? 0.05 : 0.0, seed);
    Job job(network, workers, services, config);
    const std::size_t elements = 1 + prng.below(200'000);
    std::uint16_t dead = 0;
    for (std::size_t iteration = 0; iteration < 6; ++iteration) {
      CAPTURE(iteration);
      std::vector<std::vector<float>> tensors;
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        tensors.push_back(gradient(elements, worker, iteration));
      }
      const auto pushed = tensors;
      std::optional<std::uint16_t> delayed;
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        if (job.is_dead(worker)) continue;
        if (may_wait && !delayed && prng.chance(0.2)) {
          delayed = worker;
          continue;
        }
        job.start(worker, request_of(5, tensors[worker], bound));
        if (prng.chance(0.3)) job.run_for(static_cast<std::int64_t>(prng.below(2'000'000)));
      }
      if (delayed) job.run_for(static_cast<std::int64_t>(prng.below(60'000'000)));
      const auto victim = static_cast<std::uint16_t>(prng.below(workers));
      if (!job.is_dead(victim) && dead < config.max_dead_workers && dead + 2 <= workers && prng.chance(0.3)) {
        job.run_for(static_cast<std::int64_t>(prng.below(4'000'000)));
        job.kill(victim);
        ++dead;
        ++deaths;
      }
      if (delayed && !job.is_dead(*delayed)) job.start(*delayed, request_of(5, tensors[*delayed], bound));
      std::set<std::uint16_t> living;
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        if (!job.is_dead(worker)) living.insert(worker);
      }
      const std::uint16_t first = *living.begin();
      std::set<std::uint16_t> always;
      for (const std::uint16_t worker : living) {
        REQUIRE(job.run_until_done(worker, iteration + 1));
        const PushPullDone& done = job.done(worker)[iteration];
        CHECK(done.error == "");
        CHECK(tensors[worker] == tensors[first]);
        if (done.missing_bytes == 0) always.insert(worker);
      }
      if (!always.empty()) CHECK(is_mean_of_some(tensors[first], pushed, always));
      if (!is_bounded) CHECK(always == living);
      ++rounds;
    }
    for (std::uint16_t service = workers; service < workers + services; ++service) {
      late += job.summation(service).late_pushes();
      CHECK(job.summation(service).workers_gone() == dead);
    }
  }
  CHECK(deaths > 50);
  CHECK(late > 20);
  CHECK(rounds == 150 * 6);
}

TEST_CASE("next_index__asks_every_other_service_once_and_spreads_the_partitions_of_one") {
  for (const std::size_t services : {std::size_t{2}, std::size_t{3}, std::size_t{5}}) {
    std::vector<std::size_t> taken(services);
    for (std::uint32_t partition = 0; partition < 1'000; ++partition) {
      std::set<std::size_t> asked;
      for (std::size_t gone = 0; gone < services; ++gone) {
        asked.insert(PushPull::next_index(7, partition, services, gone));
      }
      CHECK(asked.size() == services);
      CHECK(PushPull::next_index(7, partition, services, 0) == PushPull::service_index(7, partition, services));
      if (PushPull::service_index(7, partition, services) == 0) {
        ++taken[PushPull::next_index(7, partition, services, 1)];
      }
    }
    CHECK(taken[0] == 0);
    for (std::size_t service = 1; service < services; ++service) {
      CHECK(taken[service] * (services - 1) * services >= 990 - services * services);
    }
  }
}

TEST_CASE("push_pull__a_dead_services_keys_move_to_the_others_with_the_same_bits") {
  for (const std::uint16_t services : {std::uint16_t{2}, std::uint16_t{3}}) {
    for (std::int64_t after_us = -1; after_us <= 6'000; after_us += 200) {
      for (const bool is_in_place : {true, false}) {
        CAPTURE(services);
        CAPTURE(after_us);
        CAPTURE(is_in_place);
        Job job(SimulationConfig{}, 3, services, {}, 1);
        const std::size_t elements = 300'001;
        for (std::size_t iteration = 0; iteration < 4; ++iteration) {
          CAPTURE(iteration);
          std::vector<std::vector<float>> inputs;
          for (std::uint16_t worker = 0; worker < 3; ++worker) inputs.push_back(gradient(elements, worker, iteration));
          const auto pushed = inputs;
          std::vector<std::vector<float>> outputs(3, std::vector<float>(elements, -1.0F));
          for (std::uint16_t worker = 0; worker < 3; ++worker) {
            PushPullRequest request = request_of(1, inputs[worker], 0.0);
            if (!is_in_place) request.output = outputs[worker];
            job.start(worker, request);
          }
          if (iteration == 1 && after_us >= 0) {
            job.run_for(after_us * 1'000);
            job.kill(3);
          }
          for (std::uint16_t worker = 0; worker < 3; ++worker) {
            REQUIRE(job.run_until_done(worker, iteration + 1));
            REQUIRE(job.done(worker)[iteration].error == "");
          }
          if (iteration == 1 && after_us < 0) job.kill(3);  // between two rounds
          const auto& results = is_in_place ? inputs : outputs;
          if (!is_in_place) CHECK(inputs == pushed);
          CHECK(results[0] == results[1]);
          CHECK(results[0] == results[2]);
          bool exact = true;
          for (std::size_t i = 0; i < elements; ++i) {
            exact = exact && results[0][i] == (pushed[0][i] + pushed[1][i] + pushed[2][i]) * (1.0F / 3.0F);
          }
          CHECK(exact);
        }
        REQUIRE(job.notices(0).size() == 1);
        CHECK(job.notices(0)[0].find("rank 3") != std::string::npos);
        // A new key has no part on it.
        std::vector<std::vector<float>> tensors(3, std::vector<float>(elements, 2.0F));
        for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, request_of(2, tensors[worker], 0.0));
        for (std::uint16_t worker = 0; worker < 3; ++worker) {
          REQUIRE(job.run_until_done(worker, 5));
          CHECK(job.done(worker)[4].error == "");
        }
      }
    }
  }
}

TEST_CASE("push_pull__dead_services_beyond_the_bound_fail_every_key_and_are_named") {
  for (const std::uint16_t may_die : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{9}}) {
    CAPTURE(may_die);
    Job job(SimulationConfig{}, 2, 2, {}, may_die);
    std::vector<std::vector<float>> tensors(2, std::vector<float>(300'000, 1.0F));
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, request_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
    job.kill(2);
    if (may_die > 0) job.kill(3);
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      job.start(worker, request_of(1, tensors[worker], 0.0));
      REQUIRE(job.run_until_done(worker, 2));
      CHECK(job.done(worker)[1].status == mlt::core::CompletionStatus::kPeerFailed);
      CHECK(job.done(worker)[1].failed_peer == (may_die > 0 ? 3 : 2));
    }
  }
}

// A worker may have had a result whole, and even have begun the next round, while others have parts of it.
TEST_CASE("push_pull__drawn_deaths_of_services_leave_all_workers_with_the_same_bits") {
  std::size_t deaths = 0, spread = 0, finished = 0;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(2 + prng.below(3));
    const auto services = static_cast<std::uint16_t>(2 + prng.below(2));
    SummationConfig config;
    config.max_standing = prng.chance(0.3) ? 0 : 512;
    const bool may_wait = prng.chance(0.2);
    if (may_wait) config.max_wait_ns = 30 * mlt::base::kMillisecond;
    const double bound = may_wait ? 0.9 : prng.chance(0.3) ? 0.2 : 0.0;
    Job job(lossy(prng.chance(0.5) ? 0.05 : 0.0, seed), workers, services, config,
            static_cast<std::uint16_t>(services - 1));
    if (prng.chance(0.5)) job.message_ns = 1'000'000;
    const std::size_t elements = 1 + prng.below(may_wait ? 40'000 : 400'000);
    constexpr std::size_t kRounds = 8;
    std::vector<std::vector<std::vector<float>>> pushed(kRounds), results(kRounds);
    std::vector<std::vector<float>> tensors(workers);
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        pushed[round].push_back(gradient(elements, worker, round));
      }
      results[round].resize(workers);
    }
    std::vector<std::size_t> begun(workers), ended(workers);
    std::vector<std::set<std::uint16_t>> whole(kRounds);
    std::uint16_t dead = 0;
    bool is_over = false;
    const double pace = may_wait && prng.chance(0.7) ? 0.01 : 0.5;
    // Each worker goes on by itself as soon as it has a result.
    const auto go_on = [&] {
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        if (job.done(worker).size() > ended[worker]) {
          const PushPullDone& done = job.done(worker)[ended[worker]];
          // A worker may be too late for a takeover, which all learn.
          if (may_wait && !done.error.empty()) {
            CHECK((done.status == mlt::core::CompletionStatus::kTimedOut ||
                   done.error.find("max_wait") != std::string::npos));
            is_over = true;
            return;
          }
          REQUIRE(done.error == "");
          if (done.missing_bytes == 0) whole[ended[worker]].insert(worker);
          results[ended[worker]++][worker] = tensors[worker];
          std::ranges::fill(tensors[worker], -5.0F);  // the caller's again
        }
        if (begun[worker] == ended[worker] && begun[worker] < kRounds && prng.chance(worker == 0 ? pace : 0.5)) {
          tensors[worker] = pushed[begun[worker]][worker];
          ++begun[worker];
          job.start(worker, request_of(3, tensors[worker], bound));
        }
      }
    };
    for (std::size_t step = 0; step < 4'000 && std::ranges::min(ended) < kRounds && !is_over; ++step) {
      go_on();
      job.run_for(static_cast<std::int64_t>(50'000 + prng.below(100'000)));
      const auto victim = static_cast<std::uint16_t>(workers + prng.below(services));
      if (dead + 1 < services && !job.is_dead(victim) && prng.chance(0.02)) {
        spread += std::ranges::max(ended) != std::ranges::min(ended) ? 1U : 0U;
        if (prng.chance(0.5)) {
          job.kill(victim);
        } else {
          job.kill(victim, &prng, 5'000'000);
        }
        ++dead;
        ++deaths;
        if (!may_wait) job.run_for(20'000'000);  // one takeover at a time
      }
    }
    if (!is_over) go_on();
    if (!is_over) REQUIRE(std::ranges::min(ended) == kRounds);
    for (std::size_t round = 0; round < std::ranges::max(ended); ++round) {
      CAPTURE(round);
      const auto has_result = [&](std::uint16_t worker) { return ended[worker] > round; };
      std::uint16_t first = 0;
      while (!has_result(first)) ++first;
      for (std::uint16_t worker = first; worker < workers; ++worker) {
        if (has_result(worker)) CHECK(results[round][worker] == results[round][first]);
      }
      if (bound == 0.0) CHECK(whole[round].size() == workers);
      // Where all terms of an element are missing it is zero.
      if (!whole[round].empty()) CHECK(is_mean_of_some(results[round][first], pushed[round], whole[round]));
    }
    finished += is_over ? 0U : 1U;
  }
  CHECK(finished > 60);
  CHECK(deaths > 60);
  CHECK(spread > 5);
}
