#include "io/memory_datapath.h"

#include <doctest/doctest.h>

#include <vector>

#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::CollectingSink;
using io_test::TestRun;

TEST_CASE("send__full_queue_drops_the_whole_run_and_counts_it") {
  io::MemoryOptions options;
  options.queue_bytes = 70'000;
  io::MemoryNetwork network(options);
  const auto zero = network.endpoint(0);
  const auto one = network.endpoint(1);
  for (std::uint32_t i = 0; i < 10; ++i) {
    const TestRun run(1, 10 * i, 10, 1'000);
    CHECK(zero->send(0, run.get()) == io::SendStatus::kSent);
  }
  const std::uint64_t dropped = io::counter_value(zero->counters(), "memory_runs_dropped");
  CHECK(dropped == 10 - 70'000 / 10'016);
  CHECK(io::counter_value(zero->counters(), "memory_bytes_dropped") == dropped * 10'000);
  CollectingSink sink;
  CHECK(one->receive(0, 100, sink) == 10 - dropped);
  for (const auto& datagram : sink.datagrams) CHECK(datagram.intact);
  CHECK(network.queued_bytes(1) == 0);
}

TEST_CASE("queue__wraps_around_at_any_place_without_losing_or_mixing_runs") {
  io::MemoryOptions options;
  options.queue_bytes = 66'000;
  io::MemoryNetwork network(options);
  const auto zero = network.endpoint(0);
  const auto one = network.endpoint(1);
  base::Prng prng(7);
  CollectingSink sink;
  std::vector<std::uint32_t> expected;
  std::uint32_t number = 0;
  for (int i = 0; i < 2'000; ++i) {
    const auto count = static_cast<std::uint32_t>(1 + prng.below(8));
    const auto bytes = static_cast<std::uint32_t>(20 + prng.below(1'400));
    const TestRun run(1, number, count, bytes, static_cast<std::uint32_t>(12 + prng.below(bytes - 11)));
    const std::uint64_t before = io::counter_value(zero->counters(), "memory_runs_dropped");
    zero->send(0, run.get());
    if (io::counter_value(zero->counters(), "memory_runs_dropped") == before) {
      for (std::uint32_t j = 0; j < count; ++j) expected.push_back(number + j);
    }
    number += count;
    if (prng.chance(0.5)) one->receive(0, 1 + prng.below(3), sink);
  }
  one->receive(0, 1'000, sink);
  CHECK(expected.size() > 4'000);
  CHECK(expected.size() < number);
  CHECK(sink.numbers() == expected);
  for (const auto& datagram : sink.datagrams) REQUIRE(datagram.intact);
}

TEST_CASE("queue__an_empty_one_takes_a_full_run_wherever_it_stopped") {
  io::MemoryOptions options;
  options.queue_bytes = 0;  // rounded up to one full run
  io::MemoryNetwork network(options);
  const auto zero = network.endpoint(0);
  const auto one = network.endpoint(1);
  CollectingSink sink;
  for (std::uint32_t i = 0; i < 5; ++i) {
    const TestRun small(1, i, 1, 100 + i);
    const TestRun full(1, 1'000, 46, 1'440, base::kMaxRunBytes - 45 * 1'440);
    REQUIRE(zero->send(0, small.get()) == io::SendStatus::kSent);
    REQUIRE(one->receive(0, 10, sink) == 1);
    REQUIRE(zero->send(0, full.get()) == io::SendStatus::kSent);
    REQUIRE(one->receive(0, 10, sink) == 1);
  }
  CHECK(io::counter_value(zero->counters(), "memory_runs_dropped") == 0);
}

TEST_CASE("receive__a_sink_may_send_into_the_queue_it_is_fed_from") {
  io::MemoryNetwork network(io::MemoryOptions{});
  const auto self = network.endpoint(0);
  class Echo final : public io::ReceiveSink {
   public:
    explicit Echo(io::Datapath& to) : to_(to) {}
    void on_run(const base::ReceivedRun& run) override {
      ++seen;
      first = base::load_le32(run.bytes.data());
      if (first < 10) {
        const TestRun next(0, first + 1, 1, 500);
        to_.send(0, next.get());
      }
    }
    int seen = 0;
    std::uint32_t first = 0;

   private:
    io::Datapath& to_;
  };
  Echo echo(*self);
  const TestRun run(0, 0, 1, 500);
  self->send(0, run.get());
  CHECK(self->receive(0, 100, echo) == 11);
  CHECK(echo.first == 10);
}

TEST_CASE("receive__tells_the_dscp_and_limits_obey_the_options") {
  io::MemoryOptions options;
  options.max_run_segments = 1;
  options.max_datagram_bytes = 500;
  io::MemoryNetwork network(options);
  const auto zero = network.endpoint(0);
  const auto one = network.endpoint(1);
  TestRun run(1, 0, 1, 500);
  run.get().dscp = 46;
  REQUIRE(zero->send(0, run.get()) == io::SendStatus::kSent);
  CollectingSink sink;
  one->receive(0, 1, sink);
  CHECK(one->last_received_dscp() == 46);
  const TestRun two(1, 0, 2, 100);
  CHECK(zero->send(0, two.get()) == io::SendStatus::kTooLarge);
}
