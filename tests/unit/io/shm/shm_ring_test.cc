// One direction of shared memory: what is written is read, whole and in order, and nothing that the other side writes
// into it leads out of it.
#include "io/shm/shm_ring.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "io/shm/shm_segment.h"
#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::TestRun;

namespace {

struct Pair {
  io::ShmSegment creator;
  io::ShmSegment joiner;
};

Pair segments(std::uint32_t ring_bytes = io::kMinShmRingBytes) {
  io::ShmDescriptors give;
  io::OsError error;
  auto creator = io::ShmSegment::create(ring_bytes, give, error);
  REQUIRE_MESSAGE(creator.has_value(), error.text);
  auto joiner = io::ShmSegment::join(ring_bytes, std::move(give), error);
  REQUIRE_MESSAGE(joiner.has_value(), error.text);
  return {std::move(*creator), std::move(*joiner)};
}

// A ring in ordinary memory: half of it twice as long as it says, so that no record has to be cut. What a hostile side
// writes is written by the test.
struct PlainRing {
  static constexpr std::uint32_t kBytes = 1U << 17;
  PlainRing() : storage(2 * kBytes) { memory = {&control, storage.data(), kBytes}; }
  io::ShmControl control;
  std::vector<std::byte> storage;
  io::ShmRingMemory memory;
  void write_header(std::size_t at, std::uint32_t bytes, std::uint32_t datagram_bytes, std::uint64_t rest = 0) {
    const std::uint64_t sizes = std::uint64_t{datagram_bytes} << 32 | bytes;
    std::memcpy(storage.data() + at, &sizes, sizeof sizes);
    std::memcpy(storage.data() + at + 8, &rest, sizeof rest);
  }
};

bool push(io::ShmWriter& writer, const TestRun& run) {
  const std::uint32_t bytes = run.get().total_bytes;
  if (!writer.has_room(io::shm_footprint(bytes))) return false;
  writer.push(run.get(), 0, bytes);
  return true;
}

// Reads one record and checks its datagrams, numbered from `first` on.
bool pop(io::ShmReader& reader, std::uint32_t first) {
  io::ShmRecord record;
  if (!reader.front(record)) return false;
  io_test::CollectingSink sink;
  sink.on_run({record.bytes, record.datagram_bytes, base::Ecn::kNotEct, 0});
  for (const auto& datagram : sink.datagrams) {
    CHECK(datagram.intact);
    CHECK(datagram.number == first++);
  }
  reader.release();
  return true;
}

}  // namespace

TEST_CASE("shm_ring__carries_records_of_every_size_around_its_end") {
  Pair pair = segments();
  base::Prng prng(7);
  std::uint32_t number = 0;
  std::uint64_t carried = 0;
  while (carried < 8 * std::uint64_t{io::kMinShmRingBytes}) {
    const auto bytes = static_cast<std::uint32_t>(12 + prng.next() % 60'000);
    REQUIRE(push(pair.creator.out(), TestRun(0, number, 1, bytes)));
    REQUIRE(pop(pair.joiner.in(), number));
    carried += bytes;
    ++number;
  }
  CHECK_FALSE(pair.joiner.in().has_more());
}

TEST_CASE("shm_ring__takes_what_fits_and_then_nothing_until_something_is_read") {
  Pair pair = segments();
  const std::uint32_t bytes = 10'000;
  std::uint32_t written = 0;
  while (push(pair.joiner.out(), TestRun(0, written, 1, bytes))) ++written;
  CHECK(written == io::kMinShmRingBytes / io::shm_footprint(bytes));
  CHECK_FALSE(pair.joiner.out().is_broken());
  REQUIRE(pop(pair.creator.in(), 0));
  CHECK(push(pair.joiner.out(), TestRun(0, written, 1, bytes)));
  CHECK_FALSE(push(pair.joiner.out(), TestRun(0, written + 1, 1, bytes)));
  for (std::uint32_t i = 1; i <= written; ++i) REQUIRE(pop(pair.creator.in(), i));
  CHECK_FALSE(pop(pair.creator.in(), 0));
}

TEST_CASE("shm_ring__cuts_a_run_where_it_is_told_to") {
  Pair pair = segments();
  const TestRun run(0, 5, 3, 20'000, 700);
  for (std::uint32_t from = 0; from < run.get().total_bytes; from += 20'000) {
    const std::uint32_t size = std::min(20'000U, run.get().total_bytes - from);
    REQUIRE(pair.creator.out().has_room(io::shm_footprint(size)));
    pair.creator.out().push(run.get(), from, size);
  }
  for (std::uint32_t i = 0; i < 3; ++i) REQUIRE(pop(pair.joiner.in(), 5 + i));
}

TEST_CASE("shm_ring__a_reader_breaks_at_a_tail_that_can_not_be") {
  for (const std::uint64_t tail : {std::uint64_t{PlainRing::kBytes} + 1, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    PlainRing ring;
    ring.write_header(0, 100, 100);
    ring.control.tail = tail;
    io::ShmReader reader(ring.memory);
    io::ShmRecord record;
    CHECK_FALSE(reader.front(record));
    CHECK(reader.is_broken());
    CHECK_FALSE(reader.has_more());  // or its waiting thread would never sleep again
    ring.control.tail = io::shm_footprint(100);
    CHECK_FALSE(reader.front(record));
  }
}

TEST_CASE("shm_ring__a_reader_breaks_when_the_tail_goes_back") {
  PlainRing ring;
  io::ShmWriter writer(ring.memory);
  io::ShmReader reader(ring.memory);
  for (std::uint32_t i = 0; i < 2; ++i) REQUIRE(push(writer, TestRun(0, i, 1, 100)));
  for (std::uint32_t i = 0; i < 2; ++i) REQUIRE(pop(reader, i));
  ring.control.tail = io::shm_footprint(100);
  io::ShmRecord record;
  CHECK_FALSE(reader.front(record));
  CHECK(reader.is_broken());
}

TEST_CASE("shm_ring__a_reader_breaks_at_lengths_that_can_not_be") {
  struct Bad {
    const char* what;
    std::uint32_t bytes, datagram_bytes;
    std::uint64_t rest;
  };
  const auto run_bytes = static_cast<std::uint32_t>(base::kMaxRunBytes);
  const Bad all[] = {
      {"empty", 0, 0, 0},
      {"longer than any run", run_bytes + 1, run_bytes, 0},
      {"longest number", 0xFFFF'FFFF, 100, 0},
      {"footprint that wraps", 0xFFFF'FFC0, 64, 0},
      {"more than was written", 2'000, 2'000, 0},
      {"datagrams of nothing", 100, 0, 0},
      {"a datagram longer than all", 100, 101, 0},
      {"65 datagrams", 65, 1, 0},
      {"reserved bits", 100, 100, 0x100},
  };
  for (const Bad& bad : all) {
    CAPTURE(bad.what);
    PlainRing ring;
    ring.write_header(0, bad.bytes, bad.datagram_bytes, bad.rest);
    ring.control.tail = 1'024;
    io::ShmReader reader(ring.memory);
    io::ShmRecord record;
    CHECK_FALSE(reader.front(record));
    CHECK(reader.is_broken());
  }
}

TEST_CASE("shm_ring__a_reader_takes_the_most_that_may_be") {
  PlainRing ring;
  const auto run_bytes = static_cast<std::uint32_t>(base::kMaxRunBytes);
  ring.write_header(0, run_bytes, run_bytes, 0xFF);
  ring.write_header(io::shm_footprint(run_bytes), 64, 1);
  ring.control.tail = io::shm_footprint(run_bytes) + io::shm_footprint(64);
  io::ShmReader reader(ring.memory);
  io::ShmRecord record;
  REQUIRE(reader.front(record));
  CHECK(record.bytes.size() == run_bytes);
  CHECK(record.traffic_class == 0xFF);
  reader.release();
  REQUIRE(reader.front(record));
  CHECK(record.bytes.size() == 64);
  reader.release();
  CHECK_FALSE(reader.front(record));
  CHECK_FALSE(reader.is_broken());
}

TEST_CASE("shm_ring__a_writer_breaks_at_a_head_that_can_not_be") {
  struct Bad {
    const char* what;
    std::uint64_t before, after;
  };
  const std::uint64_t footprint = io::shm_footprint(60'000);
  for (const Bad& bad : {Bad{"beyond what was written", 0, 2 * footprint + 64}, Bad{"back", footprint, 0},
                         Bad{"the largest", 0, ~std::uint64_t{0}}}) {
    CAPTURE(bad.what);
    PlainRing ring;
    io::ShmWriter writer(ring.memory);
    REQUIRE(push(writer, TestRun(0, 0, 1, 60'000)));
    REQUIRE(push(writer, TestRun(0, 1, 1, 60'000)));
    ring.control.head = bad.before;
    writer.has_room(PlainRing::kBytes);
    CHECK_FALSE(writer.is_broken());
    ring.control.head = bad.after;
    CHECK_FALSE(writer.has_room(PlainRing::kBytes));
    CHECK(writer.is_broken());
    ring.control.head = 2 * footprint;
    CHECK_FALSE(writer.has_room(64));
  }
}

// A writer that dies in the middle of a record has not moved the tail: nothing of it is seen.
TEST_CASE("shm_ring__a_torn_record_is_not_there") {
  PlainRing ring;
  io::ShmWriter writer(ring.memory);
  io::ShmReader reader(ring.memory);
  REQUIRE(push(writer, TestRun(0, 0, 1, 500)));
  ring.write_header(io::shm_footprint(500), 9'999, 9'999);
  REQUIRE(pop(reader, 0));
  CHECK_FALSE(reader.has_more());
  io::ShmRecord record;
  CHECK_FALSE(reader.front(record));
  CHECK_FALSE(reader.is_broken());
}

// Whatever stands in the ring and its words: a reader either hands up bytes inside the ring or breaks.
TEST_CASE("shm_ring__random_contents_never_lead_out_of_it") {
  base::Prng prng(99);
  std::size_t taken = 0;
  for (int turn = 0; turn < 3'000; ++turn) {
    PlainRing ring;
    for (std::size_t at = 0; at < 4'096; at += 64) {
      const bool plausible = prng.next() % 8 != 0;
      ring.write_header(at, static_cast<std::uint32_t>(plausible ? prng.next() % 200 : prng.next()),
                        static_cast<std::uint32_t>(plausible ? 1 + prng.next() % 100 : prng.next()),
                        plausible ? prng.next() % 256 : prng.next());
    }
    ring.control.tail = prng.next() % 8 == 0 ? prng.next() : 4'096;
    io::ShmReader reader(ring.memory);
    io::ShmRecord record;
    int records = 0;
    while (reader.front(record)) {
      REQUIRE(record.bytes.data() >= ring.storage.data());
      REQUIRE(record.bytes.data() + record.bytes.size() <= ring.storage.data() + ring.storage.size());
      REQUIRE(record.bytes.size() <= base::kMaxRunBytes);
      REQUIRE(record.datagram_bytes > 0);
      reader.release();
      REQUIRE(++records <= 64);
      ++taken;
    }
  }
  CHECK(taken > 1'000);
}

// The announcements and the last looks of both sides, with real threads: a sleeping side is woken. The ring is plain
// memory at one address, so that ThreadSanitizer sees both sides of every access.
TEST_CASE("shm_ring__two_threads_that_sleep_whenever_they_may_lose_no_wake_up") {
  PlainRing ring;
  std::atomic<std::uint32_t> reader_bell{0}, writer_bell{0};
  constexpr std::uint32_t kRecords = 4'000;
  const auto sleep_on = [](std::atomic<std::uint32_t>& bell) {
    // A lost wake-up is a test that never ends: ctest's limit names it.
    while (bell.exchange(0) == 0) bell.wait(0);
  };
  const auto ring_bell = [](std::atomic<std::uint32_t>& bell) {
    bell.store(1);
    bell.notify_one();
  };
  std::thread writer_thread([&] {
    io::ShmWriter writer(ring.memory);
    base::Prng prng(3);
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      const TestRun run(0, i, 1, static_cast<std::uint32_t>(12 + prng.next() % 9'000));
      while (!push(writer, run)) {
        writer.announce_wait();
        if (writer.has_room(io::shm_footprint(run.get().total_bytes))) continue;
        sleep_on(writer_bell);
      }
      if (writer.must_wake_reader()) ring_bell(reader_bell);
    }
  });
  io::ShmReader reader(ring.memory);
  std::uint32_t wrong = 0;
  for (std::uint32_t next = 0; next < kRecords;) {
    io::ShmRecord record;
    if (!reader.front(record)) {
      if (reader.must_wake_writer()) ring_bell(writer_bell);
      reader.announce_sleep();
      if (!reader.has_more()) sleep_on(reader_bell);
      reader.stop_sleeping();
      continue;
    }
    if (base::load_le32(record.bytes.data()) != next || base::load_le32(record.bytes.data() + 4) != record.bytes.size())
      ++wrong;
    if (base::load_le32(record.bytes.data() + 8) != TestRun::checksum(record.bytes)) ++wrong;
    ++next;
    reader.release();
    if (reader.must_wake_writer()) ring_bell(writer_bell);
  }
  writer_thread.join();
  CHECK(wrong == 0);
  CHECK_FALSE(reader.is_broken());
}
