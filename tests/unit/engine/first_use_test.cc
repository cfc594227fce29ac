// Engines whose connections are set up on first use: what each verb connects, and who learns of failures.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/time.h"
#include "mlt.h"
#include "support/soon.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;

using base::kSecond;
using test::soon;

Options on_use_options() {
  Options options;
  options.connects_on_use = true;
  options.peer_timeout_ns = kSecond;
  options.operation_timeout_ns = 20 * kSecond;
  return options;
}

struct OnUseJob : engine_test::Job {
  explicit OnUseJob(std::uint16_t ranks) : engine_test::Job(ranks, on_use_options()) {}
  explicit OnUseJob(std::uint16_t ranks, const Options& options) : engine_test::Job(ranks, options) {}
  bool are_connected(std::uint16_t a, std::uint16_t b) const { return engines[a]->is_peer_up(b); }
  std::size_t connections(std::uint16_t rank) const {
    std::size_t up = 0;
    for (std::uint16_t peer = 0; peer < engines.size(); ++peer) up += peer != rank && engines[rank]->is_peer_up(peer);
    return up;
  }
  OperationId send(std::uint16_t from, std::uint16_t to, const std::vector<int>& data) {
    SendOptions options;
    options.to = to;
    options.data = std::as_bytes(std::span(data));
    options.element = Element::kInt32;
    return engines[from]->post_send(options);
  }
  OperationId receive(std::uint16_t to, std::uint16_t from, std::vector<int>& data) {
    ReceiveOptions options;
    options.from = from;
    options.data = std::as_writable_bytes(std::span(data));
    options.element = Element::kInt32;
    return engines[to]->post_recv(options);
  }
  OperationId sum(std::uint16_t rank, std::vector<float>& data, Algorithm algorithm = Algorithm::kRing) {
    AllReduceOptions options;
    options.data = std::as_writable_bytes(std::span(data));
    options.reduction = Reduction::kSum;
    options.algorithm = algorithm;
    return engines[rank]->post_all_reduce(options);
  }
};

// The error of a post; empty if it threw none.
template <typename Post>
std::optional<Error> thrown_by(Post&& post) {
  try {
    post();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Runs `body(rank)` on a thread for each rank but `without`.
template <typename Body>
void on_all(const OnUseJob& job, int without, Body&& body) {
  std::vector<std::thread> threads;
  for (std::uint16_t rank = 0; rank < job.engines.size(); ++rank) {
    if (rank != without) threads.emplace_back([&body, rank] { body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("first_use__connects_the_two_ranks_of_a_transfer_and_no_other") {
  for (const bool begins_below : {false, true}) {
    for (const bool sends_first : {false, true}) {
      CAPTURE(begins_below);
      CAPTURE(sends_first);
      OnUseJob job(3);
      CHECK(job[0].test_connected());
      CHECK(job.connections(0) + job.connections(1) + job.connections(2) == 0);
      const std::uint16_t first = begins_below ? 0 : 2, second = begins_below ? 2 : 0;
      const std::vector<int> sent{1, 2, 3};
      std::vector<int> received(3);
      const OperationId one = sends_first ? job.send(first, second, sent) : job.receive(first, second, received);
      CHECK(job.are_connected(first, second));
      const OperationId two = sends_first ? job.receive(second, first, received) : job.send(second, first, sent);
      CHECK(job.finish(first, one).error == "");
      CHECK(job.finish(second, two).error == "");
      CHECK(received == sent);
      CHECK(job.connections(0) == 1);
      CHECK(job.connections(1) == 0);
      CHECK(job.connections(2) == 1);
    }
  }
}

TEST_CASE("first_use__by_both_sides_of_all_pairs_at_once_makes_one_connection_each") {
  constexpr std::uint16_t kRanks = 5;
  OnUseJob job(kRanks);
  std::atomic<int> wrong = 0;
  on_all(job, -1, [&](std::uint16_t rank) {
    std::vector<std::vector<int>> received(kRanks, std::vector<int>(4));
    const std::vector<int> sent(4, rank);
    std::vector<OperationId> operations;
    for (std::uint16_t peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      operations.push_back(job.send(rank, peer, sent));
      operations.push_back(job.receive(rank, peer, received[peer]));
    }
    for (const OperationId operation : operations) {
      const auto done = job[rank].wait(operation, 20 * kSecond);
      if (!done || !done->error.empty()) ++wrong;
    }
    for (std::uint16_t peer = 0; peer < kRanks; ++peer) {
      if (peer != rank && received[peer] != std::vector<int>(4, peer)) ++wrong;
    }
  });
  CHECK(wrong == 0);
  for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
    CHECK(job.connections(rank) == kRanks - 1U);
    CHECK(job.count(rank, "control_refusals") == 0);
    CHECK(job.count(rank, "control_malformed") == 0);
    CHECK(job.count(rank, "control_unproved") == 0);
  }
}

TEST_CASE("first_use__segment_count_connects") {
  OnUseJob job(2);
  CHECK(job[0].segment_count(1, 1'000'000) > 0);
  CHECK(job.are_connected(0, 1));
}

TEST_CASE("first_use__a_ring_has_two_connections_a_rank_and_sums_exactly") {
  constexpr std::uint16_t kRanks = 6;
  OnUseJob job(kRanks);
  std::vector<std::vector<float>> data(kRanks);
  for (int call = 0; call < 2; ++call) {
    std::vector<OperationId> operations(kRanks);
    on_all(job, -1, [&](std::uint16_t rank) {
      data[rank].assign(10'000, static_cast<float>(rank + 1));
      operations[rank] = job.sum(rank, data[rank]);
    });
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
      CHECK(job.finish(rank, operations[rank]).error == "");
      CHECK(data[rank] == std::vector<float>(10'000, 21));
      CHECK(job.connections(rank) == 2);
    }
  }
}

TEST_CASE("first_use__push_pull_connects_workers_with_services_only") {
  OnUseJob job(5);
  const std::vector<std::uint16_t> services{3, 4};
  for (const std::uint16_t service : services) job[service].serve(3);
  for (std::uint16_t worker = 0; worker < 3; ++worker) job[worker].use_services(services, 3);
  std::vector<std::vector<float>> output(3, std::vector<float>(50'000));
  const std::vector<float> input(50'000, 2);
  std::vector<OperationId> operations;
  for (std::uint16_t worker = 0; worker < 3; ++worker) {
    PushPullOptions options;
    options.key = 1;
    options.input = input;
    options.output = output[worker];
    options.average = false;
    operations.push_back(job[worker].push_pull(options));
  }
  for (std::uint16_t worker = 0; worker < 3; ++worker) {
    CHECK(job.finish(worker, operations[worker]).error == "");
    CHECK(output[worker] == std::vector<float>(50'000, 6));
    CHECK(job.connections(worker) == 2);
  }
  CHECK(soon([&] { return job.connections(3) == 4 && job.connections(4) == 4; }));
  CHECK_FALSE(job[3].wait_workers_gone(1));
  for (std::uint16_t worker = 0; worker < 3; ++worker) job[worker].close();
  CHECK(job[3].wait_workers_gone(10 * kSecond));
}

TEST_CASE("first_use__a_rank_that_nobody_used_closes_at_once") {
  OnUseJob job(3);
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t rank = 0; rank < 3; ++rank) job[rank].close();
  CHECK(seconds_since(began) < 0.5);
}

TEST_CASE("first_use__a_rank_that_ended_before_is_named_within_the_silence_limit") {
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{2}}) {
    CAPTURE(rank);
    OnUseJob job(3);
    job[1].close();
    const std::vector<int> sent{1};
    const auto began = std::chrono::steady_clock::now();
    const auto error = thrown_by([&] { job.send(rank, 1, sent); });
    CHECK(seconds_since(began) < 3);
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::kPeerFailed);
    CHECK(error->peer() == 1);
    CHECK(std::string(error->what()).find("could not reach rank 1 at 127.0.0.1:") != std::string::npos);
    CHECK(job[rank].peer_failure(1) != "");
    // At once from now on.
    const auto again = std::chrono::steady_clock::now();
    CHECK(thrown_by([&] { job.send(rank, 1, sent); }).has_value());
    CHECK(seconds_since(again) < 0.5);
  }
}

TEST_CASE("first_use__a_post_that_waits_ends_when_the_context_closes") {
  Options options = on_use_options();
  options.peer_timeout_ns = 20 * kSecond;
  OnUseJob job(2, options);
  job[1].close();
  std::optional<Error> error;
  std::thread poster([&] { error = thrown_by([&] { job.send(0, 1, {1}); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the post to begin its wait: no event shows it
  job[0].close();
  poster.join();
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kClosed);
}

TEST_CASE("first_use__on_wait_may_end_a_post") {
  Options options = on_use_options();
  options.rank = 0;
  options.ranks = 2;
  options.job = 42;
  Engine engine(options);
  struct Interrupt {};
  engine.set_on_wait([] { throw Interrupt{}; });
  const PeerAddress nowhere{1, "127.0.0.1", 1};
  engine.connect({&nowhere, 1}, 10 * kSecond);
  SendOptions send;
  send.to = 1;
  CHECK_THROWS_AS(engine.post_send(send), Interrupt);
}

TEST_CASE("first_use__of_a_rank_without_an_address_is_rejected_at_once") {
  Options options = on_use_options();
  options.rank = 0;
  options.ranks = 3;
  Engine engine(options);
  const PeerAddress nowhere{1, "127.0.0.1", 1};
  engine.start_connect({&nowhere, 1}, 10 * kSecond);
  SendOptions send;
  send.to = 2;
  const auto error = thrown_by([&] { engine.post_send(send); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kPeerFailed);
}

TEST_CASE("first_use__of_a_member_that_ended_before_every_member_learns_in_its_first_call") {
  constexpr std::uint16_t kRanks = 6, kEnded = 3;
  OnUseJob job(kRanks);
  job[kEnded].close();
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(100, 1));
  std::vector<Completion> done(kRanks);
  on_all(job, kEnded, [&](std::uint16_t rank) {
    if (auto one = job[rank].wait(job.sum(rank, data[rank]), 15 * kSecond)) done[rank] = *one;
  });
  CHECK(seconds_since(began) < 5);
  for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
    if (rank == kEnded) continue;
    CAPTURE(rank);
    CAPTURE(done[rank].error);
    CHECK(done[rank].status == Status::kPeerFailed);
    CHECK(done[rank].failed_peer == kEnded);
  }
  CHECK_FALSE(job.are_connected(0, kEnded));
}

TEST_CASE("first_use__of_a_member_that_fails_between_calls_every_member_learns_in_its_next_call") {
  constexpr std::uint16_t kRanks = 6, kFailing = 3;
  OnUseJob job(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(100, 1));
  on_all(job, -1, [&](std::uint16_t rank) { job[rank].wait(job.sum(rank, data[rank]), 15 * kSecond); });
  job[kFailing].close("it ran out of memory");
  CHECK(soon([&] { return !job.are_connected(2, kFailing) && !job.are_connected(4, kFailing); }));
  // Only rank 0 calls, which has no connection with the rank that failed, and whose neighbours do not call.
  const auto began = std::chrono::steady_clock::now();
  const Completion done = job.finish(0, job.sum(0, data[0]));
  CHECK(seconds_since(began) < 3);
  CAPTURE(done.error);
  CHECK(done.status == Status::kPeerFailed);
  CHECK(done.failed_peer == kFailing);
  CHECK(done.error.find("it ran out of memory") != std::string::npos);
}

TEST_CASE("first_use__a_member_that_connects_after_a_failure_learns_of_it") {
  constexpr std::uint16_t kRanks = 6;
  OnUseJob job(kRanks);
  job[3].close();
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(100, 1));
  // Rank 2 fails before rank 1, with which it connects for that, calls; ranks 0 and 1 are connected by then or later.
  CHECK(job.finish(2, job.sum(2, data[2])).failed_peer == 3);
  CHECK(job.finish(1, job.sum(1, data[1])).failed_peer == 3);
  const auto began = std::chrono::steady_clock::now();
  CHECK(job.finish(0, job.sum(0, data[0])).failed_peer == 3);
  CHECK(job.finish(5, job.sum(5, data[5])).failed_peer == 3);
  CHECK(seconds_since(began) < 5);
}

TEST_CASE("first_use__a_group_resumes_after_a_call_that_one_member_cancelled") {
  constexpr std::uint16_t kRanks = 6;
  OnUseJob job(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(100, 1));
  std::vector<OperationId> operations(kRanks);
  on_all(job, 5, [&](std::uint16_t rank) { operations[rank] = job.sum(rank, data[rank]); });
  job[0].cancel(operations[0], "enough");
  for (std::uint16_t rank = 0; rank < kRanks - 1; ++rank) {
    const Completion done = job.finish(rank, operations[rank]);
    CAPTURE(done.error);
    CHECK(done.status == Status::kCancelled);
    CHECK(done.error.find("enough") != std::string::npos);
  }
  operations[5] = job.sum(5, data[5]);
  CHECK(job.finish(5, operations[5]).status == Status::kCancelled);
  on_all(job, -1, [&](std::uint16_t rank) {
    data[rank].assign(100, 1);
    operations[rank] = job.sum(rank, data[rank]);
  });
  for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
    const Completion done = job.finish(rank, operations[rank]);
    CHECK(done.error == "");
    CHECK(data[rank] == std::vector<float>(100, kRanks));
  }
}

TEST_CASE("first_use__of_another_number_of_paths_is_refused_with_both_numbers") {
  Options options = on_use_options();
  options.ranks = 2;
  options.job = 42;
  Options other = options;
  other.rank = 1;
  other.paths.resize(2);
  Engine zero(options), one(other);
  const PeerAddress to_one{1, "127.0.0.1", one.control_port()}, to_zero{0, "127.0.0.1", zero.control_port()};
  zero.connect({&to_one, 1}, 10 * kSecond);
  one.connect({&to_zero, 1}, 10 * kSecond);
  for (Engine* engine : {&zero, &one}) {
    SendOptions send;
    send.to = engine == &zero ? 1 : 0;
    const auto error = thrown_by([&] { engine->post_send(send); });
    REQUIRE(error.has_value());
    CHECK(std::string(error->what()).find("number of paths differs") != std::string::npos);
  }
}

TEST_CASE("first_use__of_peers_of_one_host_shares_memory") {
  OnUseJob job(2);
  std::vector<int> received(1);
  const OperationId receive = job.receive(1, 0, received);
  job.finish(0, job.send(0, 1, {5}));
  job.finish(1, receive);
  CHECK(job[0].paths(1)[0].local == "shared memory");
}

TEST_CASE("first_use__blocked_datagrams_are_named") {
  Options options = on_use_options();
  options.faults.drop = 1.0;
  OnUseJob job(2, options);
  std::vector<int> received(1);
  const OperationId receive = job.receive(1, 0, received);
  const Completion done = job.finish(1, receive);
  CHECK(done.status == Status::kPeerFailed);
  CHECK(done.error.find("UDP") != std::string::npos);
}
