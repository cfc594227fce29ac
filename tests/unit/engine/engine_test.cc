// Engines of several ranks in one process, over real sockets on loopback.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "mlt.h"
#include "support/allocation_counter.h"
#include "support/soon.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;

using engine_test::Job;
using engine_test::kSecond;
using test::soon;

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 31 + seed * 17 + (i >> 8)) | 1U);
  return bytes;
}

Completion finish(Engine& engine, OperationId operation) {
  auto done = engine.wait(operation, 20 * kSecond);
  REQUIRE(done.has_value());
  return *done;
}

SendOptions to(std::uint16_t rank, std::uint64_t tag, std::span<const std::byte> data) {
  SendOptions options;
  options.to = rank;
  options.tag = tag;
  options.data = data;
  options.element = Element::kFloat32;
  return options;
}

ReceiveOptions from(std::uint16_t rank, std::uint64_t tag, std::span<std::byte> data, double bound = 0) {
  ReceiveOptions options;
  options.from = rank;
  options.tag = tag;
  options.data = data;
  options.element = Element::kFloat32;
  options.loss_bound = bound;
  return options;
}

}  // namespace

TEST_CASE("engine__sends_and_receives_many_sizes_both_ways") {
  Job job(2);
  for (const std::size_t size : {0U, 4U, 1'432U, 1'436U, 65'536U, 1'000'000U, 20'000'000U}) {
    CAPTURE(size);
    const auto a = pattern(size, 1), b = pattern(size, 2);
    std::vector<std::byte> at0(size), at1(size);
    const auto r1 = job[1].post_recv(from(0, 7, at1));
    const auto r0 = job[0].post_recv(from(1, 7, at0));
    const auto s0 = job[0].post_send(to(1, 7, a));
    const auto s1 = job[1].post_send(to(0, 7, b));
    CHECK(finish(job[0], s0).status == Status::kComplete);
    CHECK(finish(job[1], s1).status == Status::kComplete);
    CHECK(finish(job[0], r0).missing_bytes == 0);
    CHECK(finish(job[1], r1).missing_bytes == 0);
    CHECK(at1 == a);
    CHECK(at0 == b);
  }
}

TEST_CASE("engine__a_send_before_its_receive_arrives_whole") {
  Job job(2);
  const auto data = pattern(3'000'000, 5);
  std::vector<std::byte> got(data.size());
  const auto sent = job[0].post_send(to(1, 1, data));
  REQUIRE(soon([&] { return job.count(1, "early_segments_kept") > 0; }));
  const auto received = job[1].post_recv(from(0, 1, got));
  CHECK(finish(job[1], received).status == Status::kComplete);
  CHECK(finish(job[0], sent).status == Status::kComplete);
  CHECK(got == data);
}

TEST_CASE("engine__loss_stays_within_the_bound_and_is_reported") {
  FaultOptions faults;
  faults.drop = 0.03;
  faults.seed = 11;
  Job job(2, faults);
  const auto data = pattern(4'000'000, 3);
  for (const double bound : {0.0, 0.1}) {
    CAPTURE(bound);
    std::vector<std::byte> got(data.size(), std::byte{0xEE});
    const auto received = job[1].post_recv(from(0, 9, got, bound));
    const auto sent = job[0].post_send(to(1, 9, data));
    const Completion done = finish(job[1], received);
    const Completion send_done = finish(job[0], sent);
    CHECK_FALSE(done.failed());
    std::uint64_t missing = 0;
    for (const Range& range : done.missing) {
      missing += range.length_bytes;
      for (std::uint64_t i = 0; i < range.length_bytes; ++i) REQUIRE(got[range.offset_bytes + i] == std::byte{0});
    }
    CHECK(missing == done.missing_bytes);
    CHECK(missing <= static_cast<std::uint64_t>(bound * 1'000'000) * 4);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < data.size(); ++i) wrong += got[i] != data[i] ? 1U : 0U;
    CHECK(wrong == missing);
    if (bound == 0.0) {
      CHECK(done.status == Status::kComplete);
      CHECK(send_done.repaired_segments > 0);
    } else {
      CHECK(done.status == Status::kWithinBound);
      CHECK(missing > 0);
      CHECK(send_done.missing_bytes == missing);
    }
  }
}

TEST_CASE("engine__everything_arrives_under_every_fault") {
  FaultOptions faults;
  faults.drop = 0.1;
  faults.duplicate = 0.05;
  faults.reorder = 0.05;
  faults.corrupt = 0.05;
  faults.seed = 3;
  Job job(3, faults);
  std::vector<std::vector<std::byte>> data, got;
  struct Pair {
    std::size_t rank;
    OperationId operation;
  };
  std::vector<Pair> operations;
  for (unsigned i = 0; i < 60; ++i) data.push_back(pattern(4 * (i * i * 37 % 50'000), i));
  for (const auto& tensor : data) got.emplace_back(tensor.size());
  for (unsigned i = 0; i < 60; ++i) {
    const auto source = static_cast<std::uint16_t>(i % 3), target = static_cast<std::uint16_t>((i + 1 + i / 3 % 2) % 3);
    operations.push_back({target, job[target].post_recv(from(source, i, got[i]))});
    operations.push_back({source, job[source].post_send(to(target, i, data[i]))});
  }
  for (const Pair& pair : operations) CHECK_FALSE(finish(job[pair.rank], pair.operation).failed());
  CHECK(got == data);
}

TEST_CASE("engine__a_mismatch_fails_both_sides_and_nothing_else") {
  Job job(2);
  const auto data = pattern(8'000, 1);
  std::vector<std::byte> small(4'000), same(8'000);
  const auto bad_receive = job[1].post_recv(from(0, 1, small));
  const auto bad_send = job[0].post_send(to(1, 1, data));
  ReceiveOptions integers = from(0, 2, same);
  integers.element = Element::kInt32;
  const auto typed_receive = job[1].post_recv(integers);
  const auto typed_send = job[0].post_send(to(1, 2, data));
  std::vector<std::byte> good(8'000);
  const auto good_receive = job[1].post_recv(from(0, 3, good));
  const auto good_send = job[0].post_send(to(1, 3, data));

  const Completion size_error = finish(job[1], bad_receive);
  CHECK(size_error.status == Status::kSizeMismatch);
  CHECK(size_error.error.find("8000") != std::string::npos);
  CHECK(size_error.error.find("4000") != std::string::npos);
  CHECK(finish(job[0], bad_send).status == Status::kSizeMismatch);
  const Completion type_error = finish(job[1], typed_receive);
  CHECK(type_error.status == Status::kTypeMismatch);
  CHECK(type_error.error.find("float32") != std::string::npos);
  CHECK(type_error.error.find("int32") != std::string::npos);
  CHECK(finish(job[0], typed_send).status == Status::kTypeMismatch);
  CHECK_FALSE(finish(job[1], good_receive).failed());
  CHECK_FALSE(finish(job[0], good_send).failed());
  CHECK(good == data);
}

TEST_CASE("engine__bad_arguments_are_refused_at_once") {
  Job job(2);
  std::vector<std::byte> bytes(400);
  const auto code_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kSystem;
  };
  CHECK(code_of([&] { job[0].post_send(to(0, 1, bytes)); }) == ErrorCode::kUnknownPeer);
  CHECK(code_of([&] { job[0].post_send(to(5, 1, bytes)); }) == ErrorCode::kUnknownPeer);
  CHECK(code_of([&] { job[0].post_recv(from(1, 1, bytes, 1.0)); }) == ErrorCode::kConfig);
  CHECK(code_of([&] { job[0].post_recv(from(1, 1, bytes, -0.1)); }) == ErrorCode::kConfig);
  CHECK(code_of([&] {
          ReceiveOptions lossy = from(1, 1, bytes, 0.1);
          lossy.element = Element::kInt64;
          job[0].post_recv(lossy);
        }) == ErrorCode::kBuffer);
  CHECK(code_of([&] { job[0].wait(99, 0); }) == ErrorCode::kUnknownOperation);
}

TEST_CASE("engine__takes_the_map_of_classes_to_dscps_from_its_options") {
  const Engine plain(Options{});
  CHECK(plain.data_dscp() == std::vector<std::uint8_t>{3, 7, 11, 15, 19, 23, 27});
  CHECK(plain.control_dscp() == 31);
  CHECK(plain.traffic_class(9, 10) == 6);

  Options options;
  options.data_dscp = {46, 40, 0};
  options.control_dscp = 48;
  const Engine three(options);
  CHECK(three.data_dscp() == options.data_dscp);
  CHECK(three.control_dscp() == 48);
  // Layers are spread over as many classes as there are.
  CHECK(three.traffic_class(0, 10) == 0);
  CHECK(three.traffic_class(4, 10) == 1);
  CHECK(three.traffic_class(9, 10) == 2);

  options.data_dscp = {1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(Engine(options).traffic_class(7, 8) == 7);
}

TEST_CASE("engine__a_bad_map_of_dscps_is_refused_by_the_options_name") {
  const auto text_of = [](std::vector<std::uint8_t> data, std::uint8_t control) -> std::string {
    Options options;
    options.data_dscp = std::move(data);
    options.control_dscp = control;
    try {
      const Engine engine(options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "taken";
  };
  CHECK(text_of({63}, 62) == "taken");
  CHECK(text_of({1, 2, 3, 4, 5, 6, 7, 8, 9}, 31) ==
        "rank 0: data_dscp names 9 classes; there are 1 to 8, or none for the default map");
  CHECK(text_of({46, 64}, 48) == "rank 0: data_dscp[1] is 64: a DSCP is 0 to 63");
  CHECK(text_of({46, 40, 46}, 48) == "rank 0: data_dscp[2] is 46, as data_dscp[0]: each class needs its own");
  CHECK(text_of({46, 48}, 48) == "rank 0: control_dscp is 48, as data_dscp[1]: control needs a class of its own");
  CHECK(text_of({46}, 255) == "rank 0: control_dscp is 255: a DSCP is 0 to 63");
  // The default map's own code points count, too.
  CHECK(text_of({}, 27) == "rank 0: control_dscp is 27, as data_dscp[6]: control needs a class of its own");
}

TEST_CASE("engine__a_class_that_the_map_lacks_is_refused_and_not_moved") {
  Options options;
  options.data_dscp = {46, 40};
  options.control_dscp = 48;
  Job job(2, options);
  std::vector<std::byte> bytes(4), got(4);
  SendOptions third = to(1, 1, bytes);
  third.priorities = {SegmentPriority{2}};
  try {
    job[0].post_send(third);
    FAIL("class 2 of two was taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    CHECK(std::string(error.what()).find("has class 2, and the map of DSCPs has classes 0 to 1") != std::string::npos);
  }
  third.priorities = {SegmentPriority{1}};
  const auto received = job[1].post_recv(from(0, 1, got));
  const auto sent = job[0].post_send(third);
  CHECK(finish(job[1], received).status == Status::kComplete);
  CHECK(finish(job[0], sent).status == Status::kComplete);
}

TEST_CASE("engine__port_in_use_is_named") {
  Options options;
  options.ranks = 2;
  Engine first(options);
  options.control_port = first.control_port();
  try {
    Engine second(options);
    FAIL("the second engine took the same port");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kPortInUse);
    CHECK(std::string(error.what()).find(std::to_string(options.control_port)) != std::string::npos);
  }
}

TEST_CASE("engine__another_job_is_refused_on_both_sides") {
  Options options;
  options.ranks = 2;
  options.job = 1;
  Engine zero(options);
  options.rank = 1;
  options.job = 2;
  Engine one(options);
  std::string texts[2];
  std::thread other([&] {
    try {
      zero.connect(std::vector<PeerAddress>{{1, "127.0.0.1", one.control_port()}}, 2 * kSecond);
    } catch (const Error& error) {
      texts[0] = error.what();
    }
  });
  try {
    one.connect(std::vector<PeerAddress>{{0, "127.0.0.1", zero.control_port()}}, 2 * kSecond);
  } catch (const Error& error) {
    texts[1] = error.what();
  }
  other.join();
  CHECK(texts[0].find("job") != std::string::npos);
  CHECK(texts[1].find("job") != std::string::npos);
}

TEST_CASE("engine__a_peer_that_leaves_fails_what_is_under_way_with_it_only") {
  Job job(3);
  std::vector<std::byte> never(4'000), got(4'000);
  const auto data = pattern(4'000, 2);
  const auto hanging = job[0].post_recv(from(2, 1, never));
  const auto received = job[0].post_recv(from(1, 1, got));
  job[2].close();
  const Completion failed = finish(job[0], hanging);
  CHECK(failed.status == Status::kPeerFailed);
  CHECK(failed.error.find("rank 2") != std::string::npos);
  const auto sent = job[1].post_send(to(0, 1, data));
  CHECK_FALSE(finish(job[0], received).failed());
  CHECK_FALSE(finish(job[1], sent).failed());
  CHECK(got == data);
  CHECK_THROWS_AS(job[0].post_send(to(2, 2, data)), Error);
}

TEST_CASE("engine__closing_right_after_the_last_receive_loses_nothing_even_if_every_stop_is_lost") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    FaultOptions faults;
    faults.drop = 0.3;
    faults.seed = seed;
    Job job(2, faults);
    const auto data = pattern(30'000, 2);
    std::vector<std::byte> got(data.size());
    const auto received = job[1].post_recv(from(0, 1, got));
    const auto sent = job[0].post_send(to(1, 1, data));
    CHECK_FALSE(finish(job[1], received).failed());
    job[1].close();
    CHECK(finish(job[0], sent).status == Status::kComplete);
    CHECK(got == data);
  }
}

TEST_CASE("engine__an_unmatched_receive_times_out_and_a_cancel_ends_one") {
  Job job(2, {}, kSecond / 5);
  std::vector<std::byte> never(400);
  const auto lonely = job[0].post_recv(from(1, 1, never));
  const Completion done = finish(job[0], lonely);
  CHECK(done.status == Status::kTimedOut);
  ReceiveOptions patient = from(1, 2, never);
  patient.timeout_ns = 100 * kSecond;
  const auto cancelled = job[0].post_recv(patient);
  CHECK_FALSE(job[0].wait(cancelled, kSecond / 50).has_value());
  job[0].cancel(cancelled);
  CHECK(finish(job[0], cancelled).status == Status::kCancelled);
}

TEST_CASE("post_recv__does_not_wake_the_io_thread") {
  Job job(2);
  constexpr std::size_t kReceives = 50;
  std::vector<std::byte> data(kReceives * 400);
  std::vector<OperationId> receives;
  const std::uint64_t before = job.count(0, "engine_sleeps");
  for (std::size_t i = 0; i < kReceives; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // an I/O thread that a post woke sleeps again
    receives.push_back(job[0].post_recv(from(1, i, std::span(data).subspan(i * 400, 400))));
  }
  CHECK(job.count(0, "engine_sleeps") - before < kReceives / 2);
  const std::vector<std::byte> sent = pattern(400, 3);
  for (std::size_t i = 0; i < kReceives; ++i) {
    const auto send = job[1].post_send(to(0, i, sent));
    CHECK(finish(job[0], receives[i]).status == Status::kComplete);
    CHECK(finish(job[1], send).status == Status::kComplete);
    CHECK(std::equal(sent.begin(), sent.end(), data.begin() + static_cast<std::ptrdiff_t>(i * 400)));
  }
}

TEST_CASE("post_recv__ends_when_it_is_due_though_nothing_wakes_the_io_thread") {
  Job job(2);
  std::vector<std::byte> never(400);
  std::int64_t soonest_ns = kSecond;
  for (int i = 0; i < 5; ++i) {
    ReceiveOptions due = from(1, 1, never);
    due.deadline_ns = kSecond / 50;
    const Completion done = finish(job[0], job[0].post_recv(due));
    CHECK(done.status == Status::kDeadline);
    CHECK(done.elapsed_ns >= due.deadline_ns);
    soonest_ns = std::min(soonest_ns, done.elapsed_ns);
  }
  CHECK(soonest_ns < kSecond / 10);  // heartbeats wake it a few times a second
}

TEST_CASE("post_recv__of_a_transfer_aborted_before_it_ends_at_once") {
  Job job(2);
  const std::vector<std::byte> data = pattern(400, 1);
  std::vector<std::byte> into(400);
  std::int64_t soonest_ns = kSecond;
  for (std::uint64_t tag = 0; tag < 5; ++tag) {
    const std::uint64_t kept = job.count(0, "early_segments_kept"), aborts = job.count(0, "aborts_received");
    const auto send = job[1].post_send(to(0, tag, data));
    REQUIRE(soon([&] { return job.count(0, "early_segments_kept") > kept; }));
    job[1].cancel(send);
    CHECK(finish(job[1], send).status == Status::kCancelled);
    REQUIRE(soon([&] { return job.count(0, "aborts_received") > aborts; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // rank 0's I/O thread sleeps again
    const auto began = std::chrono::steady_clock::now();
    CHECK(finish(job[0], job[0].post_recv(from(1, tag, into))).status == Status::kCancelled);
    soonest_ns = std::min<std::int64_t>(soonest_ns, (std::chrono::steady_clock::now() - began).count());
  }
  CHECK(soonest_ns < kSecond / 20);  // on a busy host one of five at least
}

TEST_CASE("engine__push_pull_gives_every_worker_the_same_bits_under_loss") {
  FaultOptions faults;
  faults.drop = 0.02;
  faults.seed = 5;
  Job job(3, faults);
  const std::uint16_t service = 2;
  job[2].serve(2);
  for (std::size_t worker = 0; worker < 2; ++worker) job[worker].use_services({&service, 1}, 2);
  std::vector<float> tensors[2];
  for (int iteration = 0; iteration < 10; ++iteration) {
    OperationId operations[2];
    for (std::size_t worker = 0; worker < 2; ++worker) {
      tensors[worker].assign(1'500'000, static_cast<float>(worker + 1));
      PushPullOptions options;
      options.key = 3;
      options.input = tensors[worker];
      options.output = tensors[worker];
      options.loss_bound = 0.1;
      operations[worker] = job[worker].push_pull(options);
    }
    for (std::size_t worker = 0; worker < 2; ++worker) {
      const auto done = job[worker].wait(operations[worker], 20 * kSecond);
      REQUIRE(done.has_value());
      CHECK(done->error == "");
      CHECK(done->missing_bytes <= done->total_bytes / 10);
    }
    CHECK(tensors[0] == tensors[1]);
    CHECK(std::count(tensors[0].begin(), tensors[0].end(), 1.5F) > 1'200'000);
  }
  job[0].close();
  job[1].close();
  CHECK(job[2].wait_workers_gone(5 * kSecond));
}

TEST_CASE("engine__push_pull_goes_on_without_a_worker_and_a_service_that_may_be_gone") {
  Job job(5);  // three workers, two services
  const std::vector<std::uint16_t> services{3, 4};
  for (const std::uint16_t service : services) job[service].serve(3, {.max_dead_workers = 1});
  for (std::size_t worker = 0; worker < 3; ++worker) job[worker].use_services(services, 3, 1);
  const auto average = [&](std::size_t workers) {
    std::vector<std::vector<float>> tensors(workers);
    std::vector<OperationId> operations;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      tensors[worker].assign(700'000, static_cast<float>(worker + 1));
      PushPullOptions options;
      options.key = 3;
      options.input = tensors[worker];
      options.output = tensors[worker];
      options.loss_bound = 0.1;
      operations.push_back(job[worker].push_pull(options));
    }
    for (std::size_t worker = 0; worker < workers; ++worker) {
      CHECK(job.finish(worker, operations[worker]).error == "");
      CHECK(tensors[worker] == tensors[0]);
    }
    return tensors[0];
  };
  CHECK(average(3) == std::vector<float>(700'000, 2.0F));
  job[2].close();
  CHECK(average(2) == std::vector<float>(700'000, 1.5F));
  CHECK(job.count(0, "push_pull_workers_gone") == 1);
  CHECK(job.count(3, "push_pull_workers_gone") == 1);
  job[4].close();
  CHECK(average(2) == std::vector<float>(700'000, 1.5F));
  CHECK(average(2) == std::vector<float>(700'000, 1.5F));
  std::string notices;
  for (const std::string& text : job[0].take_notices()) notices += text + "\n";
  CHECK(notices.find("rank 2") != std::string::npos);
  CHECK(notices.find("rank 4") != std::string::npos);
  CHECK(job[0].take_notices().empty());
  job[3].close();
  std::vector<float> tensor(10);
  PushPullOptions options;
  options.key = 4;
  options.input = tensor;
  options.output = tensor;
  try {
    CHECK(job.finish(0, job[0].push_pull(options)).status == Status::kPeerFailed);  // it has not noticed yet
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kPeerFailed);
  }
}

// A thread that closes the context while the process ends: it would be ended within the call.
TEST_CASE("close__does_not_wait_for_the_status_of_a_process_that_ends") {
  Job job(2);
  std::vector<std::byte> never(400);
  const OperationId waiting = job[1].post_recv(from(0, 1, never));
  job[0].close_before_exit(30 * kSecond);
  job[0].close();
  CHECK(!job[1].wait(waiting, kSecond / 20).has_value());
  job[0].set_exit_status(4);
  job[0].close();
  const auto done = job[1].wait(waiting, 10 * kSecond);
  REQUIRE(done.has_value());
  CHECK(done->error.find("ended with exit status 4") != std::string::npos);
}

TEST_CASE("destructor__of_a_process_that_goes_on_is_an_orderly_end") {
  Job job(2);
  std::vector<std::byte> never(400);
  const OperationId waiting = job[1].post_recv(from(0, 1, never));
  job[0].close_before_exit(30 * kSecond);
  job.engines[0].reset();
  const auto done = job[1].wait(waiting, 10 * kSecond);
  REQUIRE(done.has_value());
  CHECK(done->error.find("left the job") != std::string::npos);
}

TEST_CASE("close__from_several_threads_ends_every_question_and_operation") {
  for (int round = 0; round < 10; ++round) {
    Job job(2);
    std::vector<std::byte> never(400);
    std::atomic<bool> go{false};
    std::size_t posted = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (!go) std::this_thread::yield();
        job[0].close();
      });
    }
    threads.emplace_back([&] {
      try {
        for (std::uint64_t i = 0; i < 20'000; ++i) {
          job[0].post_recv(from(1, i % 8, never));
          ++posted;
          if (i == 5) go = true;
          if (i % 64 == 0) static_cast<void>(job[0].counters());
          if (i % 64 == 1) static_cast<void>(job[0].rate_bits_per_second(1));
        }
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kClosed);
      }
      go = true;
    });
    for (std::thread& thread : threads) thread.join();
    static_cast<void>(job[0].counters());
    CHECK(job[0].poll(100'000).size() == posted);
  }
}

TEST_CASE("post__thousands_of_receives_on_both_sides_before_any_send") {
  Job job(2);
  constexpr std::uint64_t kCount = 2'500;
  const auto data = pattern(400, 4);
  std::vector<std::vector<std::byte>> got(2 * kCount, std::vector<std::byte>(400));
  std::vector<OperationId> operations[2];
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    const auto other = static_cast<std::uint16_t>(1 - rank);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      operations[rank].push_back(job[rank].post_recv(from(other, i, got[rank * kCount + i])));
    }
  }
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    const auto other = static_cast<std::uint16_t>(1 - rank);
    for (std::uint64_t i = 0; i < kCount; ++i) operations[rank].push_back(job[rank].post_send(to(other, i, data)));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const OperationId operation : operations[rank]) REQUIRE_FALSE(finish(job[rank], operation).failed());
  }
  for (const auto& one : got) REQUIRE(one == data);
}

// Up to the limit no operation waits for another's slot, so no order of posting can stop them; beyond it the post fails
// at once and names limit and setting.
TEST_CASE("post__in_opposite_orders_completes_and_one_too_many_is_refused_at_once") {
  constexpr std::uint64_t kCount = 2'048;
  Options options;
  options.max_operations = kCount;
  Job job(2, options);
  const auto data = pattern(64, 4);
  std::vector<std::vector<std::byte>> got(kCount, std::vector<std::byte>(64));
  std::vector<OperationId> operations[2];
  for (std::uint64_t i = 0; i < kCount; ++i) operations[1].push_back(job[1].post_recv(from(0, i, got[i])));
  for (std::uint64_t i = kCount; i-- > 0;) operations[0].push_back(job[0].post_send(to(1, i, data)));
  try {
    job[0].post_send(to(1, kCount, data));
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kLimit);
    CHECK(std::string(error.what()).find("2048 operations are in progress") != std::string::npos);
    CHECK(std::string(error.what()).find("max_operations (MLT_MAX_OPERATIONS)") != std::string::npos);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const OperationId operation : operations[rank]) REQUIRE_FALSE(finish(job[rank], operation).failed());
  }
  for (const auto& one : got) REQUIRE(one == data);
}

TEST_CASE("post__to_a_rank_that_posts_nothing_holds_up_no_other") {
  Job job(3);
  const auto data = pattern(64, 4);
  std::vector<OperationId> silent;
  for (std::uint64_t i = 0; i < 3'000; ++i) silent.push_back(job[0].post_send(to(1, i, data)));
  std::vector<std::byte> got(64);
  const auto receive = job[2].post_recv(from(0, 5, got));
  CHECK_FALSE(finish(job[0], job[0].post_send(to(2, 5, data))).failed());
  CHECK_FALSE(finish(job[2], receive).failed());
  CHECK(got == data);
  for (const OperationId operation : silent) job[0].cancel(operation);
  for (const OperationId operation : silent) CHECK(finish(job[0], operation).status == Status::kCancelled);
}

TEST_CASE("post__short_messages_leave_together_while_many_are_in_progress") {
  constexpr std::size_t kMessages = 2'000, kWindow = 256, kBytes = 64;
  Options options;
  options.datapath = "udp";
  std::uint64_t fewest = ~std::uint64_t{0};
  // The best of a few: a host that is busy with other work delays what they wait for.
  for (int attempt = 0; attempt < 15 && fewest > kMessages / 2; ++attempt) {
    Job job(2, options);
    const auto data = pattern(kBytes * kMessages, 1);
    std::vector<std::byte> arrived(data.size());
    std::vector<OperationId> receives, sends;
    for (std::size_t i = 0; i < kMessages; ++i) {
      receives.push_back(job[1].post_recv(from(0, i, std::span(arrived).subspan(kBytes * i, kBytes))));
    }
    // A busy host also sends probes, which are runs of their own.
    const auto runs = [&] { return job.count(0, "udp_runs_sent") - job.count(0, "probes_sent"); };
    const std::uint64_t before = runs();
    for (std::size_t i = 0; i < kMessages; ++i) {
      if (i >= kWindow) CHECK(finish(job[0], sends[i - kWindow]).status == Status::kComplete);
      sends.push_back(job[0].post_send(to(1, i, std::span(data).subspan(kBytes * i, kBytes))));
    }
    for (std::size_t i = kMessages - kWindow; i < kMessages; ++i) finish(job[0], sends[i]);
    for (const OperationId receive : receives) CHECK(finish(job[1], receive).missing_bytes == 0);
    CHECK(arrived == data);
    fewest = std::min(fewest, runs() - before);
  }
  CHECK(fewest <= kMessages / 2);
}

TEST_CASE("post__a_short_message_behind_many_leaves_without_another_call") {
  Options options;
  options.datapath = "udp";
  Job job(2, options);
  const auto data = pattern(64, 1);
  std::vector<std::byte> arrived(64);
  // They stay in progress, with replies that say so.
  std::vector<OperationId> unmatched;
  for (std::uint64_t tag = 0; tag < 200; ++tag) unmatched.push_back(job[0].post_send(to(1, tag, data)));
  for (std::uint64_t round = 0; round < 20; ++round) {
    const OperationId receive = job[1].post_recv(from(0, 1'000 + round, arrived));
    job[0].post_send(to(1, 1'000 + round, data));
    const auto done = job[1].wait(receive, kSecond);
    REQUIRE(done.has_value());
    CHECK(done->status == Status::kComplete);
  }
  CHECK(arrived == data);
  for (const OperationId send : unmatched) job[0].cancel(send);
}

TEST_CASE("options__limits_out_of_range_are_named") {
  Options options;
  options.max_operations = 131'073;
  CHECK_THROWS_WITH_AS(Job(2, options), "rank 0: max_operations is 131073; it must be 1 to 131072", Error);
  options = {};
  options.early_transfers = 0;
  CHECK_THROWS_WITH_AS(Job(2, options), "rank 0: early_transfers is 0; it must be 1 to 4194304", Error);
}

TEST_CASE("post__a_receive_behind_thousands_times_out_is_cancelled_and_fails_with_its_peer") {
  Job job(2);
  std::vector<std::byte> never(400);
  for (std::uint64_t i = 0; i < 2'000; ++i) job[0].post_recv(from(1, i, never));
  ReceiveOptions short_one = from(1, 3'000, never);
  short_one.timeout_ns = kSecond / 20;
  const Completion late = finish(job[0], job[0].post_recv(short_one));
  CHECK(late.status == Status::kTimedOut);
  CHECK(late.peer == 1);
  CHECK(late.tag == 3'000);
  CHECK(late.elapsed_ns >= kSecond / 20);
  const auto aborted = job[0].post_recv(from(1, 3'001, never));
  job[0].cancel(aborted);
  CHECK(finish(job[0], aborted).status == Status::kCancelled);
  const auto waiting = job[0].post_recv(from(1, 3'002, never));
  CHECK_FALSE(job[0].wait(waiting, kSecond / 50).has_value());
  job[1].close();
  CHECK(finish(job[0], waiting).status == Status::kPeerFailed);
}

TEST_CASE("serve__and_use_services_are_for_once") {
  Job job(2);
  const std::uint16_t service = 1;
  job[1].serve(1);
  CHECK_THROWS_AS(job[1].serve(1), Error);
  job[0].use_services({&service, 1}, 1);
  CHECK_THROWS_AS(job[0].use_services({&service, 1}, 1), Error);
}

TEST_CASE("use_services__takes_all_services_of_the_job_and_no_fewer") {
  Job job(4);
  for (const std::vector<std::uint16_t>& services :
       std::vector<std::vector<std::uint16_t>>{{2}, {3}, {2, 2}, {2, 3, 3}}) {
    try {
      job[0].use_services(services, 2);
      FAIL("taken");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      CHECK(std::string(error.what()).find("every summation service") != std::string::npos);
    }
  }
  const std::vector<std::uint16_t> all{3, 2};
  job[0].use_services(all, 2);
}

// Workers use the services only once they have loaded their models: until then they neither report nor acknowledge.
TEST_CASE("use_services__after_a_rank_has_died_finds_the_services_alive") {
  for (const std::size_t victim : {std::size_t{4}, std::size_t{0}}) {
    CAPTURE(victim);
    Options options;
    options.peer_timeout_ns = options.suspended_timeout_ns = kSecond;
    Job job(5, options);
    const std::vector<std::uint16_t> services{3, 4};
    for (const std::uint16_t service : services) job[service].serve(3, {.max_dead_workers = 1});
    job[victim].close("it failed");
    std::this_thread::sleep_for(std::chrono::milliseconds(3'500));  // more than both timeouts and the wait before
    CHECK(job[3].take_exclusion() == "");
    if (victim != 4) CHECK(job[4].take_exclusion() == "");
    std::vector<std::size_t> workers{1, 2};
    if (victim != 0) workers.push_back(0);
    std::vector<std::vector<float>> tensors(3, std::vector<float>(700'000, 1.0F));
    std::vector<OperationId> operations;
    for (const std::size_t worker : workers) job[worker].use_services(services, 3, 1);
    for (const std::size_t worker : workers) {
      PushPullOptions push_pull;
      push_pull.key = 3;
      push_pull.input = tensors[worker];
      push_pull.output = tensors[worker];
      operations.push_back(job[worker].push_pull(push_pull));
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
      CHECK(job.finish(workers[i], operations[i]).error == "");
      CHECK(tensors[workers[i]] == std::vector<float>(700'000, 1.0F));
    }
    CHECK(job[3].take_exclusion() == "");
  }
}

TEST_CASE("serve__a_worker_dead_before_it_is_told_to_the_others") {
  Job job(3);
  const std::uint16_t service = 2;
  job[1].close();
  REQUIRE(soon([&] { return !job[2].is_peer_up(1); }));
  job[2].serve(2);
  job[0].use_services({&service, 1}, 2);
  std::vector<float> tensor(1'000, 1.0F);
  PushPullOptions options;
  options.input = tensor;
  options.output = tensor;
  const auto done = job[0].wait(job[0].push_pull(options), 5 * kSecond);
  REQUIRE(done.has_value());
  CHECK(done->failed_peer == 1);
}

TEST_CASE("wait_workers_gone__does_not_wait_for_another_service") {
  Job job(3);
  CHECK_THROWS_AS(job[2].wait_workers_gone(0), Error);
  job[1].serve(1);
  job[2].serve(1);
  job[0].close();
  CHECK(job[2].wait_workers_gone(5 * kSecond));
  CHECK(job[2].is_peer_up(1));
}

TEST_CASE("close__of_an_engine_that_never_connected_ends_what_waits_for_it") {
  Options options;
  options.ranks = 2;
  Engine engine(options);
  BarrierOptions alone;
  alone.ranks = {0};
  const auto waited = engine.post_barrier(alone);
  const auto polled = engine.post_barrier(alone);
  std::optional<Completion> done, watched;
  std::thread waiter([&] { done = engine.wait(waited, 20 * kSecond); });
  std::thread watcher([&] { watched = engine.next_watched(20 * kSecond); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the waits have begun: no event shows that
  const auto start = std::chrono::steady_clock::now();
  engine.close();
  waiter.join();
  watcher.join();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  REQUIRE(done.has_value());
  CHECK(done->status == Status::kCancelled);
  CHECK(done->failed());
  CHECK_FALSE(watched.has_value());
  const auto left = engine.poll(10);
  REQUIRE(left.size() == 1);
  CHECK(left[0].operation == polled);
  CHECK_THROWS_AS(engine.post_barrier(alone), Error);
}

TEST_CASE("connect__is_for_once") {
  Job job(2);
  const PeerAddress peer{1, "127.0.0.1", job[1].control_port()};
  try {
    job[0].connect({&peer, 1}, kSecond);
    FAIL("connected twice");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
  }
  const auto data = pattern(400, 1);
  std::vector<std::byte> got(400);
  const auto received = job[1].post_recv(from(0, 1, got));
  CHECK_FALSE(finish(job[0], job[0].post_send(to(1, 1, data))).failed());
  CHECK_FALSE(finish(job[1], received).failed());
}

TEST_CASE("poll__loses_no_completion_when_there_is_no_memory") {
  constexpr std::size_t kCount = 40;
  Job job(2);
  std::vector<std::byte> never(400);
  std::vector<OperationId> posted, taken;
  for (std::size_t i = 0; i < kCount; ++i) posted.push_back(job[0].post_recv(from(1, i, never)));
  job[0].close();
  std::size_t failures = 0;
  for (std::uint64_t allowed = 0; taken.size() < kCount && allowed < 20; ++allowed) {
    std::vector<Completion> some;
    try {
      const test::AllocationLimit limit(allowed % 3);
      some = job[0].poll(kCount);
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    for (const Completion& done : some) taken.push_back(done.operation);
  }
  CHECK(failures > 0);
  std::sort(taken.begin(), taken.end());
  CHECK(taken == posted);
}

TEST_CASE("poll__into_the_callers_memory_waits_and_takes_in_order_without_allocating") {
  Job job(2);
  std::vector<std::byte> never(400);
  std::vector<Completion> taken(3);
  CHECK(job[0].poll(taken) == 0);
  CHECK(job[0].poll(taken, 1'000'000) == 0);
  std::vector<OperationId> posted;
  for (std::uint64_t i = 0; i < 5; ++i) posted.push_back(job[0].post_recv(from(1, i, never)));
  std::thread closer([&] { job[0].close(); });
  const std::size_t first = job[0].poll(taken, -1);
  closer.join();
  REQUIRE(first >= 1);
  std::vector<OperationId> seen;
  for (std::size_t i = 0; i < first; ++i) seen.push_back(taken[i].operation);
  const std::uint64_t before = test::allocations();
  const std::size_t second = job[0].poll(taken, -1);
  CHECK(test::allocations() == before);
  for (std::size_t i = 0; i < second; ++i) seen.push_back(taken[i].operation);
  while (seen.size() < 5) {
    REQUIRE(job[0].poll({taken.data(), 1}, -1) == 1);
    seen.push_back(taken[0].operation);
  }
  CHECK(seen == posted);
  CHECK(job[0].poll(taken, -1) == 0);  // closed, and all were taken
}

TEST_CASE("test__alone_drives_an_operation_to_its_end_and_names_one_that_was_taken") {
  Job job(2);
  const auto data = pattern(1'000'000, 3);
  std::vector<std::byte> got(data.size());
  const auto received = job[1].post_recv(from(0, 9, got));
  CHECK_FALSE(job[1].test(received).has_value());
  const auto sent = job[0].post_send(to(1, 9, data));
  std::optional<Completion> sent_done, received_done;
  const bool ended = soon([&] {
    if (!sent_done) sent_done = job[0].test(sent);
    if (!received_done) received_done = job[1].test(received);
    return sent_done && received_done;
  });
  REQUIRE(ended);
  CHECK(sent_done->operation == sent);
  CHECK_FALSE(received_done->failed());
  CHECK(got == data);
  for (const OperationId gone : {sent, OperationId{0}, OperationId{12'345}}) {
    try {
      job[0].test(gone);
      FAIL("test() knew it");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnknownOperation);
    }
  }
  const auto never = job[1].post_recv(from(0, 10, got));
  const std::uint64_t turns = job.count(1, "engine_driven_by_polls");
  for (std::uint32_t i = 0; i < 4 * Engine::kTestsPerTurn; ++i) CHECK_FALSE(job[1].test(never).has_value());
  CHECK(job.count(1, "engine_driven_by_polls") - turns <= 4);
}

TEST_CASE("wait__for_longer_than_the_clock_can_tell_has_no_end") {
  Job job(2);
  std::vector<std::byte> never(400);
  const auto received = job[0].post_recv(from(1, 1, never));
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the wait has begun: no event shows that
    job[0].close();
  });
  CHECK(job[0].wait(received, std::numeric_limits<std::int64_t>::max()).has_value());
  closer.join();
}

TEST_CASE("close__what_it_ends_says_whose_it_was") {
  Job job(2);
  std::vector<std::byte> never(400);
  const auto received = job[0].post_recv(from(1, 77, never));
  const auto sent = job[0].post_send(to(1, 78, never));
  job[0].close();
  const Completion receive_done = finish(job[0], received);
  CHECK(receive_done.failed());
  CHECK(receive_done.peer == 1);
  CHECK(receive_done.tag == 77);
  CHECK(receive_done.total_bytes == 400);
  CHECK_FALSE(receive_done.is_send);
  const Completion send_done = finish(job[0], sent);
  CHECK(send_done.is_send);
  CHECK(send_done.tag == 78);
  CHECK(send_done.peer == 1);
}
