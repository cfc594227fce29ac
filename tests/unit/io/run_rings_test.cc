#include "io/run_rings.h"

#include <doctest/doctest.h>

#include <cstring>

#include "unit/io/datagrams.h"

using namespace mlt;
using io::SendStatus;
using io_test::CollectingSink;
using io_test::TestRun;

TEST_CASE("send_ring__copies_what_lies_in_the_runs_own_scratch_and_points_to_the_rest") {
  io::SendRing ring;
  std::byte tensor[4] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  base::DatagramRun run;
  run.peer = 3;
  run.path = 2;
  run.dscp = 46;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 2;
  run.datagram_bytes = 6;
  run.total_bytes = 12;
  run.slice_count = 4;
  for (std::size_t i = 0; i < 16; ++i) run.scratch[i] = static_cast<std::byte>(100 + i);
  run.slices[0] = {run.scratch.data(), 4};
  run.slices[1] = {tensor, 2};
  run.slices[2] = {run.scratch.data() + 4, 4};
  run.slices[3] = {tensor + 2, 2};
  REQUIRE(ring.push(7, run));
  std::memset(run.scratch.data(), 0, run.scratch.size());
  const base::DatagramRun* front = ring.front();
  REQUIRE(front != nullptr);
  CHECK(front->peer == 3);
  CHECK(front->path == 2);
  CHECK(front->traffic_class() == run.traffic_class());
  CHECK(front->datagram_count == 2);
  CHECK(front->total_bytes == 12);
  REQUIRE(front->slice_count == 4);
  CHECK(front->slices[0].data == front->scratch.data());
  CHECK(front->slices[0].data[3] == std::byte{103});
  CHECK(front->slices[2].data[0] == std::byte{104});
  CHECK(front->slices[1].data == tensor);
  CHECK(front->slices[3].data == tensor + 2);
  CHECK(ring.oldest(99) == 7);
  ring.pop(SendStatus::kSent, {});
  CHECK(ring.oldest(99) == 99);
}

TEST_CASE("send_ring__tells_of_each_run_that_did_not_leave_and_frees_its_place_then") {
  io::SendRing ring;
  const TestRun run(1, 0, 3, 500, 100);
  std::uint64_t number = 0;
  while (ring.push(number, run.get())) ++number;
  REQUIRE(number == io::SendRing::kPlaces);
  CHECK(!ring.has_room());
  CHECK(ring.waiting() == number);
  io::RefusedRun refused;
  CHECK(!ring.pop_refused(refused));
  // Sent, failed, too large, and the rest sent.
  ring.pop(SendStatus::kSent, {});
  CHECK(ring.has_room());
  ring.pop(SendStatus::kFailed, "why");
  ring.pop(SendStatus::kTooLarge, {});
  while (ring.front() != nullptr) ring.pop(SendStatus::kSent, {});
  // Nobody asked yet what became of the second: no place behind the first is free.
  CHECK(ring.push(number++, run.get()));
  CHECK(!ring.has_room());
  REQUIRE(ring.pop_refused(refused));
  CHECK(refused.status == SendStatus::kFailed);
  CHECK(refused.error == "why");
  CHECK(refused.peer == 1);
  CHECK(refused.datagram_bytes == 500);
  REQUIRE(ring.pop_refused(refused));
  CHECK(refused.status == SendStatus::kTooLarge);
  CHECK(refused.error.empty());
  CHECK(!ring.pop_refused(refused));
  for (std::size_t i = 1; i < io::SendRing::kPlaces; ++i) CHECK(ring.push(number++, run.get()));
  CHECK(!ring.has_room());
  CHECK(ring.oldest(99) == io::SendRing::kPlaces);
}

TEST_CASE("receive_ring__hands_out_in_order_what_lies_in_it_or_was_copied") {
  io::ReceiveRing ring;
  CollectingSink sink;
  CHECK(ring.empty());
  std::uint32_t sent = 0;
  for (int round = 0; round < 3; ++round) {
    while (ring.room() > 0) {
      const std::vector<std::byte> content = TestRun::content(sent, 200);
      base::ReceivedRun run;
      run.bytes = content;
      run.datagram_bytes = 200;
      run.arrival_ns = sent;
      if (sent % 2 == 0) {  // as a socket does that reads into the ring
        std::memcpy(ring.next_buffer().data(), content.data(), content.size());
        run.bytes = ring.next_buffer().first(content.size());
      }
      ring.push(run);
      ++sent;
    }
    CHECK(!ring.empty());
    CHECK(ring.take(0, 5, sink) == 5);
    CHECK(ring.room() == 5);
  }
  while (!ring.empty()) ring.take(0, 1, sink);
  REQUIRE(sink.datagrams.size() == sent);
  for (std::uint32_t i = 0; i < sent; ++i) {
    CHECK(sink.datagrams[i].number == i);
    CHECK(sink.datagrams[i].intact);
  }
}

TEST_CASE("receive_ring__nothing_arrives_after_the_time_that_the_owner_goes_by") {
  struct ArrivalSink final : io::ReceiveSink {
    void on_run(const base::ReceivedRun& run) override { arrivals.push_back(run.arrival_ns); }
    std::vector<base::TimeNs> arrivals;
  } sink;
  io::ReceiveRing ring;
  const std::byte datagram{};
  for (const base::TimeNs arrival : {base::TimeNs{90}, base::TimeNs{110}, base::kNever}) {
    base::ReceivedRun run;
    run.bytes = {&datagram, 1};
    run.datagram_bytes = 1;
    run.arrival_ns = arrival;
    ring.push(run);
  }
  CHECK(ring.take(100, 16, sink) == 3);
  CHECK(sink.arrivals == std::vector<base::TimeNs>{90, 100, base::kNever});
}
