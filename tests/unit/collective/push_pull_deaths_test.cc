// Workers that die or are late while the others continue.
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
          if (!job.is_dead(worker)) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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

// A service that continued waiting for the dead worker's segments would send every result after the last push.
TEST_CASE("push_pull__after_a_death_results_go_back_while_pushes_arrive") {
  const std::size_t elements = 250'000;  // one partition
  const auto third_round = [&](std::uint16_t workers, bool one_dies) {
    Job job(SimulationConfig{}, workers, 1, may_die(1));
    std::vector<std::vector<float>> tensors(workers, std::vector<float>(elements, 1.0F));
    for (std::size_t iteration = 0; iteration < 3; ++iteration) {
      if (iteration == 1 && one_dies) job.kill(2);
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        if (!job.is_dead(worker)) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
      }
      for (std::uint16_t worker = 0; worker < workers; ++worker) {
        if (!job.is_dead(worker)) REQUIRE(job.run_until_done(worker, iteration + 1));
      }
    }
    return job.done(0)[2].elapsed_ns;
  };
  const mlt::base::DurationNs of_two = third_round(2, false);
  const mlt::base::DurationNs of_two_that_are_left = third_round(3, true);
  CAPTURE(of_two);
  CAPTURE(of_two_that_are_left);
  CHECK(of_two_that_are_left < of_two * 6 / 5);
}

TEST_CASE("push_pull__a_worker_that_dies_before_it_registers_or_before_the_others_do_counts_as_loss") {
  for (const bool is_first : {true, false}) {
    Job job(SimulationConfig{}, 3, 1, may_die(1));
    std::vector<std::vector<float>> tensors{gradient(5'000, 0, 0), gradient(5'000, 1, 0)};
    const auto pushed = tensors;
    if (is_first) job.kill(2);
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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
    job.start(0, push_pull_of(2, tensors[0], 0.0));
    REQUIRE(job.run_until_done(0, 2));
    CHECK(job.done(0)[1].failed_peer == 2);
  }
}

TEST_CASE("push_pull__the_last_worker_sums_alone") {
  Job job(SimulationConfig{}, 2, 1, may_die(9));
  std::vector<float> tensor(100, 3.0F);
  job.start(0, push_pull_of(1, tensor, 0.0));
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
        job.start(worker, push_pull_of(1, tensors[worker], bound));
      }
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        REQUIRE(job.run_until_done(worker, iteration + 1));
        CHECK(job.done(worker)[iteration].error == "");
      }
      if (is_late) job.start(2, push_pull_of(1, tensors[2], bound));
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
    job.start(worker, push_pull_of(1, tensors[iteration][worker], 0.4));
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
    for (std::uint16_t worker = 0; worker < 4; ++worker) job.start(worker, push_pull_of(1, tensors[worker], bound));
    for (std::uint16_t worker = 0; worker < 4; ++worker) REQUIRE(job.run_until_done(worker, 1));
    const TimeNs began = job.network().now();
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], bound));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, 2));
      const PushPullDone& done = job.done(worker)[1];
      CHECK(done.status == mlt::core::CompletionStatus::kTimedOut);
      CHECK(done.failed_peer == 2);
      CHECK(done.error.find("rank 2, rank 3 within 20 ms") != std::string::npos);
    }
    CHECK(job.network().now() - began < 100 * mlt::base::kMillisecond);
    job.start(2, push_pull_of(1, tensors[2], bound));
    REQUIRE(job.run_until_done(2, 2));
    CHECK(job.done(2)[1].error.find("rank 2, rank 3") != std::string::npos);
  }
}

TEST_CASE("push_pull__the_clock_of_late_pushes_waits_for_every_registration_and_not_for_dead_workers") {
  SummationConfig config = waits(20 * mlt::base::kMillisecond);
  config.max_dead_workers = 1;
  Job job(SimulationConfig{}, 3, 1, config);
  std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
  job.start(0, push_pull_of(1, tensors[0], 0.0));
  job.run_for(500 * mlt::base::kMillisecond);  // the first step of the others may take long
  CHECK(job.done(0).empty());
  job.kill(1);
  job.run_for(500 * mlt::base::kMillisecond);
  CHECK(job.done(0).empty());
  job.start(2, push_pull_of(1, tensors[2], 0.0));
  REQUIRE(job.run_until_done(0, 1));
  REQUIRE(job.run_until_done(2, 1));
  CHECK(job.done(0)[0].error == "");
  job.start(0, push_pull_of(1, tensors[0], 0.0));
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
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.4));
    for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
    for (std::size_t round = 2; round <= 6; ++round) {
      const TimeNs began = job.network().now();
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.4));
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
    job.start(2, push_pull_of(1, tensors[2], 0.4));  // it learns that the others continued
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
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
  for (std::size_t round = 2; round <= 5; ++round) {
    fill();
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.4));
  for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
  for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{2}}) {
    job.start(worker, push_pull_of(1, tensors[worker], 0.4));
  }
  for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{2}}) REQUIRE(job.run_until_done(worker, 2));
  job.start(0, push_pull_of(1, tensors[0], 0.4));
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
      job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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

// Workers that die or come late at any moment, over links that lose: every survivor ends with the same bits, made of
// pushes that each is there or not, and of all survivors' where nothing may be lost.
TEST_CASE("push_pull__drawn_deaths_and_delays_leave_the_survivors_alike") {
  std::size_t deaths = 0, late = 0, rounds = 0;
  for (std::uint64_t seed = 1; seed <= 150; seed += seed_stride()) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(2 + prng.below(3));
    const auto services = static_cast<std::uint16_t>(1 + prng.below(2));
    const bool is_bounded = prng.chance(0.5);
    SummationConfig config;
    config.max_dead_workers = static_cast<std::uint16_t>(1 + prng.below(2));
    config.max_standing = prng.chance(0.3) ? 0 : 512;
    config.checksums = seed % 2 == 0;  // not a draw: the seeds stay what they were
    if (is_bounded && prng.chance(0.5)) config.max_wait_ns = 30 * mlt::base::kMillisecond;
    const bool may_wait = config.max_wait_ns > 0;
    const double bound = is_bounded ? 0.9 : 0.0;  // whoever is late
    SimulationConfig network = lossy(prng.chance(0.5) ? 0.05 : 0.0, seed);
    // The host of a dead worker receives until its last connection is gone.
    std::vector<std::vector<std::vector<float>>> all_tensors;
    Job job(network, workers, services, config, 0, drawn_loads(seed, workers, services));
    const std::size_t elements = 1 + prng.below(200'000);
    std::uint16_t dead = 0;
    for (std::size_t iteration = 0; iteration < 6; ++iteration) {
      CAPTURE(iteration);
      std::vector<std::vector<float>>& tensors = all_tensors.emplace_back();
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
        job.start(worker, push_pull_of(5, tensors[worker], bound));
        if (prng.chance(0.3)) job.run_for(static_cast<std::int64_t>(prng.below(2'000'000)));
      }
      if (delayed) job.run_for(static_cast<std::int64_t>(prng.below(60'000'000)));
      const auto victim = static_cast<std::uint16_t>(prng.below(workers));
      if (!job.is_dead(victim) && dead < config.max_dead_workers && dead + 2 <= workers && prng.chance(0.3)) {
        job.run_for(static_cast<std::int64_t>(prng.below(4'000'000)));
        if (prng.chance(0.5)) {
          job.kill(victim);
        } else {
          job.kill(victim, &prng, 50'000'000);
        }
        ++dead;
        ++deaths;
      }
      if (delayed && !job.is_dead(*delayed)) job.start(*delayed, push_pull_of(5, tensors[*delayed], bound));
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
    job.run_for(100'000'000);  // the last death may be news
    for (std::uint16_t service = workers; service < workers + services; ++service) {
      late += job.summation(service).late_pushes();
      CHECK(job.summation(service).workers_gone() == dead);
    }
  }
  CHECK(deaths > 50 / seed_stride());
  CHECK(late > 20 / seed_stride());
  CHECK(rounds == 150 / seed_stride() * 6);
}
