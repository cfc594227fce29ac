// Services that die while others take over: whole rounds. takeover_test.cc has the decision by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collective/push_pull.h"
#include "push_pull_job.h"
#include "support/seeds.h"

namespace {

using namespace mlt::test;
using mlt::base::TimeNs;

}  // namespace

TEST_CASE("summation__a_move_with_results_to_a_partition_that_was_registered_is_refused_to_all") {
  Job job(SimulationConfig{}, 2, 2, {}, 1);
  std::vector<std::vector<float>> tensors(2, std::vector<float>(300'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  Register shape;
  shape.key = 2;
  shape.elements = 10;
  shape.tensor_elements = 10;
  shape.segment_bytes = 1'432;
  job.summation(2).on_message(job.network().now(), 0, shape);
  job.summation(2).on_message(job.network().now(), 1, Move{shape, 1, {}});
  std::vector<float> tensor(10, 1.0F);
  job.start(0, push_pull_of(2, tensor, 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error.find("rank 1 has had results of it from another service") != std::string::npos);
}

TEST_CASE("push_pull__a_dead_services_keys_move_to_the_others_with_the_same_bits") {
  const auto step_us = static_cast<std::int64_t>(200 * seed_stride());
  for (const std::uint16_t services : {std::uint16_t{2}, std::uint16_t{3}}) {
    for (std::int64_t after_us = -1; after_us <= 6'000; after_us += step_us) {
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
            PushPullRequest request = push_pull_of(1, inputs[worker], 0.0);
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
        for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(2, tensors[worker], 0.0));
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
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
    job.kill(2);
    if (may_die > 0) job.kill(3);
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      job.start(worker, push_pull_of(1, tensors[worker], 0.0));
      REQUIRE(job.run_until_done(worker, 2));
      CHECK(job.done(worker)[1].status == mlt::core::CompletionStatus::kPeerFailed);
      CHECK(job.done(worker)[1].failed_peer == (may_die > 0 ? 3 : 2));
    }
  }
}

// A worker may have had a result whole, and even have begun the next round, while others have parts of it.
TEST_CASE("push_pull__drawn_deaths_of_services_leave_all_workers_with_the_same_bits") {
  std::size_t deaths = 0, spread = 0, finished = 0;
  for (std::uint64_t seed = 1; seed <= 160; seed += seed_stride()) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(2 + prng.below(3));
    const auto services = static_cast<std::uint16_t>(2 + prng.below(2));
    SummationConfig config;
    config.max_standing = prng.chance(0.3) ? 0 : 512;
    config.checksums = seed % 2 == 0;  // not a draw: the seeds stay what they were
    const bool may_wait = prng.chance(0.2);
    if (may_wait) config.max_wait_ns = 30 * mlt::base::kMillisecond;
    const double bound = may_wait ? 0.9 : prng.chance(0.3) ? 0.2 : 0.0;
    Job job(lossy(prng.chance(0.5) ? 0.05 : 0.0, seed), workers, services, config,
            static_cast<std::uint16_t>(services - 1), drawn_loads(seed, workers, services));
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
    // Each worker continues by itself as soon as it has a result.
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
          job.start(worker, push_pull_of(3, tensors[worker], bound));
        }
      }
    };
    for (std::size_t step = 0; step < 4'000 && std::ranges::min(ended) < kRounds && !is_over; ++step) {
      go_on();
      job.run_for(static_cast<std::int64_t>(50'000 + prng.below(100'000)));
      const auto victim = static_cast<std::uint16_t>(workers + prng.below(services));
      if (dead + 1 < services && !job.is_dead(victim) &&
          prng.chance(std::ranges::max(ended) != std::ranges::min(ended) ? 0.2 : 0.02)) {
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
  CHECK(finished > 60 / seed_stride());
  CHECK(deaths > 60 / seed_stride());
  if (seed_stride() == 1) CHECK(spread > 5);  // too rare for a fifth of the seeds
}

// The worker knows later than the service that this one is excluded.
TEST_CASE("push_pull__a_key_that_begins_at_an_excluded_service_moves_to_the_next") {
  Job job(SimulationConfig{}, 3, 2, {}, 1);
  job.slow_ns[{3, 0}] = mlt::base::kSecond;
  job.cut(2, 4);
  job.run_for(800 * mlt::base::kMillisecond);
  REQUIRE(!job.exclusion(4).empty());
  REQUIRE(!job.survivors(0).is_excluded(4));
  std::vector<std::vector<float>> tensors(3, std::vector<float>(1'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 3; ++worker) {
    REQUIRE(job.run_until_done(worker, 1));
    CHECK(job.done(worker)[0].error == "");
  }
}

// Nor does a worker that the others excluded name its tensor as the cause.
TEST_CASE("push_pull__a_key_of_an_excluded_worker_fails_because_of_that") {
  Job job(SimulationConfig{}, 3, 2, may_die(1), 1);
  job.slow_ns[{3, 2}] = mlt::base::kSecond;
  job.summation(4).on_message(job.network().now(), 3, Excluded{0, {2}});
  std::vector<float> tensor(1'000, 1.0F);
  job.start(2, push_pull_of(1, tensor, 0.0));
  REQUIRE(job.run_until_done(2, 1));
  CHECK(job.done(2)[0].error.find("takes no further part") != std::string::npos);
}
