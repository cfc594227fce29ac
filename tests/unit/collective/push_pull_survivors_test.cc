// Connections that break while the processes at both ends live: the job decides which ranks continue.
// survivors_test.cc has the decision by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "collective/push_pull.h"
#include "push_pull_job.h"
#include "support/seeds.h"

namespace {

using namespace mlt::test;

// Each worker averages by itself, round by round, until it has had all or one failed.
class Rounds {
 public:
  static constexpr std::uint64_t kKey = 3;

  Rounds(Job& job, std::uint16_t workers, std::size_t elements, std::size_t rounds, double bound)
      : job_(job),
        rounds_(rounds),
        bound_(bound),
        pushed_(rounds),
        results_(rounds),
        whole_(rounds),
        tensors_(workers),
        begun_(workers),
        ended_(workers),
        errors_(workers) {
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        pushed_[round].push_back(gradient(elements, worker, round));
      }
      results_[round].resize(workers);
    }
  }

  void go_on(mlt::base::Prng& prng) {
    for (std::uint16_t worker = 0; worker < tensors_.size(); ++worker) {
      if (job_.is_dead(worker) || !errors_[worker].empty()) continue;
      if (job_.done(worker).size() > ended_[worker]) {
        const PushPullDone& done = job_.done(worker)[ended_[worker]];
        errors_[worker] = done.error;
        if (!done.error.empty()) continue;
        if (done.missing_bytes == 0) whole_[ended_[worker]].insert(worker);
        results_[ended_[worker]++][worker] = tensors_[worker];
        std::ranges::fill(tensors_[worker], -5.0F);  // the caller's again
      }
      if (begun_[worker] == ended_[worker] && begun_[worker] < rounds_ && prng.chance(0.5)) {
        tensors_[worker] = pushed_[begun_[worker]][worker];
        ++begun_[worker];
        job_.start(worker, push_pull_of(kKey, tensors_[worker], bound_));
      }
    }
  }
  bool is_over(std::uint16_t worker) const {
    return job_.is_dead(worker) || !errors_[worker].empty() || ended_[worker] == rounds_;
  }
  bool are_all_over() const {
    for (std::uint16_t worker = 0; worker < tensors_.size(); ++worker) {
      if (!is_over(worker)) return false;
    }
    return true;
  }
  const std::string& error(std::uint16_t worker) const { return errors_[worker]; }
  // Whoever had the result of a round had the same bits, made of pushes that each is there or not.
  void check_results() const {
    for (std::size_t round = 0; round < rounds_; ++round) {
      CAPTURE(round);
      int first = -1;
      for (std::uint16_t worker = 0; worker < tensors_.size(); ++worker) {
        if (ended_[worker] <= round) continue;
        if (first < 0) first = worker;
        CHECK(results_[round][worker] == results_[round][static_cast<std::size_t>(first)]);
      }
      if (first < 0 || whole_[round].empty()) continue;
      CHECK(is_mean_of_some(results_[round][static_cast<std::size_t>(first)], pushed_[round], {}));
    }
  }

 private:
  Job& job_;
  std::size_t rounds_;
  double bound_;
  std::vector<std::vector<std::vector<float>>> pushed_, results_;  // by round and worker
  std::vector<std::set<std::uint16_t>> whole_;                     // by round: workers that lost nothing
  std::vector<std::vector<float>> tensors_;
  std::vector<std::size_t> begun_, ended_;
  std::vector<std::string> errors_;
};

}  // namespace

// Of worker 2 and a service: the end that may die is excluded and learns it; the others continue.
TEST_CASE("push_pull__a_broken_connection_costs_the_end_that_may_die_and_nobody_else") {
  const auto step_us = static_cast<std::int64_t>(500 * seed_stride());
  for (const std::uint16_t service : {std::uint16_t{3}, std::uint16_t{4}}) {
    for (const bool may_be_worker : {true, false}) {
      for (std::int64_t after_us = 0; after_us <= 4'000; after_us += step_us) {
        CAPTURE(service);
        CAPTURE(may_be_worker);
        CAPTURE(after_us);
        mlt::base::Prng prng(1 + static_cast<std::uint64_t>(after_us));
        Job job(SimulationConfig{}, 3, 2, may_die(may_be_worker ? 1 : 0), may_be_worker ? 0 : 1);
        Rounds rounds(job, 3, 300'000, 12, 0.0);
        for (int step = 0; step < 60; ++step) {
          rounds.go_on(prng);
          job.run_for(after_us * 1'000 / 60 + 100'000);
        }
        job.cut(2, service);
        for (int step = 0; step < 6'000 && !rounds.are_all_over(); ++step) {
          rounds.go_on(prng);
          job.run_for(300'000);
        }
        REQUIRE(rounds.are_all_over());
        for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{1}}) CHECK(rounds.error(worker) == "");
        CHECK(rounds.error(2).empty() == !may_be_worker);
        CHECK(job.exclusion(service).empty() == may_be_worker);
        rounds.check_results();
      }
    }
  }
}

// Services exchange nothing but reports: where none may die, both continue.
TEST_CASE("push_pull__a_broken_connection_between_services_costs_nobody_where_none_may_die") {
  for (const std::uint16_t dead_workers : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(dead_workers);
    mlt::base::Prng prng(1);
    Job job(SimulationConfig{}, 3, 2, may_die(dead_workers), 0);
    Rounds rounds(job, 3, 300'000, 12, 0.0);
    for (int step = 0; step < 6'000 && !rounds.are_all_over(); ++step) {
      if (step == 5) job.cut(3, 4);
      rounds.go_on(prng);
      job.run_for(step < 20 ? 300'000 : 10'000'000);
    }
    REQUIRE(rounds.are_all_over());
    job.run_for(40 * mlt::base::kSecond);
    for (std::uint16_t worker = 0; worker < 3; ++worker) CHECK(rounds.error(worker) == "");
    for (std::uint16_t rank = 0; rank < 5; ++rank) CHECK(job.exclusion(rank) == "");
    rounds.check_results();
    std::vector<std::vector<float>> tensors(3, std::vector<float>(300'000, 1.0F));
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(4, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      REQUIRE(job.run_until_done(worker, 13));
      CHECK(job.done(worker)[12].error == "");
    }
  }
}

// Broken connections, partitions and deaths, noticed by each side at its own time. Ranks that continue know the same
// dead, are all connected, and have the same bits; an excluded rank that lives ends with an error that says so.
TEST_CASE("push_pull__drawn_broken_connections_leave_one_group_with_the_same_bits") {
  std::size_t finished = 0, failed = 0, left_behind = 0, single = 0;
  for (std::uint64_t seed = 1; seed <= 120; seed += seed_stride()) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(2 + prng.below(3));
    const auto services = static_cast<std::uint16_t>(2 + prng.below(2));
    const auto size = static_cast<std::uint16_t>(workers + services);
    SummationConfig config;
    config.max_dead_workers = static_cast<std::uint16_t>(prng.below(workers));
    config.max_standing = prng.chance(0.3) ? 0 : 512;
    config.checksums = seed % 2 == 0;  // not a draw: the seeds stay what they were
    config.max_takeover_wait_ns = 4 * mlt::base::kSecond;
    const auto may_die_too = static_cast<std::uint16_t>((config.max_dead_workers == 0 ? 1 : 0) + prng.below(services));
    const double bound = prng.chance(0.3) ? 0.2 : 0.0;
    Job job(lossy(prng.chance(0.5) ? 0.05 : 0.0, seed), workers, services, config, may_die_too,
            drawn_loads(seed, workers, services));
    if (prng.chance(0.5)) job.message_ns = 1'000'000;
    Rounds rounds(job, workers, 1 + prng.below(200'000), 10, bound);
    const std::uint64_t faults = 1 + prng.below(3);
    const std::uint64_t spread_ns = prng.chance(0.5) ? 3'000'000 : 400'000'000;
    std::uint64_t made = 0;
    bool is_single_cut = faults == 1;
    for (std::size_t step = 0; step < 12'000 && !(rounds.are_all_over() && made == faults); ++step) {
      rounds.go_on(prng);
      job.run_for(static_cast<std::int64_t>(step < 200 ? 50'000 + prng.below(100'000) : 1'000'000));
      if (made == faults || !prng.chance(0.02)) continue;
      ++made;
      const auto a = static_cast<std::uint16_t>(prng.below(size));
      const auto b = static_cast<std::uint16_t>(workers + prng.below(services));
      if (prng.chance(0.25)) {
        is_single_cut = false;
        if (!job.is_dead(a)) job.kill(a, &prng, spread_ns);
      } else if (prng.chance(0.2)) {  // two groups
        is_single_cut = false;
        const std::uint64_t side = prng.below(1U << size);
        for (std::uint16_t i = 0; i < size; ++i) {
          for (std::uint16_t j = 0; j < i; ++j) {
            if (((side >> i) & 1U) != ((side >> j) & 1U)) job.cut(i, j, &prng, spread_ns);
          }
        }
      } else if (a != b && !job.is_dead(a) && !job.is_dead(b)) {
        job.cut(a, b, &prng, spread_ns);
      }
    }
    REQUIRE(rounds.are_all_over());
    job.run_for(6 * mlt::base::kSecond);
    std::set<std::uint16_t> living;
    for (std::uint16_t rank = 0; rank < size; ++rank) {
      if (!job.is_dead(rank) && job.survivors(rank).out_text().empty()) living.insert(rank);
    }
    std::size_t dead_workers = 0, dead_services = 0;
    for (const std::uint16_t rank : living) {
      CAPTURE(rank);
      dead_workers = dead_services = 0;
      for (std::uint16_t other = 0; other < size; ++other) {
        const bool is_excluded = job.survivors(rank).is_excluded(other);
        CHECK(is_excluded == job.survivors(*living.begin()).is_excluded(other));
        if (living.contains(other)) CHECK(!is_excluded);
        if (is_excluded) ++(other < workers ? dead_workers : dead_services);
      }
    }
    const bool is_within = dead_workers <= config.max_dead_workers && dead_services <= may_die_too;
    for (std::uint16_t rank = 0; rank < size; ++rank) {
      if (job.is_dead(rank) || living.contains(rank)) continue;
      ++left_behind;
      CHECK(job.exclusion(rank).find("takes no further part") != std::string::npos);
    }
    for (std::uint16_t worker = 0; worker < workers; ++worker) {
      if (!living.contains(worker)) continue;
      ++(rounds.error(worker).empty() ? finished : failed);
      CAPTURE(rounds.error(worker));
      if (is_single_cut && is_within) {
        CHECK(rounds.error(worker) == "");
        ++single;
      }
    }
    rounds.check_results();
  }
  CHECK(finished > 100 / seed_stride());
  CHECK(left_behind > 30 / seed_stride());
  CHECK(single > 30 / seed_stride());
  CHECK(failed < finished);
}
