#include "core/repair_rounds.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

namespace {

using namespace mlt;
using core::RepairRounds;
using core::SendEvent;

// A chunk of a BITMAP; its segments have arrived but for those that `missing` names, counted from its first.
struct Chunk {
  Chunk(std::uint32_t first, std::uint32_t count, const std::vector<std::uint32_t>& missing, std::uint8_t round = 0)
      : bits((count + 7) / 8) {
    for (std::uint32_t i = 0; i < count; ++i) bits[i / 8] |= std::byte{1} << (i % 8);
    for (const std::uint32_t i : missing) bits[i / 8] &= ~(std::byte{1} << (i % 8));
    message.first_segment = first;
    message.segment_count = count;
    message.bits = bits;
    message.prefix.round = round;
  }
  std::vector<std::byte> bits;
  wire::BitmapMessage message;
};

struct Pending {
  std::array<std::uint64_t, 2 * MLT_BITMAP_CHUNK_SEGMENTS / 64> words{};
  base::BitmapView bits{words.data(), 2 * MLT_BITMAP_CHUNK_SEGMENTS};
};

TEST_CASE("requests_any__only_if_a_segment_is_missing") {
  CHECK_FALSE(core::requests_any(Chunk(0, 13, {}).message));
  CHECK(core::requests_any(Chunk(0, 13, {12}).message));
  CHECK(core::requests_any(Chunk(0, 13, {0}).message));
}

TEST_CASE("event_of__the_round_that_the_bitmap_replies_to") {
  RepairRounds rounds;
  const auto event_of = [&](std::uint8_t round) { return rounds.event_of(Chunk(0, 10, {9}, round).message); };
  CHECK(event_of(0) == SendEvent::k_bitmap);
  CHECK(event_of(255) == SendEvent::k_other_bitmap);  // nothing was requested yet
  CHECK(event_of(1) == SendEvent::k_other_bitmap);
  rounds.begin_round();
  CHECK(rounds.round() == 1);
  CHECK(event_of(1) == SendEvent::k_bitmap);
  CHECK(event_of(0) == SendEvent::k_late_bitmap);
  CHECK(event_of(255) == SendEvent::k_other_bitmap);
}

TEST_CASE("event_of__a_chunk_of_the_request_counts_once_however_many_rounds_it_took") {
  RepairRounds rounds;
  Pending pending;
  const Chunk first(0, MLT_BITMAP_CHUNK_SEGMENTS, {3}), second(MLT_BITMAP_CHUNK_SEGMENTS, 10, {9});
  rounds.begin_round();
  CHECK(rounds.merge(first.message, pending.bits) == 1);
  CHECK(rounds.event_of(first.message) == SendEvent::k_other_bitmap);
  for (std::uint32_t round = 2; round <= 127; ++round) rounds.begin_further_round();
  CHECK(rounds.event_of(second.message) == SendEvent::k_late_bitmap);
  CHECK(rounds.event_of(first.message) == SendEvent::k_other_bitmap);
  rounds.begin_further_round();  // further ones could not be told from old ones
  CHECK(rounds.event_of(second.message) == SendEvent::k_other_bitmap);
}

TEST_CASE("merge__marks_what_is_missing") {
  RepairRounds rounds;
  Pending pending;
  const Chunk first(0, MLT_BITMAP_CHUNK_SEGMENTS, {3, 70}), second(MLT_BITMAP_CHUNK_SEGMENTS, 10, {9});
  rounds.begin_round();
  CHECK(rounds.merge(first.message, pending.bits) == 2);
  CHECK(pending.bits.count() == 2);
  CHECK(pending.bits.test(3));
  CHECK(pending.bits.test(70));
  pending.bits.clear(3);  // it was sent again
  CHECK(rounds.merge(second.message, pending.bits) == 1);
  CHECK(pending.bits.test(MLT_BITMAP_CHUNK_SEGMENTS + 9));
  rounds.begin_round();
  CHECK(rounds.merge(first.message, pending.bits) == 1);  // segment 70 is still pending
}

TEST_CASE("is_round_lost__more_than_half_of_many_packets_and_once") {
  for (const std::uint32_t sent : {63U, 64U, 1'000U}) {
    RepairRounds rounds;
    for (std::uint32_t i = 0; i < sent; ++i) rounds.count_sent();
    rounds.begin_round();
    rounds.count_sent();
    rounds.begin_further_round();  // counts with the request's first chunks
    CHECK_FALSE(rounds.is_round_lost(sent / 2));
    CHECK(rounds.is_round_lost(1) == (sent >= 64));
    CHECK_FALSE(rounds.is_round_lost(sent));
    rounds.begin_round();  // too little was sent in the rounds that ended
    CHECK_FALSE(rounds.is_round_lost(sent));
  }
}

}  // namespace
