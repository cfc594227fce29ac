// Checksums of pushes and results: right where nothing is damaged, whatever is lost or late, and any damage is found
// and named at every worker.
#include "collective/push_checksums.h"

#include "push_pull_job.h"

using namespace mlt::test;

namespace {

SummationConfig with_checksums() {
  SummationConfig config;
  config.checksums = true;
  return config;
}

std::vector<std::vector<float>> tensors_of(std::uint16_t workers, std::size_t elements, std::size_t iteration) {
  std::vector<std::vector<float>> tensors;
  for (std::uint16_t worker = 0; worker < workers; ++worker) tensors.push_back(gradient(elements, worker, iteration));
  return tensors;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A push of a worker with 8 bytes in one packet.
void push(PushChecksums& checksums, std::uint16_t worker, const std::vector<std::byte>& data) {
  mlt::core::ReceiveRequest request;
  request.place = [](void*, std::uint64_t, std::span<const std::byte>) {};
  checksums.watch(worker, request);
  request.place(request.place_context, 0, data);
}

}  // namespace

TEST_CASE("compare__takes_the_checksums_of_a_worker_in_the_order_of_its_pushes") {
  PushChecksums checksums(2);
  CHECK(checksums.are_on());
  CHECK_FALSE(PushChecksums(0).are_on());
  const std::vector<std::byte> data(8, std::byte{3});
  const std::uint64_t own = transfer_checksum(data, 1'432);
  push(checksums, 1, data);
  CHECK_FALSE(checksums.compare(1));  // has yet to come
  checksums.on_sent(0, own);
  CHECK_FALSE(checksums.compare(1));  // that of another worker
  checksums.on_sent(1, own);
  CHECK(checksums.compare(1)->is_equal());
  CHECK_FALSE(checksums.compare(1));
  // Two that came before their pushes; a third is dropped.
  checksums.on_sent(1, 5);
  checksums.on_sent(1, own);
  checksums.on_sent(1, 7);
  push(checksums, 1, data);
  const auto changed = checksums.compare(1);
  CHECK_FALSE(changed->is_equal());
  CHECK(changed->sent == 5);
  CHECK(changed->received == own);
  CHECK(checksums.compare(1)->is_equal());
  CHECK_FALSE(checksums.compare(1));
}

TEST_CASE("skip__drops_the_checksum_of_a_push_before_or_after_it_came") {
  PushChecksums checksums(1);
  const std::vector<std::byte> data(8, std::byte{3});
  const std::uint64_t own = transfer_checksum(data, 1'432);
  checksums.skip(0);
  checksums.skip(0);
  checksums.on_sent(0, 1);
  checksums.on_sent(0, 2);
  checksums.on_sent(0, own);
  push(checksums, 0, data);
  CHECK(checksums.compare(0)->is_equal());
  checksums.on_sent(0, 3);
  checksums.skip(0);
  checksums.on_sent(0, own);
  push(checksums, 0, data);
  CHECK(checksums.compare(0)->is_equal());
}

TEST_CASE("push_pull__checksums_compare_every_push_and_result_and_change_nothing") {
  const std::size_t elements = kPartitionElements * 5 / 2;
  for (const std::uint32_t standing : {512U, 0U}) {
    CAPTURE(standing);
    std::vector<std::vector<std::vector<float>>> results;
    for (const bool checksums : {false, true}) {
      SummationConfig config;
      config.checksums = checksums;
      config.max_standing = standing;
      Job job(SimulationConfig{}, 3, 2, config);
      for (std::size_t iteration = 0; iteration < 3; ++iteration) {
        auto tensors = tensors_of(3, elements, iteration);
        for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(9, tensors[worker], 0.0));
        for (std::uint16_t worker = 0; worker < 3; ++worker) {
          REQUIRE(job.run_until_done(worker, iteration + 1));
          REQUIRE(job.done(worker)[iteration].error == "");
        }
        results.push_back(tensors);
      }
      const std::uint64_t rounds = job.summation(3).rounds_summed() + job.summation(4).rounds_summed();
      std::uint64_t pushes = 0, pulls = 0;
      for (std::uint16_t rank = 0; rank < 5; ++rank) {
        const ChecksumCounts& counts = job.checksum_counts(rank);
        (rank < 3 ? pulls : pushes) += counts.compared;
        CHECK(counts.incomplete + counts.different == 0);
      }
      CHECK(rounds == 24);
      CHECK(pushes == (checksums ? 3 * rounds : 0));
      CHECK(pulls == (checksums ? 3 * rounds : 0));
    }
    for (std::size_t iteration = 0; iteration < 3; ++iteration) CHECK(results[iteration] == results[iteration + 3]);
  }
}

TEST_CASE("push_pull__a_push_that_arrives_changed_fails_at_every_worker_and_names_its_sender") {
  for (const bool has_several : {false, true}) {
    CAPTURE(has_several);
    const std::size_t elements = has_several ? kPartitionElements * 2 : 1'000;
    Job job(SimulationConfig{}, 3, 1, with_checksums());
    bool was_damaged = false;
    job.is_damaged = [&](std::uint16_t rank, const mlt::core::ReceiveRequest& request) {
      return rank == 3 && request.peer == 1 && !std::exchange(was_damaged, true);
    };
    auto tensors = tensors_of(3, elements, 0), later = tensors, other = tensors;
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(9, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      CAPTURE(worker);
      REQUIRE(job.run_until_done(worker, 1));
      const PushPullDone& done = job.done(worker)[0];
      CHECK(done.status == mlt::core::CompletionStatus::kCancelled);
      CHECK(done.failed_peer == 1);
      CHECK(has(done.error, "data of rank 1 arrived changed at rank 3 (push of key 9, partition 0, checksum sent "));
      // Whatever follows with the key fails of the same cause; another key works.
      job.start(worker, push_pull_of(9, later[worker], 0.0));
      REQUIRE(job.run_until_done(worker, 2));
      CHECK(job.done(worker)[1].status == mlt::core::CompletionStatus::kCancelled);
      CHECK(job.done(worker)[1].failed_peer == 1);
      CHECK(has(job.done(worker)[1].error, "key 9 failed before: data of rank 1 arrived changed at rank 3"));
      job.start(worker, push_pull_of(10, other[worker], 0.0));
    }
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      REQUIRE(job.run_until_done(worker, 3));
      CHECK(job.done(worker)[2].error == "");
    }
    CHECK(other[0] == other[1]);
    CHECK(job.checksum_counts(3).different == 1);
    REQUIRE(job.notices(3).size() == 1);
    CHECK(has(job.notices(3)[0], "data of rank 1 arrived changed at rank 3"));
  }
}

TEST_CASE("push_pull__a_result_that_arrives_changed_fails_there_at_once_and_at_the_others_in_their_next_call") {
  for (const std::uint16_t max_dead_services : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(max_dead_services);
    Job job(SimulationConfig{}, 3, 2, with_checksums(), max_dead_services);
    bool was_damaged = false;
    job.is_damaged = [&](std::uint16_t rank, const mlt::core::ReceiveRequest&) {
      return rank == 2 && !std::exchange(was_damaged, true);
    };
    auto tensors = tensors_of(3, 1'000, 0), later = tensors;
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(8, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
    const std::string text = "data of rank 3 arrived changed at rank 2 (pull of partition 0 of key 8, checksum sent ";
    CHECK(job.done(2)[0].status == mlt::core::CompletionStatus::kCancelled);
    CHECK(job.done(2)[0].failed_peer == 3);
    CHECK(has(job.done(2)[0].error, text));
    CHECK(tensors[0] == tensors[1]);
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      job.start(worker, push_pull_of(8, later[worker], 0.0));
      REQUIRE(job.run_until_done(worker, 2));
      const PushPullDone& done = job.done(worker)[1];
      CHECK(done.status == mlt::core::CompletionStatus::kCancelled);
      CHECK(done.failed_peer == 3);
      CHECK(has(done.error, text));
    }
    CHECK(job.checksum_counts(2).different == 1);
  }
}

TEST_CASE("push_pull__what_lost_something_is_not_compared") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Job job(lossy(0.05, seed), 2, 1, with_checksums());
    for (std::size_t iteration = 0; iteration < 5; ++iteration) {
      auto tensors = tensors_of(2, 40'000, iteration);
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        PushPullRequest request = push_pull_of(1, tensors[worker], 0.2);
        request.lossy_results = seed % 2 == 0;
        job.start(worker, request);
      }
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        REQUIRE(job.run_until_done(worker, iteration + 1));
        CHECK(job.done(worker)[iteration].error == "");
      }
    }
    CHECK(job.checksum_counts(2).incomplete > 0);
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const ChecksumCounts& counts = job.checksum_counts(rank);
      CHECK(counts.different == 0);
      CHECK(counts.compared + counts.incomplete == (rank == 2 ? 10 : 5));
    }
    CHECK((job.checksum_counts(0).incomplete > 0) == (seed % 2 == 0));
  }
}

TEST_CASE("push_pull__waits_for_checksums_that_come_after_the_data") {
  for (const bool is_worker_slow : {true, false}) {
    CAPTURE(is_worker_slow);
    Job job(SimulationConfig{}, 2, 1, with_checksums());
    auto tensors = tensors_of(2, 1'000, 0), later = tensors;
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
    constexpr mlt::base::DurationNs kSlowNs = 300 * mlt::base::kMillisecond;
    job.slow_ns[is_worker_slow ? std::pair<std::uint16_t, std::uint16_t>{1, 2}
                               : std::pair<std::uint16_t, std::uint16_t>{2, 1}] = kSlowNs;
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, later[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, 2));
      const PushPullDone& done = job.done(worker)[1];
      CHECK(done.error == "");
      // The other worker's push delays everybody's sum, a result's checksum that worker alone.
      CHECK((done.elapsed_ns >= kSlowNs) == (is_worker_slow || worker == 1));
    }
    CHECK(later[0] == later[1]);
  }
}

TEST_CASE("push_pull__a_push_whose_worker_dies_before_its_checksum_comes_counts_as_it_arrived") {
  SummationConfig config = with_checksums();
  config.max_dead_workers = 1;
  Job job(SimulationConfig{}, 2, 1, config);
  auto tensors = tensors_of(2, 1'000, 0), later = tensors_of(2, 1'000, 1);
  const auto terms = later;
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  job.run_for(50 * mlt::base::kMillisecond);
  job.slow_ns[{1, 2}] = mlt::base::kSecond;
  job.start(1, push_pull_of(1, later[1], 0.0));
  REQUIRE(job.run_until_arrived(2));
  job.kill(1);  // which the service learns before the end of the push
  job.start(0, push_pull_of(1, later[0], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error == "");
  CHECK(later[0][7] == (terms[0][7] + terms[1][7]) / 2);
  CHECK(job.checksum_counts(2).incomplete == 1);
}

TEST_CASE("push_pull__waits_no_longer_for_a_checksum_than_for_a_push") {
  constexpr mlt::base::DurationNs kMaxWaitNs = 300 * mlt::base::kMillisecond;
  constexpr mlt::base::DurationNs kSlowNs = 800 * mlt::base::kMillisecond;
  SummationConfig config = waits(kMaxWaitNs);
  config.checksums = true;
  for (const bool lacks_push : {false, true}) {
    CAPTURE(lacks_push);
    Job job(SimulationConfig{}, 3, 1, config);
    auto tensors = tensors_of(3, 1'000, 0), later = tensors, last = tensors;
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 3; ++worker) REQUIRE(job.run_until_done(worker, 1));
    job.slow_ns[{1, 3}] = kSlowNs;
    for (std::uint16_t worker = 0; worker < (lacks_push ? 2 : 3); ++worker) {
      job.start(worker, push_pull_of(1, later[worker], 0.0));
    }
    REQUIRE(job.run_until_done(0, 2));
    const PushPullDone& done = job.done(0)[1];
    CHECK(done.elapsed_ns >= kMaxWaitNs);
    CHECK(done.elapsed_ns < kSlowNs);
    CHECK(job.checksum_counts(3).incomplete == 1);
    REQUIRE(!job.notices(3).empty());
    CHECK(has(job.notices(3)[0], "no checksum of rank 1 within 300 ms after the first push (max_wait)"));
    if (lacks_push) {
      CHECK(has(done.error, "no push of rank 2 within 300 ms"));
      continue;
    }
    CHECK(done.error == "");
    // The checksum that comes too late is not taken for that of the next push.
    job.run_for(mlt::base::kSecond);
    job.slow_ns.clear();
    for (std::uint16_t worker = 0; worker < 3; ++worker) job.start(worker, push_pull_of(1, last[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      REQUIRE(job.run_until_done(worker, 3));
      CHECK(job.done(worker)[2].error == "");
    }
    CHECK(job.checksum_counts(3).compared == 8);
  }
}

TEST_CASE("push_pull__without_the_checksum_of_a_result_it_times_out_and_says_so") {
  Job job(SimulationConfig{}, 2, 1, with_checksums());
  auto tensors = tensors_of(2, 1'000, 0), later = tensors;
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  job.silence(1);
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, later[worker], 0.0));
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error == "");
  REQUIRE(job.run_until_done(1, 2));
  CHECK(job.done(1)[1].status == mlt::core::CompletionStatus::kTimedOut);
  CHECK(job.done(1)[1].failed_peer == -1);
  CHECK(has(job.done(1)[1].error, "the result of partition 0 of key 1 arrived, but not the checksum of"));
  CHECK(job.done(1)[1].elapsed_ns == kDefaultTimeoutNs);
}

TEST_CASE("push_pull__ranks_that_differ_in_checksums_are_named_at_every_worker") {
  for (std::uint16_t without = 0; without < 3; ++without) {
    CAPTURE(without);
    Job job(SimulationConfig{}, 2, 1, with_checksums(), 0, {}, without);
    auto tensors = tensors_of(2, 1'000, 0);
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      CAPTURE(worker);
      REQUIRE(job.run_until_done(worker, 1));
      CHECK(job.done(worker)[0].status == mlt::core::CompletionStatus::kSizeMismatch);
      CHECK(has(job.done(worker)[0].error,
                without == 2 ? " takes checksums and rank 2 none: set checksums"
                             : "rank 2 takes checksums and rank " + std::to_string(without) + " none: set checksums"));
    }
  }
}

TEST_CASE("push_pull__a_service_of_a_release_without_checksums_is_named_at_once") {
  for (const bool is_moved : {false, true}) {
    CAPTURE(is_moved);
    Job job(SimulationConfig{}, 2, 1, with_checksums());
    job.slow_ns[{2, 0}] = mlt::base::kSecond;
    auto tensors = tensors_of(2, 1'000, 0);
    job.start(0, push_pull_of(1, tensors[0], 0.0));
    job.say(2, 0, is_moved ? Message{Moved{1, 0, 0}} : Message{Registered{1, 0}});
    REQUIRE(job.run_until_done(0, 1));
    const PushPullDone& done = job.done(0)[0];
    CHECK(done.elapsed_ns < mlt::base::kMillisecond);
    CHECK(done.status == mlt::core::CompletionStatus::kSizeMismatch);
    CHECK(done.failed_peer == 2);
    CHECK(has(done.error, "rank 2 has no checksums for push-pull"));
  }
}

TEST_CASE("push_pull__damage_of_the_next_push_leaves_a_result_that_is_here") {
  const std::size_t elements = kPartitionElements * 2;  // of two partitions, on two services
  Job job(SimulationConfig{}, 2, 2, with_checksums());
  auto tensors = tensors_of(2, elements, 0), later = tensors, last = tensors;
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(2, tensors[worker], 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  // The second service is slow: the push-pull continues when the first one's result has long been here.
  for (std::uint16_t worker = 0; worker < 2; ++worker) {
    job.slow_ns[{3, worker}] = mlt::base::kSecond;
    job.start(worker, push_pull_of(2, later[worker], 0.0));
  }
  job.run_for(500 * mlt::base::kMillisecond);
  REQUIRE(job.done(0).size() == 1);
  job.say(2, 0, Damaged{2, 0, 1, "data of rank 1 arrived changed"});
  REQUIRE(job.run_until_done(0, 2));
  CHECK(job.done(0)[1].error == "");
  job.start(0, push_pull_of(2, last[0], 0.0));
  REQUIRE(job.run_until_done(0, 3));
  CHECK(job.done(0)[2].status == mlt::core::CompletionStatus::kCancelled);
  CHECK(job.done(0)[2].failed_peer == 1);
  CHECK(has(job.done(0)[2].error, "data of rank 1 arrived changed"));
}

TEST_CASE("push_pull__checksums_of_others_are_ignored") {
  Job job(SimulationConfig{}, 2, 1, with_checksums());
  auto tensors = tensors_of(2, 1'000, 0);
  for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
  for (const std::uint32_t partition : {0U, 1U}) {
    job.say(1, 0, Checksum{1, partition, 5});  // of no service
    job.say(1, 0, Damaged{1, partition, 1, "nothing"});
  }
  job.say(2, 0, Checksum{2, 0, 5});  // no such key
  job.say(2, 0, Checksum{1, 9, 5});
  job.say(2, 0, Damaged{2, 0, 1, "nothing"});
  job.summation(2).on_message(job.network().now(), 2, Checksum{1, 0, 5});
  job.summation(2).on_message(job.network().now(), 0, Checksum{7, 0, 5});
  job.summation(2).on_message(job.network().now(), 9, Damaged{1, 0, 0, "nothing"});
  for (std::uint16_t worker = 0; worker < 2; ++worker) {
    REQUIRE(job.run_until_done(worker, 1));
    CHECK(job.done(worker)[0].error == "");
  }
}
