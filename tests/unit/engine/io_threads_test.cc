// Engines whose paths are served by I/O threads: tensors arrive, memory comes back only when no thread reads it, what
// the system says is heard, bad options are refused.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "unit/engine/engine_job.h"
#include "unit/engine/held_sends.h"

namespace {

using namespace mlt;
using engine_test::HeldSends;
using engine_test::Job;
using engine_test::kSecond;

constexpr std::int64_t kMillisecond = 1'000'000;

Options with_threads(std::uint16_t threads, std::size_t paths) {
  Options options;
  options.io_threads = threads;
  options.paths.resize(paths);
  options.operation_timeout_ns = 20 * kSecond;
  return options;
}

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 + (i >> 8));
  return data;
}

OperationId send(Job& job, std::span<const std::byte> data, std::int64_t timeout_ns = 0) {
  SendOptions options;
  options.to = 1;
  options.data = data;
  options.timeout_ns = timeout_ns;
  return job[0].post_send(options);
}

OperationId receive(Job& job, std::span<std::byte> data, double loss_bound = 0) {
  ReceiveOptions options;
  options.data = data;
  options.element = loss_bound > 0 ? Element::kFloat32 : Element::kUint8;
  options.loss_bound = loss_bound;
  return job[1].post_recv(options);
}

std::uint64_t counter(Engine& engine, const std::string& name) {
  for (const CounterValue& one : engine.counters()) {
    if (one.name == name) return one.value;
  }
  return 0;
}

std::string refusal(const Options& options) {
  try {
    const Engine engine(options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("io_threads__carry_tensors_both_ways_with_and_without_faults") {
  for (const double drop : {0.0, 0.02}) {
    for (const std::uint16_t threads : std::vector<std::uint16_t>{1, 2, 4}) {
      CAPTURE(drop);
      CAPTURE(threads);
      Options options = with_threads(threads, 4);
      options.faults.drop = options.faults.reorder = options.faults.duplicate = drop;
      Job job(2, options);
      const std::vector<std::byte> data = pattern(3'000'000);
      std::vector<std::byte> got(data.size());
      for (int i = 0; i < 3; ++i) {
        std::fill(got.begin(), got.end(), std::byte{0});
        const OperationId received = receive(job, got);
        const OperationId sent = send(job, data);
        CHECK(job.finish(0, sent).status == Status::kComplete);
        CHECK(job.finish(1, received).status == Status::kComplete);
        CHECK(got == data);
      }
      std::uint64_t packets = 0;
      for (const PathStatus& path : job[0].paths(1)) {
        CHECK(path.packets_sent > 0);
        CHECK(path.runs_sent > 0);
        packets += path.packets_sent;
      }
      CHECK(packets >= 3 * data.size() / 1'432);
      CHECK(counter(job[0], "io_threads") == threads);
      CHECK(counter(job[0], "udp_runs_sent") > 0);
      CHECK((counter(job[0], "fault_dropped") > 0) == (drop > 0));
    }
  }
}

TEST_CASE("io_threads__collectives_over_four_ranks_give_every_rank_the_sum") {
  Options options = with_threads(2, 2);
  options.faults.drop = 0.01;
  constexpr std::uint16_t kRanks = 4;
  Job job(kRanks, options);
  for (const double loss_bound : {0.0, 0.05}) {
    std::vector<std::vector<float>> data(kRanks, std::vector<float>(100'000));
    std::vector<OperationId> operations;
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
      std::fill(data[rank].begin(), data[rank].end(), static_cast<float>(rank + 1));
      AllReduceOptions all_reduce;
      all_reduce.data = data[rank];
      all_reduce.average = false;
      all_reduce.loss_bound = loss_bound;
      operations.push_back(job[rank].post_all_reduce(all_reduce));
    }
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) CHECK(!job.finish(rank, operations[rank]).failed());
    for (std::uint16_t rank = 1; rank < kRanks; ++rank) CHECK(data[rank] == data[0]);
    if (loss_bound == 0) CHECK(data[0] == std::vector<float>(data[0].size(), 10.0F));
  }
}

// The heart of it: a completion gives the memory back, so it may not come while a thread still reads that.
TEST_CASE("io_threads__no_completion_comes_while_a_thread_is_sending_the_tensor") {
  enum class End { kCancel, kTimeout, kPeerGone, kClose };
  for (const End end : {End::kCancel, End::kTimeout, End::kPeerGone, End::kClose}) {
    CAPTURE(static_cast<int>(end));
    const std::vector<std::byte> data = pattern(400'000);
    std::vector<std::byte> got(data.size());
    Job job(2, with_threads(1, 1));
    receive(job, got);
    HeldSends held;
    const OperationId sent = send(job, data, end == End::kTimeout ? 100 * kMillisecond : 0);
    REQUIRE(held.wait_for_one());
    std::thread closing;
    if (end == End::kCancel) job[0].cancel(sent);
    if (end == End::kPeerGone) job.engines[1].reset();
    if (end == End::kClose) closing = std::thread([&] { job[0].close(); });
    CHECK(!job[0].wait(sent, 400 * kMillisecond).has_value());
    held.release();
    const Completion done = job.finish(0, sent);
    CHECK(done.failed());
    CHECK(done.status == (end == End::kTimeout    ? Status::kTimedOut
                          : end == End::kPeerGone ? Status::kPeerFailed
                                                  : Status::kCancelled));
    if (closing.joinable()) closing.join();
  }
}

TEST_CASE("io_threads__what_waited_for_a_thread_when_the_engine_was_closed_ends_as_it_did") {
  const std::vector<std::byte> data = pattern(400'000);
  std::vector<std::byte> got(data.size());
  Job job(2, with_threads(1, 1));
  receive(job, got);
  HeldSends held;
  const OperationId sent = send(job, data, 100 * kMillisecond);
  REQUIRE(held.wait_for_one());
  CHECK(!job[0].wait(sent, 400 * kMillisecond).has_value());
  std::thread closing([&] { job[0].close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // close() is in the loop's thread by then
  held.release();
  CHECK(job.finish(0, sent).status == Status::kTimedOut);
  closing.join();
}

// And it holds back no more than it must: receives, and sends that nothing of is queued.
TEST_CASE("io_threads__a_thread_that_is_stuck_holds_no_receive_back") {
  const std::vector<std::byte> data = pattern(400'000);
  std::vector<std::byte> got(data.size());
  Job job(2, with_threads(1, 1));
  ReceiveOptions options;
  options.from = 1;
  options.data = got;
  HeldSends held;
  send(job, data);
  REQUIRE(held.wait_for_one());
  const OperationId received = job[0].post_recv(options);
  job[0].cancel(received);
  CHECK(job[0].wait(received, 5 * kSecond).has_value());
}

TEST_CASE("io_threads__leave_no_port_behind") {
  Options options = with_threads(2, 2);
  options.ranks = 2;
  for (int i = 0; i < 10; ++i) {
    Engine engine(options);
    for (std::size_t path = 0; path < 2; ++path) {  // the same ports next time: taken ones would be refused
      const std::string local = engine.paths(1)[path].local;
      options.paths[path].udp_port = static_cast<std::uint16_t>(std::stoi(local.substr(local.rfind(':') + 1)));
    }
  }
}

TEST_CASE("io_threads__refuses_what_makes_no_sense_before_anything_is_opened") {
  CHECK(refusal(with_threads(2, 0))
            .find("rank 0: io_threads is 2, and there is 1 path: each thread serves one at "
                  "least; give fewer threads, or more paths") == 0);
  CHECK(refusal(with_threads(5, 4)).find("io_threads is 5, and there are 4 paths") != std::string::npos);
  Options options = with_threads(2, 4);
  options.io_cpus = {0};
  CHECK(refusal(options).find("io_threads is 2 and io_cpus names 1 CPUs: give one for each thread") !=
        std::string::npos);
  options.io_cpus = {0, -1};
  CHECK(refusal(options).find("io_cpus names CPU -1") != std::string::npos);
  options.io_cpus = {0, 4'000};
  CHECK(refusal(options).find("rank 0: I/O thread 1 can't run on CPU 4000: this process may use 0") == 0);
  options = with_threads(1, 0);
  options.datapath = "xdp";
  CHECK(refusal(options).find("datapath 'xdp' is served by the thread that runs the protocol") != std::string::npos);
  options.io_threads = 0;
  options.io_cpus = {0};
  options.datapath = "auto";
  CHECK(refusal(options).find("io_threads is 0 and io_cpus names 1 CPUs") != std::string::npos);
}
