// Push-pull and summation over production endpoints under virtual time: workers and services on one virtual network.
#include "collective/push_pull.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <optional>

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
  Job(const SimulationConfig& network_config, std::uint16_t workers, std::uint16_t services)
      : workers_(workers), network_(with_hosts(network_config, static_cast<std::uint16_t>(workers + services))) {
    std::vector<std::uint16_t> service_ranks;
    for (std::uint16_t i = 0; i < services; ++i) service_ranks.push_back(static_cast<std::uint16_t>(workers + i));
    for (std::uint16_t rank = 0; rank < workers + services; ++rank) {
      hosts_.push_back(std::make_unique<Host>(*this, rank));
      if (rank < workers) {
        hosts_.back()->push_pull = std::make_unique<PushPull>(service_ranks, *hosts_.back(), kDefaultTimeoutNs);
      } else {
        hosts_.back()->summation = std::make_unique<Summation>(SummationConfig{.workers = workers}, *hosts_.back());
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
  // The connection between every rank and `rank` ends, as when its process dies.
  void kill(std::uint16_t rank) {
    dead_ = rank;
    for (std::uint16_t other = 0; other < hosts_.size(); ++other) {
      if (other == rank) continue;
      network_.disconnect(other, rank);
      if (hosts_[other]->push_pull) hosts_[other]->push_pull->on_peer_down(network_.now(), rank);
      if (hosts_[other]->summation) hosts_[other]->summation->on_peer_down(network_.now(), rank);
    }
    pump();
  }
  const std::vector<PushPullDone>& done(std::uint16_t worker) const { return hosts_[worker]->done; }
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
      if (job.dead_ == peer || job.dead_ == rank) return false;
      const auto message = decode(bytes);
      REQUIRE(message.has_value());
      job.network_.at(job.network_.now() + job.message_ns, [this, peer, copy = *message] {
        Host& to = *job.hosts_[peer];
        if (job.dead_ == peer || job.silent_ == peer) return;
        if (to.push_pull) to.push_pull->on_message(job.network_.now(), rank, copy);
        if (to.summation) to.summation->on_message(job.network_.now(), rank, copy);
      });
      return true;
    }
    std::uint32_t segment_bytes(std::uint16_t) const override { return 1'432; }
    std::string peer_error(std::uint16_t peer) const override { return job.dead_ == peer ? job.cause : ""; }

    Job& job;
    std::uint16_t rank;
    std::unique_ptr<PushPull> push_pull;
    std::unique_ptr<Summation> summation;
    std::size_t taken = 0;
    std::vector<PushPullDone> done;
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
        while (host->taken < network_.completed(host->rank).size()) {
          const auto completed = network_.completed(host->rank)[host->taken++];
          mlt::core::Completion completion = completed;
          completion.received_bitmap = completed.bitmap;
          any = true;
          if (host->push_pull) host->push_pull->on_completion(network_.now(), completion);
          if (host->summation) host->summation->on_completion(network_.now(), completion);
        }
        if (host->summation) host->summation->retry(network_.now());
        if (!host->push_pull) continue;
        host->push_pull->retry(network_.now());
        PushPullDone done;
        while (host->push_pull->poll_done(done)) host->done.push_back(done);
      }
    }
  }

  std::uint16_t workers_;
  Simulation network_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::optional<std::uint16_t> dead_;
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
