// Rounds of push-pull and summation without deaths that they may survive: sums, losses, refusals, errors. Deaths:
// push_pull_deaths_test.cc and push_pull_takeovers_test.cc.
#include "collective/push_pull.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collective/partition_grid.h"
#include "push_pull_job.h"

namespace {

using namespace mlt::test;
using mlt::base::TimeNs;

}  // namespace

TEST_CASE("push_pull__averages_exactly_without_loss_over_partitions_and_services") {
  // 8 partitions over 2 services, 3 iterations, in place.
  const std::size_t elements = kPartitionElements * 5 / 2;
  Job job(SimulationConfig{}, 3, 2);
  for (std::size_t iteration = 0; iteration < 3; ++iteration) {
    std::vector<std::vector<float>> tensors;
    for (std::uint16_t worker = 0; worker < 3; ++worker) tensors.push_back(gradient(elements, worker, iteration));
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(9, tensors[worker], 0.0));
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
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.2));
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
      PushPullRequest request = push_pull_of(1, inputs[worker], bound);
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
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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
    PushPullRequest request = push_pull_of(1, tensors[worker], 0.0);
    request.average = false;
    job.start(worker, request);
    job.start(worker, push_pull_of(2, nothing[worker], 0.0));
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
    job.start(0, push_pull_of(4, small, 0.0));
    job.run_for(mlt::base::kMillisecond);  // its push is on the way, or has arrived
    job.start(1, push_pull_of(4, large, 0.0));
    REQUIRE(job.run_until_done(0, 1));
    REQUIRE(job.run_until_done(1, 1));
    job.start(2, push_pull_of(4, same, 0.0));
    REQUIRE(job.run_until_done(2, 1));
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const auto& done = job.done(rank)[0];
      CHECK(done.status == mlt::core::CompletionStatus::kSizeMismatch);
      CHECK(done.error.find("rank 1 has " + std::to_string(elements) + " elements") != std::string::npos);
      CHECK(done.error.find("rank 0 has 10 elements") != std::string::npos);
      CHECK(done.elapsed_ns < mlt::base::kSecond);
      // The key stays refused, at once and with the cause.
      job.start(rank, push_pull_of(4, small, 0.0));
      REQUIRE(job.run_until_done(rank, 2));
      CHECK(job.done(rank)[1].error.find("failed before") != std::string::npos);
    }
    // Other keys continue.
    std::vector<float> three[3] = {gradient(10, 0, 0), gradient(10, 1, 0), gradient(10, 2, 0)};
    for (std::uint16_t rank = 0; rank < 3; ++rank) job.start(rank, push_pull_of(5, three[rank], 0.0));
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
  for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(4, tensors[worker], 0.0));
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
  job.start(0, push_pull_of(4, tensors[0], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error.find("rank 3 rejected key") != std::string::npos);
}

TEST_CASE("push_pull__a_dead_worker_fails_the_others_with_its_rank") {
  Job job(SimulationConfig{}, 3, 1);
  std::vector<std::vector<float>> tensors(3, std::vector<float>(5'000, 1.0F));
  job.start(0, push_pull_of(1, tensors[0], 0.0));
  job.start(1, push_pull_of(1, tensors[1], 0.0));
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
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
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
  job.start(0, push_pull_of(1, tensor, 0.0));
  REQUIRE(job.run_until_done(0, 1));
  job.start(0, push_pull_of(1, tensor, 0.0));  // registered
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
  job.start(0, push_pull_of(1, tensor, 0.0));
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
      job.start(0, push_pull_of(1, tensor, 0.0));
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
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.1));
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
    job.start(1, push_pull_of(1, tensors[1], 0.1));
    REQUIRE(job.run_until_done(1, 2));
    CHECK(job.done(1)[1].failed_peer == 0);
  }
}

TEST_CASE("push_pull__one_key_twice_at_a_time_is_refused") {
  Job job(SimulationConfig{}, 2, 1);
  std::vector<float> tensor(100, 1.0F), other(100, 1.0F);
  job.start(0, push_pull_of(1, tensor, 0.0));
  job.start(0, push_pull_of(1, other, 0.0));
  REQUIRE(job.run_until_done(0, 1));
  CHECK(job.done(0)[0].error.find("in progress") != std::string::npos);
  job.start(1, push_pull_of(1, other, 0.0));
  CHECK(job.run_until_done(1, 1));
  CHECK(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error == "");
}

TEST_CASE("push_pull__a_key_that_is_used_otherwise_names_both_uses") {
  Job job(SimulationConfig{}, 1, 1);
  std::vector<float> tensor(100, 1.0F), other(90, 1.0F);
  job.start(0, push_pull_of(1, tensor, 0.1));
  REQUIRE(job.run_until_done(0, 1));
  PushPullRequest request = push_pull_of(1, other, 0.25);
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
    PushPullRequest request = push_pull_of(0, tensor, 0.0);  // partition 1 is on rank 2
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

TEST_CASE("push_pull__a_worker_that_does_not_post_is_named_to_all_that_wait_at_their_timeout") {
  // In the first round it has not registered; in the second its push is missing.
  for (const int complete_rounds : {0, 1}) {
    for (const bool has_checksums : {false, true}) {
      CAPTURE(complete_rounds);
      CAPTURE(has_checksums);
      SummationConfig config;
      config.checksums = has_checksums;
      Job job({}, 4, 2, config);
      std::vector<std::vector<float>> values(4, std::vector<float>(200'000, 1.0F));
      for (int round = 0; round < complete_rounds; ++round) {
        for (std::uint16_t worker = 0; worker < 4; ++worker) job.start(worker, push_pull_of(7, values[worker], 0));
        for (std::uint16_t worker = 0; worker < 4; ++worker) {
          REQUIRE(job.run_until_done(worker, static_cast<std::size_t>(round + 1)));
        }
      }
      const TimeNs begun = job.network().now();
      for (std::uint16_t worker = 0; worker < 4; worker += 2) job.start(worker, push_pull_of(7, values[worker], 0));
      for (std::uint16_t worker = 0; worker < 4; worker += 2) {
        REQUIRE(job.run_until_done(worker, static_cast<std::size_t>(complete_rounds + 1)));
        const PushPullDone& done = job.done(worker).back();
        CHECK(done.status == CompletionStatus::kTimedOut);
        CHECK(done.failed_peer == 1);
        CHECK_MESSAGE(done.error.find("no complete push of rank 1, rank 3 has arrived") != std::string::npos,
                      done.error);
        CHECK((done.error.find("rank 1, rank 3 never posted") != std::string::npos) == (complete_rounds == 0));
        CHECK(job.network().now() - begun <= kDefaultTimeoutNs + 50 * mlt::base::kMillisecond);
      }
    }
  }
}

// Both pushes arrive, and the other worker has its result.
TEST_CASE("push_pull__a_result_that_does_not_arrive_is_not_blamed_on_another_worker") {
  Job job({}, 2, 1);
  job.network().drop_if = [](const Flight& flight) {
    return flight.from == 2 && flight.to == 0 && flight.type == mlt::wire::PacketType::kData;
  };
  std::vector<std::vector<float>> values(2, std::vector<float>(200'000, 1.0F));
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(7, values[worker], 0));
  for (const std::uint16_t worker : std::vector<std::uint16_t>{1, 0}) REQUIRE(job.run_until_done(worker, 1));
  CHECK(job.done(1)[0].status == CompletionStatus::kComplete);
  CHECK(job.done(0)[0].status == CompletionStatus::kTimedOut);
  CHECK(job.done(0)[0].failed_peer == 2);
  CHECK_MESSAGE(job.done(0)[0].error.find("rank 1") == std::string::npos, job.done(0)[0].error);
}

// The service that is asked says that a push is missing, which comes afterwards; the results of one service are lost.
TEST_CASE("push_pull__a_push_that_came_is_not_blamed_for_another_partition") {
  int services_blamed = 0, pushes_blamed = 0;
  for (const std::uint16_t silent : std::vector<std::uint16_t>{2, 3}) {
    CAPTURE(silent);
    Job job({}, 2, 2);
    job.network().drop_if = [silent](const Flight& flight) {
      return flight.from == silent && flight.to == 0 && flight.type == mlt::wire::PacketType::kData;
    };
    std::vector<std::vector<float>> values(2, std::vector<float>(200'000, 1.0F));
    job.start(0, push_pull_of(7, values[0], 0));
    job.run_for(kDefaultTimeoutNs - 300 * mlt::base::kMillisecond);
    job.start(1, push_pull_of(7, values[1], 0));
    REQUIRE(job.run_until_done(0, 1));
    const PushPullDone& done = job.done(0)[0];
    CHECK(done.status == CompletionStatus::kTimedOut);
    services_blamed += done.failed_peer == silent;
    pushes_blamed += done.failed_peer == 1;  // of the partition in question, when it was asked about
  }
  CHECK(services_blamed == 1);
  CHECK(pushes_blamed == 1);
}

// Its worker has left after the round, whose result is still on its way to the other, which asks.
TEST_CASE("push_pull__a_question_does_not_end_a_complete_sum_of_a_worker_that_left") {
  Job job({}, 2, 1);
  bool is_held_back = true;
  job.network().drop_if = [&](const Flight& flight) {
    return is_held_back && flight.from == 2 && flight.to == 0 && flight.type == mlt::wire::PacketType::kData;
  };
  std::vector<std::vector<float>> values{std::vector<float>(200'000, 1.0F), std::vector<float>(200'000, 3.0F)};
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(7, values[worker], 0));
  REQUIRE(job.run_until_done(1, 1));
  job.kill(1);
  job.run_for(kDefaultTimeoutNs - 400 * mlt::base::kMillisecond);
  REQUIRE(job.done(0).empty());
  is_held_back = false;
  REQUIRE(job.run_until_done(0, 1));
  CHECK_MESSAGE(job.done(0)[0].status == CompletionStatus::kComplete, job.done(0)[0].error);
  CHECK(values[0][199'999] == 2.0F);
}

TEST_CASE("push_pull__the_reply_about_a_late_push_ends_neither_its_round_nor_the_next") {
  Job job({}, 2, 1);
  std::vector<float> first(1'000, 1.0F), second(1'000, 3.0F);
  job.start(0, push_pull_of(7, first, 0));
  job.run_for(1'400 * mlt::base::kMillisecond);
  // The question leaves 500 ms before the timeout; its reply finds the next round.
  job.slow_ns[{2, 0}] = 300 * mlt::base::kMillisecond;
  job.run_for(200 * mlt::base::kMillisecond);
  job.start(1, push_pull_of(7, second, 0));
  REQUIRE(job.run_until_done(0, 1));
  CHECK(first[999] == 2.0F);
  job.start(0, push_pull_of(7, first, 0));
  job.run_for(400 * mlt::base::kMillisecond);
  REQUIRE(job.done(0).size() == 1);
  REQUIRE(job.run_until_done(1, 1));
  job.start(1, push_pull_of(7, second, 0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) {
    REQUIRE(job.run_until_done(worker, 2));
    CHECK(job.done(worker).back().status == CompletionStatus::kComplete);
  }
  CHECK(first[999] == 2.0F);
}

TEST_CASE("push_pull__a_key_that_finds_no_room_in_time_ends_like_the_one_that_takes_it") {
  SimulationConfig config;
  config.endpoint.max_receives = 1;
  Job job(config, 2, 1);  // worker 1 never pushes, so that worker 0's first key holds its only slot
  std::vector<float> first(100, 1.0F), second(100, 1.0F);
  PushPullRequest request = push_pull_of(1, first, 0.0);
  request.timeout_ns = 3 * mlt::base::kSecond;
  job.start(0, request);
  job.run_for(5'000'000);
  request = push_pull_of(2, second, 0.0);
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
    for (std::size_t key = 0; key < kKeys; ++key) job.start(0, push_pull_of(key, tensors[key], 0.0));
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
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(key, tensors[worker], 0.0));
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
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  job.run_until_summed(2, 1);
  REQUIRE(job.network().run_until_completed(2, 3));  // worker 0 has its result, and the service is yet to notice
  job.kill(1);
  REQUIRE(job.run_until_done(0, 1));
  CHECK(job.done(0)[0].error == "");
  job.start(0, push_pull_of(1, tensors[0], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].status == mlt::core::CompletionStatus::kPeerFailed);
  CHECK(job.done(0)[1].failed_peer == 1);
}
