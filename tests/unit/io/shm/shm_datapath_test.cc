// What is its own of the datapath through shared memory: full rings, sleeping sides, broken peers, peers elsewhere.
#include "io/shm/shm_datapath.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "io/memory_datapath.h"
#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::CollectingSink;
using io_test::TestRun;

namespace {

// Ranks 0 to 2; the network is memory. Ranks 0 and 1 share a segment, rank 2 has none.
struct Three {
  Three() {
    io::OsError error;
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      ranks[rank] = io::ShmDatapath::wrap(network.endpoint(rank), 3, error);
      REQUIRE_MESSAGE(ranks[rank] != nullptr, error.text);
    }
    join(0, 1);
  }
  // Rank `lower` keeps the creator's end, whose words `lower_end` still shows after it was given away.
  void join(std::uint16_t lower, std::uint16_t higher) {
    io::OsError error;
    io::ShmDescriptors give;
    auto created = io::ShmSegment::create(io::kMinShmRingBytes, give, error);
    REQUIRE_MESSAGE(created.has_value(), error.text);
    io::ShmDescriptors again;
    again.memory = io::UniqueFd(::dup(give.memory.get()));
    again.creator_bell = io::UniqueFd(::dup(give.creator_bell.get()));
    again.joiner_bell = io::UniqueFd(::dup(give.joiner_bell.get()));
    auto joined = io::ShmSegment::join(io::kMinShmRingBytes, std::move(give), error);
    auto rogue_end = io::ShmSegment::join(io::kMinShmRingBytes, std::move(again), error);
    REQUIRE_MESSAGE((joined && rogue_end), error.text);
    REQUIRE(ranks[lower]->add_peer(higher, std::move(*created), error));
    REQUIRE(ranks[higher]->add_peer(lower, std::move(*joined), error));
    rogue = std::make_unique<io::ShmSegment>(std::move(*rogue_end));
  }
  std::uint64_t count(std::uint16_t rank, const char* name) const {
    return io::counter_value(ranks[rank]->counters(), name);
  }

  io::MemoryNetwork network{[] {
    io::MemoryOptions options;
    options.peer_count = 3;
    return options;
  }()};
  std::array<std::unique_ptr<io::ShmDatapath>, 3> ranks;
  std::unique_ptr<io::ShmSegment> rogue;  // a second writer in rank 1's place
};

// Rank 0 shares memory with each of the others, which share none among themselves.
struct Crowd {
  static constexpr std::uint16_t kOthers = 20;
  Crowd() {
    io::OsError error;
    for (std::uint16_t rank = 0; rank <= kOthers; ++rank) {
      ranks.push_back(io::ShmDatapath::wrap(network.endpoint(rank), kOthers + 1, error));
      REQUIRE_MESSAGE(ranks.back() != nullptr, error.text);
    }
    for (std::uint16_t rank = 1; rank <= kOthers; ++rank) {
      io::ShmDescriptors give;
      auto created = io::ShmSegment::create(io::kMinShmRingBytes, give, error);
      REQUIRE_MESSAGE(created.has_value(), error.text);
      auto joined = io::ShmSegment::join(io::kMinShmRingBytes, std::move(give), error);
      REQUIRE_MESSAGE(joined.has_value(), error.text);
      REQUIRE(ranks[0]->add_peer(rank, std::move(*created), error));
      REQUIRE(ranks[rank]->add_peer(0, std::move(*joined), error));
    }
  }
  void idle() {
    CollectingSink sink;
    for (int i = 0; i < 200; ++i) REQUIRE(ranks[0]->receive(0, 16, sink) == 0);
  }
  void send(std::uint16_t from, std::uint32_t number) {
    REQUIRE(ranks[from]->send(0, TestRun(0, number, 1, 500).get()) == io::SendStatus::kSent);
  }
  std::uint64_t rung_by(std::uint16_t rank) const {
    return io::counter_value(ranks[rank]->counters(), "shm_wakes_sent");
  }

  io::MemoryNetwork network{[] {
    io::MemoryOptions options;
    options.peer_count = kOthers + 1;
    return options;
  }()};
  std::vector<std::unique_ptr<io::ShmDatapath>> ranks;
};

constexpr std::uint32_t kLong = 32'000;

bool fill(Three& three) {
  for (std::uint32_t i = 0; i < 1'000; ++i) {
    if (!three.ranks[0]->has_room_for(1)) return true;
    REQUIRE(three.ranks[0]->send(0, TestRun(1, 2 * i, 2, kLong).get()) == io::SendStatus::kSent);
  }
  return false;
}

}  // namespace

TEST_CASE("shm_datapath__runs_go_through_memory_to_whom_it_is_shared_with_and_through_the_network_to_others") {
  Three three;
  REQUIRE(three.ranks[0]->send(0, TestRun(1, 1, 1, 500).get()) == io::SendStatus::kSent);
  REQUIRE(three.ranks[0]->send(0, TestRun(2, 2, 1, 500).get()) == io::SendStatus::kSent);
  REQUIRE(three.ranks[2]->send(0, TestRun(1, 3, 1, 500).get()) == io::SendStatus::kSent);
  CollectingSink one, two;
  for (int i = 0; i < 100; ++i) {
    three.ranks[1]->receive(0, 16, one);
    three.ranks[2]->receive(0, 16, two);
  }
  CHECK(one.numbers() == std::vector<std::uint32_t>{1, 3});
  CHECK(two.numbers() == std::vector<std::uint32_t>{2});
  CHECK(three.count(0, "shm_runs_sent") == 1);
  CHECK(three.count(1, "shm_records_received") == 1);
  CHECK(three.count(0, "shm_peers") == 1);
  CHECK(three.count(2, "shm_runs_sent") == 0);
}

TEST_CASE("shm_datapath__a_full_ring_holds_back_for_its_peer_alone_and_drops_nothing") {
  Three three;
  REQUIRE(fill(three));
  CHECK(three.ranks[0]->has_room_for(2));
  CHECK(three.count(0, "shm_full") == 1);
  // What is asked for all the same is not taken, nor lost without a word.
  while (three.ranks[0]->send(0, TestRun(1, 0x7000, 2, kLong).get()) == io::SendStatus::kSent) {
  }
  CHECK(three.ranks[0]->send(0, TestRun(1, 0x7000, 2, kLong).get()) == io::SendStatus::kWouldBlock);
  // Answers have room that data leaves them.
  CHECK(three.ranks[0]->send(0, TestRun(1, 0x8000, 1, 100).get()) == io::SendStatus::kSent);
  const std::uint64_t sent = three.count(0, "shm_bytes_sent");
  CollectingSink sink;
  while (three.ranks[1]->receive(0, 16, sink) > 0) {
  }
  CHECK(three.count(1, "shm_bytes_received") == sent);
  for (const auto& datagram : sink.datagrams) CHECK(datagram.intact);
  CHECK(three.ranks[0]->has_room_for(1));
}

// One call for many: 6.2.3 of PROTOCOL.md.
TEST_CASE("shm_datapath__answers_that_leave_together_have_the_room_of_answers_too") {
  Three three;
  REQUIRE(fill(three));
  while (three.ranks[0]->send(0, TestRun(1, 0x7000, 2, kLong).get()) == io::SendStatus::kSent) {
  }
  CHECK(three.ranks[0]->send(0, TestRun(1, 0x8000, 40, 100).get()) == io::SendStatus::kSent);
  io::SendStatus status = io::SendStatus::kSent;
  while ((status = three.ranks[0]->send(0, TestRun(1, 0, 40, 100).get())) == io::SendStatus::kSent) {
  }
  CHECK(status == io::SendStatus::kFailed);  // never kWouldBlock: no caller waits for space for a reply
}

TEST_CASE("shm_datapath__answers_to_a_peer_that_never_reads_are_dropped_at_last_and_named") {
  Three three;
  REQUIRE(fill(three));
  io::SendStatus status = io::SendStatus::kSent;
  int taken = 0;
  while ((status = three.ranks[0]->send(0, TestRun(1, 0, 1, 100).get())) == io::SendStatus::kSent) ++taken;
  CHECK(taken >= 256);
  CHECK(status == io::SendStatus::kFailed);
  CHECK(three.ranks[0]->last_error().find("rank 1") != std::string::npos);
  CHECK(three.count(0, "shm_answers_dropped") == 1);
}

TEST_CASE("shm_datapath__who_waits_for_room_is_woken_when_there_is_plenty") {
  Three three;
  REQUIRE(fill(three));
  REQUIRE(three.ranks[0]->prepare_to_wait());
  pollfd ready{three.ranks[0]->readable_fd(), POLLIN, 0};
  CHECK(::poll(&ready, 1, 0) == 0);
  CollectingSink sink;
  while (three.ranks[1]->receive(0, 16, sink) > 0) {
  }
  CHECK(::poll(&ready, 1, 0) == 1);
  CHECK(three.count(1, "shm_wakes_sent") == 1);
  three.ranks[0]->receive(0, 16, sink);
  CHECK(::poll(&ready, 1, 0) == 0);
  CHECK(three.ranks[0]->has_room_for(1));
  // Who has room, and waits for data only, is not rung for reading.
  REQUIRE(three.ranks[0]->send(0, TestRun(1, 1, 1, 500).get()) == io::SendStatus::kSent);
  REQUIRE(three.ranks[0]->prepare_to_wait());
  CHECK(three.ranks[1]->receive(0, 16, sink) == 1);
  CHECK(::poll(&ready, 1, 0) == 0);
}

TEST_CASE("shm_datapath__room_that_came_before_the_wait_ends_it_once") {
  Three three;
  REQUIRE(fill(three));
  CollectingSink sink;
  while (three.ranks[1]->receive(0, 16, sink) > 0) {
  }
  CHECK_FALSE(three.ranks[0]->prepare_to_wait());
  three.ranks[0]->receive(0, 16, sink);
  CHECK(three.ranks[0]->prepare_to_wait());  // though no peer sent anything: an owner that lost interest may sleep
}

TEST_CASE("shm_datapath__only_a_side_that_sleeps_is_rung") {
  Three three;
  CollectingSink sink;
  for (std::uint32_t i = 0; i < 5; ++i) {
    REQUIRE(three.ranks[0]->send(0, TestRun(1, i, 1, 500).get()) == io::SendStatus::kSent);
  }
  CHECK(three.count(0, "shm_wakes_sent") == 0);
  CHECK_FALSE(three.ranks[1]->prepare_to_wait());  // it looks again before it sleeps
  while (three.ranks[1]->receive(0, 16, sink) > 0) {
  }
  REQUIRE(three.ranks[1]->prepare_to_wait());
  for (std::uint32_t i = 5; i < 10; ++i) {
    REQUIRE(three.ranks[0]->send(0, TestRun(1, i, 1, 500).get()) == io::SendStatus::kSent);
  }
  CHECK(three.count(0, "shm_wakes_sent") == 1);
}

TEST_CASE("shm_datapath__a_peer_that_writes_nonsense_is_named_and_the_others_go_on") {
  Three three;
  // In rank 1's place somebody moves the tail of its ring to rank 0 by what no record of that length takes.
  const TestRun run(0, 0, 1, 500);
  REQUIRE(three.rogue->out().has_room(io::shm_footprint(500)));
  three.rogue->out().push(run.get(), 0, 500);
  CollectingSink sink;
  CHECK(three.ranks[0]->receive(0, 16, sink) == 1);
  std::uint16_t rank = 0;
  CHECK_FALSE(three.ranks[0]->poll_broken(rank));
  // The real rank 1 does not know of that record: its tail goes back.
  REQUIRE(three.ranks[1]->send(0, TestRun(0, 1, 1, 100).get()) == io::SendStatus::kSent);
  CHECK(three.ranks[0]->receive(0, 16, sink) == 0);
  REQUIRE(three.ranks[0]->poll_broken(rank));
  CHECK(rank == 1);
  CHECK_FALSE(three.ranks[0]->poll_broken(rank));
  CHECK(three.count(0, "shm_broken") == 1);
  three.ranks[0]->remove_peer(1);
  CHECK_FALSE(three.ranks[0]->has_peer(1));
  REQUIRE(three.ranks[2]->send(0, TestRun(0, 7, 1, 500).get()) == io::SendStatus::kSent);
  for (int i = 0; i < 100; ++i) three.ranks[0]->receive(0, 16, sink);
  CHECK(sink.numbers() == std::vector<std::uint32_t>{0, 7});
}

TEST_CASE("shm_datapath__one_peer_that_sends_all_the_time_leaves_a_share_to_the_others") {
  Three three;
  three.join(0, 2);
  for (std::uint32_t i = 0; i < 60; ++i) {
    REQUIRE(three.ranks[1]->send(0, TestRun(0, i, 1, 2'500).get()) == io::SendStatus::kSent);
  }
  REQUIRE(three.ranks[2]->send(0, TestRun(0, 1'000, 1, 2'500).get()) == io::SendStatus::kSent);
  CollectingSink sink;
  CHECK(three.ranks[0]->receive(0, 16, sink) <= 16);
  const auto numbers = sink.numbers();
  CHECK(std::find(numbers.begin(), numbers.end(), 1'000U) != numbers.end());
}

TEST_CASE("shm_datapath__idle_peers_of_a_large_job_rest_until_they_ring") {
  Crowd crowd;
  crowd.idle();
  CollectingSink sink;
  std::uint64_t rung = 0;
  for (std::uint16_t rank = 1; rank <= Crowd::kOthers; ++rank) {
    crowd.send(rank, rank);
    rung += crowd.rung_by(rank);
  }
  CHECK(rung == Crowd::kOthers);
  while (crowd.ranks[0]->receive(0, 16, sink) > 0) {
  }
  CHECK(sink.datagrams.size() == Crowd::kOthers);
  for (std::uint16_t rank = 1; rank <= Crowd::kOthers; ++rank) {  // a peer that has sent is active
    const std::uint64_t before = crowd.rung_by(rank);
    crowd.send(rank, rank);
    CHECK(crowd.rung_by(rank) == before);
  }
}

TEST_CASE("shm_datapath__what_a_resting_peer_sends_arrives_in_the_next_turn") {
  Crowd crowd;
  for (std::uint16_t rank = 1; rank <= Crowd::kOthers; ++rank) {
    crowd.idle();
    crowd.send(rank, rank);
    CollectingSink sink;
    CHECK(crowd.ranks[0]->receive(0, 16, sink) == 1);
  }
}

TEST_CASE("shm_datapath__a_resting_peer_whose_ring_is_full_wakes_its_writer") {
  Crowd crowd;
  crowd.idle();
  for (std::uint16_t rank = 1; rank <= Crowd::kOthers; ++rank) {
    std::uint32_t number = 0;
    while (crowd.ranks[0]->has_room_for(rank)) {
      REQUIRE(crowd.ranks[0]->send(0, TestRun(rank, 2 * number++, 2, kLong).get()) == io::SendStatus::kSent);
    }
  }
  crowd.idle();
  REQUIRE(crowd.ranks[0]->prepare_to_wait());
  pollfd ready{crowd.ranks[0]->readable_fd(), POLLIN, 0};
  for (std::uint16_t rank = 1; rank <= Crowd::kOthers; ++rank) {
    CollectingSink sink;
    while (crowd.ranks[rank]->receive(0, 16, sink) > 0) {
    }
    CHECK(crowd.rung_by(rank) == 1);
  }
  CHECK(::poll(&ready, 1, 0) == 1);
  CollectingSink sink;
  crowd.ranks[0]->receive(0, 16, sink);
  CHECK(::poll(&ready, 1, 0) == 0);  // all bells, not only some, are cleared
}

TEST_CASE("shm_datapath__resting_peers_leave_and_the_others_go_on") {
  Crowd crowd;
  crowd.idle();
  for (std::uint16_t rank = 1; rank < Crowd::kOthers; ++rank) crowd.ranks[0]->remove_peer(rank);
  CollectingSink sink;
  crowd.idle();
  crowd.send(Crowd::kOthers, 7);
  CHECK(crowd.ranks[0]->receive(0, 16, sink) == 1);
}

TEST_CASE("shm_datapath__a_peer_activated_during_a_wait_still_rings") {
  Crowd crowd;
  crowd.idle();
  REQUIRE(crowd.ranks[0]->prepare_to_wait());
  // A post on another thread finds the ring full while the I/O thread sleeps; then the peer sends.
  for (std::uint16_t rank = 1; rank <= Crowd::kOthers; ++rank) {
    std::uint32_t number = 0;
    while (crowd.ranks[0]->has_room_for(rank)) {
      REQUIRE(crowd.ranks[0]->send(0, TestRun(rank, 2 * number++, 2, kLong).get()) == io::SendStatus::kSent);
    }
    crowd.send(rank, rank);
    CHECK(crowd.rung_by(rank) == 1);
  }
}

TEST_CASE("shm_datapath__nothing_of_resting_peers_waits_for_a_timer") {
  Crowd crowd;
  constexpr std::uint32_t kRuns = 3'000;
  constexpr std::uint16_t kWriters = 3;  // threads; each sends for every third rank, with pauses of many lengths
  std::vector<std::thread> writers;
  for (std::uint16_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint32_t i = 0; i < kRuns; ++i) {
        const auto rank = static_cast<std::uint16_t>(1 + writer + kWriters * (i % 6));
        while (crowd.ranks[rank]->send(0, TestRun(0, i, 1, 500).get()) != io::SendStatus::kSent) {
          std::this_thread::yield();
        }
        for (std::uint32_t pause = 0; pause < i % 97; ++pause) std::atomic_signal_fence(std::memory_order_seq_cst);
        if (i % 50 == 0) std::this_thread::yield();
      }
    });
  }
  CollectingSink sink;
  bool in_time = true;
  while (sink.datagrams.size() < std::size_t{kRuns} * kWriters && in_time) {
    if (crowd.ranks[0]->receive(0, 16, sink) > 0 || !crowd.ranks[0]->prepare_to_wait()) continue;
    pollfd ready{crowd.ranks[0]->readable_fd(), POLLIN, 0};
    in_time = ::poll(&ready, 1, 20'000) == 1;
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(in_time);
  CHECK(sink.datagrams.size() == std::size_t{kRuns} * kWriters);
}
