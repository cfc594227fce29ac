// Every kind of caller at once on real engines: who posts, waits, polls, asks and closes drives the same loop.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "support/soon.h"
#include "unit/engine/engine_job.h"

using namespace mlt;
using engine_test::Job;
using engine_test::kSecond;
using test::soon;

namespace {

constexpr std::size_t kBytes = 20'000;

SendOptions send_of(std::uint16_t to, std::uint64_t tag, const std::vector<std::byte>& data) {
  SendOptions options;
  options.to = to;
  options.tag = tag;
  options.data = data;
  return options;
}

ReceiveOptions receive_of(std::uint16_t from, std::uint64_t tag, std::vector<std::byte>& data) {
  ReceiveOptions options;
  options.from = from;
  options.tag = tag;
  options.data = data;
  return options;
}

std::uint64_t counter(Engine& engine, const std::string& name) {
  for (const CounterValue& one : engine.counters()) {
    if (one.name == name) return one.value;
  }
  FAIL("no counter ", name);
  return 0;
}

// Both ends of `rounds` transfers, each its own tag, waited for in slices.
void exchange(Job& job, std::uint16_t rank, std::uint64_t lane, int rounds) {
  const auto other = static_cast<std::uint16_t>(1 - rank);
  std::vector<std::byte> out(kBytes, std::byte{static_cast<unsigned char>(lane + 1)});
  std::vector<std::byte> in(kBytes);
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t tag = lane * 1'000'000 + static_cast<std::uint64_t>(round);
    const OperationId receive = job[rank].post_recv(receive_of(other, tag, in));
    const OperationId send = job[rank].post_send(send_of(other, tag, out));
    std::optional<Completion> received;
    while (!received) received = job[rank].wait(receive, kSecond / 100);
    CHECK_FALSE(received->failed());
    CHECK(in == out);
    CHECK_FALSE(job.finish(rank, send).failed());
  }
}

// The same by polling: completions of this lane only, as no other thread polls.
void poll_through(Job& job, std::uint16_t rank, std::uint64_t lane, int rounds) {
  const auto other = static_cast<std::uint16_t>(1 - rank);
  const std::vector<std::byte> out(kBytes, std::byte{7});
  std::vector<std::byte> in(kBytes);
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t tag = lane * 1'000'000 + static_cast<std::uint64_t>(round);
    job[rank].post_recv(receive_of(other, tag, in));
    job[rank].post_send(send_of(other, tag, out));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (int left = 2; left > 0 && std::chrono::steady_clock::now() < until;) {
      for (const Completion& done : job[rank].poll(8)) left -= done.tag == tag;
    }
  }
}

}  // namespace

TEST_CASE("driving__all_kinds_of_callers_at_once") {
  Job job(2);
  constexpr int kRounds = 60;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  std::vector<std::thread> askers;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    for (std::uint64_t lane = 0; lane < 3; ++lane) {
      threads.emplace_back([&, rank, lane] { exchange(job, rank, lane, kRounds); });
    }
    askers.emplace_back([&, rank] {
      std::vector<std::byte> never(kBytes);
      for (std::uint64_t tag = 9'000'000; !over; ++tag) {
        const OperationId lonely = job[rank].post_recv(receive_of(static_cast<std::uint16_t>(1 - rank), tag, never));
        job[rank].counters();
        job[rank].paths(static_cast<std::uint16_t>(1 - rank));
        CHECK(job[rank].rate_bits_per_second(static_cast<std::uint16_t>(1 - rank)) > 0);
        CHECK_FALSE(job[rank].wait(lonely, 1'000).has_value());
        job[rank].cancel(lonely);
        CHECK(job.finish(rank, lonely).status == Status::kCancelled);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  over = true;
  for (std::thread& thread : askers) thread.join();
}

TEST_CASE("driving__callers_that_poll_drive_too") {
  Job job(2);
  std::thread one([&] { poll_through(job, 1, 3, 40); });
  poll_through(job, 0, 3, 40);
  one.join();
  CHECK(counter(job[0], "engine_driven_by_polls") > 0);
}

TEST_CASE("driving__collectives_of_two_threads_and_a_close_while_both_wait") {
  Job job(2);
  std::vector<std::thread> threads;
  std::atomic<int> ended{0};
  std::atomic<int> rounds{0};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> data(5'000, 1.0F);
      try {
        while (true) {
          AllReduceOptions options;
          options.data = std::as_writable_bytes(std::span(data));
          const auto done = job[rank].wait(job[rank].post_all_reduce(options), -1);
          if (!done || done->failed()) break;
          ++rounds;
        }
      } catch (const Error&) {
        // The peer left first, or this engine is closed.
      }
      ++ended;
    });
  }
  CHECK(soon([&] { return rounds >= 20; }));
  std::thread first([&] { job[0].close(); });
  std::thread second([&] { job[1].close(); });
  first.join();
  second.join();
  for (std::thread& thread : threads) thread.join();
  CHECK(ended == 2);
}

TEST_CASE("driving__a_transfer_ends_while_its_receiver_computes") {
  Job job(2);
  std::vector<std::byte> out(4'000'000, std::byte{3});
  std::vector<std::byte> in(out.size());
  for (int round = 0; round < 10; ++round) {
    // Waits that follow each other, so that the I/O thread has left the loop to them.
    std::thread partner([&] { exchange(job, 1, 10 + static_cast<std::uint64_t>(round), 20); });
    exchange(job, 0, 10 + static_cast<std::uint64_t>(round), 20);
    partner.join();
    const auto tag = static_cast<std::uint64_t>(round);
    const OperationId receive = job[0].post_recv(receive_of(1, tag, in));
    const OperationId send = job[1].post_send(send_of(0, tag, out));
    // Rank 0 calls nothing meanwhile.
    const auto sent = job[1].wait(send, 5 * kSecond);
    REQUIRE(sent.has_value());
    CHECK_FALSE(sent->failed());
    CHECK_FALSE(job.finish(0, receive).failed());
  }
}

TEST_CASE("driving__waits_that_follow_each_other_wake_nobody_else") {
  Job job(2);
  // Who computes for longer than a lease between two waits, or is kept from the CPU, leaves the loop to the I/O thread,
  // and wakes it with the next post. So the claim is about batches without a takeover; the machine decides how many
  // there are, and a short batch is seldom disturbed.
  constexpr int kBatches = 400;
  constexpr std::uint64_t kRounds = 4;
  std::uint64_t undisturbed = 0;
  std::uint64_t fewest_wakes = ~std::uint64_t{0};
  std::uint64_t max_driven = 0;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    const std::uint64_t takeovers = counter(job[0], "engine_io_takeovers");
    const std::uint64_t wakes = counter(job[0], "engine_wakes");
    const std::uint64_t driven = counter(job[0], "engine_driven_by_waiters");
    const std::uint64_t posts = counter(job[0], "engine_driven_by_posts");
    std::thread partner([&] { exchange(job, 1, batch, kRounds); });
    exchange(job, 0, batch, kRounds);
    partner.join();
    CHECK(counter(job[0], "engine_driven_by_posts") - posts >= kRounds);
    if (counter(job[0], "engine_io_takeovers") != takeovers) continue;
    ++undisturbed;
    fewest_wakes = std::min(fewest_wakes, counter(job[0], "engine_wakes") - wakes);
    max_driven = std::max(max_driven, counter(job[0], "engine_driven_by_waiters") - driven);
    if (fewest_wakes <= 1 && max_driven >= kRounds / 2) break;
  }
#if defined(__SANITIZE_THREAD__)
  // Here every step between two waits may take longer than a lease: what remains is that nothing races.
  if (undisturbed == 0) return;
#endif
  REQUIRE(undisturbed > 0);
  // One: the I/O thread may sleep on the descriptors when a batch begins.
  CHECK(fewest_wakes <= 1);
  CHECK(max_driven >= kRounds / 2);
}
