// The port's promises against arithmetic: strict priority, limits, selective dropping, shared memory.
#include "sim/switch_port.h"

#include <doctest/doctest.h>

using namespace mlt;
using base::Ecn;
using sim::Fate;
using sim::kNoPacket;
using sim::kUnlimited;
using sim::PacketPool;
using sim::SharedBuffer;
using sim::SwitchPort;

namespace {

constexpr std::uint32_t kSize = 934;  // 1,000 bytes on the wire

struct Bench {
  explicit Bench(std::uint64_t limit = kUnlimited, std::uint64_t threshold = kUnlimited)
      : port(sim::uniform_port(dscp, limit, threshold)) {}

  std::uint32_t packet(std::uint8_t code_point, Ecn ecn) {
    const std::uint32_t index = pool.take();
    pool[index].dscp = code_point;
    pool[index].ecn = ecn;
    pool[index].size = kSize;
    return index;
  }
  bool enqueue(std::uint8_t code_point, Ecn ecn) {
    last = packet(code_point, ecn);
    return port.enqueue(0, pool, last, buffer, prng, fate);
  }

  core::DscpMap dscp;
  PacketPool pool{1'500};
  SharedBuffer buffer;
  base::Prng prng{1};
  SwitchPort port;
  Fate fate = Fate::k_delivered;
  std::uint32_t last = kNoPacket;
};

}  // namespace

TEST_CASE("switch_port__serves_classes_strictly_and_each_in_order") {
  Bench bench;
  std::vector<std::uint32_t> back, front, control;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(bench.enqueue(bench.dscp.data[6], Ecn::kEct0));
    back.push_back(bench.last);
    REQUIRE(bench.enqueue(bench.dscp.data[0], Ecn::kEct0));
    front.push_back(bench.last);
    REQUIRE(bench.enqueue(bench.dscp.control, Ecn::kEct0));
    control.push_back(bench.last);
  }
  for (const auto* expected : {&control, &front, &back}) {
    for (const std::uint32_t index : *expected) CHECK(bench.port.dequeue(bench.pool, bench.buffer) == index);
  }
  CHECK(bench.port.dequeue(bench.pool, bench.buffer) == kNoPacket);
  CHECK(bench.port.queued_bytes() == 0);
  CHECK(bench.buffer.used_bytes == 0);
}

TEST_CASE("switch_port__above_its_threshold_marks_ect_and_drops_the_rest") {
  Bench bench(kUnlimited, 10'000);
  for (int i = 0; i < 11; ++i) {
    REQUIRE(bench.enqueue(bench.dscp.data[2], i % 2 == 0 ? Ecn::kEct0 : Ecn::kNotEct));
    CHECK(bench.pool[bench.last].ecn != Ecn::kCe);
  }
  // 11,000 bytes wait.
  CHECK_FALSE(bench.enqueue(bench.dscp.data[2], Ecn::kNotEct));
  CHECK(bench.fate == Fate::k_dropped_selective);
  CHECK(bench.enqueue(bench.dscp.data[2], Ecn::kEct0));
  CHECK(bench.pool[bench.last].ecn == Ecn::kCe);
  // Other queues, and control at any length, are not concerned.
  CHECK(bench.enqueue(bench.dscp.data[3], Ecn::kNotEct));
  for (int i = 0; i < 100; ++i) CHECK(bench.enqueue(bench.dscp.control, Ecn::kNotEct));
  const sim::QueueCounters& counters = bench.port.counters(1 + 2);
  CHECK(counters.offered[0] == 6);
  CHECK(counters.offered[1] == 7);
  CHECK(counters.dropped[0] == 1);
  CHECK(counters.dropped[1] == 0);
  CHECK(counters.marked == 1);
  CHECK(counters.max_queued_bytes == 12'000);
}

TEST_CASE("switch_port__between_two_thresholds_the_probability_grows_linearly") {
  Bench bench;
  sim::Queue& queue = bench.port.config().queues[1];
  queue.red_min_bytes = 10'000;
  queue.red_max_bytes = 20'000;
  queue.red_probability = 0.5;
  for (int i = 0; i < 15; ++i) REQUIRE(bench.enqueue(bench.dscp.data[0], Ecn::kEct0));
  int dropped = 0;  // 15,000 bytes wait: half way, a probability of a quarter
  for (int i = 0; i < 20'000; ++i) {
    const bool entered = bench.enqueue(bench.dscp.data[0], Ecn::kNotEct);
    dropped += entered ? 0 : 1;
    if (entered) {
      const std::uint32_t out = bench.port.dequeue(bench.pool, bench.buffer);
      bench.pool.give(out);
    }
  }
  CHECK(dropped == doctest::Approx(5'000).epsilon(0.05));
}

TEST_CASE("switch_port__limits_a_queue_and_the_memory_of_all") {
  Bench bench(5'000);
  for (int i = 0; i < 5; ++i) CHECK(bench.enqueue(bench.dscp.data[0], Ecn::kEct0));
  CHECK_FALSE(bench.enqueue(bench.dscp.data[0], Ecn::kEct0));
  CHECK(bench.fate == Fate::k_dropped_queue_limit);
  bench.buffer.limit_bytes = 7'000;
  CHECK(bench.enqueue(bench.dscp.data[1], Ecn::kEct0));
  CHECK(bench.enqueue(bench.dscp.data[2], Ecn::kEct0));
  CHECK_FALSE(bench.enqueue(bench.dscp.data[3], Ecn::kEct0));
  CHECK(bench.fate == Fate::k_dropped_shared_buffer);
}

TEST_CASE("switch_port__keeps_what_is_paused_and_takes_more") {
  Bench bench;
  REQUIRE(bench.enqueue(bench.dscp.data[0], Ecn::kEct0));
  const std::uint32_t first = bench.last;
  bench.port.pause(0xFE);  // all data
  CHECK(bench.port.empty());
  CHECK(bench.port.dequeue(bench.pool, bench.buffer) == kNoPacket);
  REQUIRE(bench.enqueue(bench.dscp.data[0], Ecn::kEct0));
  const std::uint32_t second = bench.last;
  REQUIRE(bench.enqueue(bench.dscp.control, Ecn::kEct0));
  CHECK_FALSE(bench.port.empty());
  CHECK(bench.port.dequeue(bench.pool, bench.buffer) == bench.last);
  CHECK(bench.port.queued_bytes() == 2'000);
  bench.port.pause(0);
  CHECK(bench.port.dequeue(bench.pool, bench.buffer) == first);
  CHECK(bench.port.dequeue(bench.pool, bench.buffer) == second);
  CHECK(bench.port.empty());
}
