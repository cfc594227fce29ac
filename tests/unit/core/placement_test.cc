#include "core/placement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace {

using namespace mlt;
using core::Placement;
using core::SegmentGrid;

constexpr std::uint32_t kPlacedSegment = 100;
constexpr std::byte kBefore{0xEE};  // what the buffer holds before the receive

struct PlacementWorld {
  explicit PlacementWorld(std::uint32_t bytes, std::uint32_t segment_bytes = kPlacedSegment)
      : grid(bytes, segment_bytes),
        sent(bytes),
        buffer(bytes, kBefore),
        words(base::words_for_bits(grid.count()), ~0ULL) {
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 % 251);
    request.data = buffer;
    placement = Placement(grid, words);
  }
  std::span<const std::byte> segment(std::uint32_t i) const {
    return std::span<const std::byte>(sent).subspan(grid.offset(i), grid.length(i));
  }
  bool put(std::uint32_t i) { return placement.put(request, grid.offset(i), segment(i)); }
  // All bytes of the segment in the buffer are this one.
  bool holds(std::uint32_t i, std::byte value) const {
    const std::span<const std::byte> found = std::span<const std::byte>(buffer).subspan(grid.offset(i), grid.length(i));
    return std::all_of(found.begin(), found.end(), [value](std::byte at) { return at == value; });
  }

  SegmentGrid grid;
  std::vector<std::byte> sent;
  std::vector<std::byte> buffer;
  std::vector<std::uint64_t> words;
  core::ReceiveRequest request;
  Placement placement;
};

TEST_CASE("put__writes_every_segment_at_its_offset_in_any_order") {
  for (const std::uint32_t bytes : {1U, 100U, 101U, 6'400U, 12'345U}) {
    CAPTURE(bytes);
    PlacementWorld world(bytes);
    std::vector<std::uint32_t> order(world.grid.count());
    std::iota(order.begin(), order.end(), 0U);
    base::Prng prng(bytes);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.below(i)]);
    std::uint64_t missing = bytes;
    for (std::size_t i = 0; i < order.size(); ++i) {
      CHECK(world.placement.missing_bytes() == missing);
      CHECK(world.placement.missing_segments() == order.size() - i);
      REQUIRE(world.put(order[i]));
      missing -= world.grid.length(order[i]);
    }
    CHECK(world.placement.missing_bytes() == 0);
    CHECK(world.placement.received_segments() == world.grid.count());
    CHECK(world.placement.first_missing(0) == world.grid.count());
    CHECK(world.buffer == world.sent);
  }
}

TEST_CASE("put__does_not_write_or_count_a_segment_again") {
  PlacementWorld world(1'050);
  REQUIRE(world.put(10));  // the last one, of 50 bytes
  const std::vector<std::byte> other(50, std::byte{0x55});
  CHECK_FALSE(world.placement.put(world.request, 1'000, other));
  CHECK(std::equal(world.buffer.begin() + 1'000, world.buffer.end(), world.sent.begin() + 1'000));
  CHECK(world.placement.missing_bytes() == 1'000);
  CHECK(world.placement.missing_segments() == 10);
}

TEST_CASE("put__an_empty_tensor_has_one_segment_and_no_missing_bytes") {
  PlacementWorld world(0);
  CHECK(world.placement.missing_segments() == 1);
  CHECK(world.placement.missing_bytes() == 0);
  CHECK(world.put(0));
  CHECK(world.placement.missing_segments() == 0);
  CHECK_FALSE(world.put(0));
}

// A tensor of this size is written with non-temporal stores.
TEST_CASE("put__writes_a_large_tensor_like_a_small_one") {
  PlacementWorld world(static_cast<std::uint32_t>(base::kStreamedBytes) + 77, 1'432);
  for (std::uint32_t i = world.grid.count(); i > 0; --i) REQUIRE(world.put(i - 1));
  world.placement.finish();
  CHECK(world.buffer == world.sent);
}

TEST_CASE("put__gives_the_segment_to_the_caller_that_places_itself") {
  PlacementWorld world(250);
  struct Placed {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
  } placed;
  world.request.place_context = &placed;
  world.request.place = [](void* context, std::uint64_t offset, std::span<const std::byte> bytes) {
    *static_cast<Placed*>(context) = {offset, {bytes.begin(), bytes.end()}};
  };
  REQUIRE(world.put(2));
  CHECK(placed.offset == 200);
  CHECK(placed.bytes == std::vector<std::byte>(world.sent.begin() + 200, world.sent.end()));
  placed = {};
  CHECK_FALSE(world.put(2));
  CHECK(placed.bytes.empty());
  world.placement.fill_missing(world.request);
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(world.holds(i, kBefore));  // the buffer belongs to the caller
}

TEST_CASE("fill_missing__zeroes_what_did_not_arrive_and_nothing_else") {
  PlacementWorld world(1'050);
  for (const std::uint32_t i : {1U, 4U, 5U}) REQUIRE(world.put(i));
  world.placement.fill_missing(world.request);
  for (std::uint32_t i = 0; i < world.grid.count(); ++i) {
    CAPTURE(i);
    const std::span<const std::byte> found =
        std::span<const std::byte>(world.buffer).subspan(world.grid.offset(i), world.grid.length(i));
    if (i == 1 || i == 4 || i == 5) {
      CHECK(std::equal(found.begin(), found.end(), world.segment(i).begin()));
    } else {
      CHECK(world.holds(i, std::byte{0}));
    }
  }
}

TEST_CASE("fill_missing__keeps_the_old_values_if_the_receive_says_so") {
  PlacementWorld world(300);
  world.request.fill = core::Fill::kKeep;
  REQUIRE(world.put(1));
  world.placement.fill_missing(world.request);
  CHECK(world.holds(0, kBefore));
  CHECK(world.holds(2, kBefore));
}

TEST_CASE("first_missing__and_the_bitmap_follow_the_arrivals") {
  PlacementWorld world(200 * kPlacedSegment);
  CHECK(world.placement.first_missing(0) == 0);  // memory from an earlier receive is cleared
  for (std::uint32_t i = 0; i < 130; ++i) REQUIRE(world.put(i));
  REQUIRE(world.put(131));
  CHECK(world.placement.first_missing(0) == 130);
  CHECK(world.placement.first_missing(131) == 132);
  CHECK(world.placement.words().data() == world.words.data());
  CHECK(world.words[0] == ~0ULL);
  CHECK(world.words[2] == 0b1011);
  CHECK(world.words[3] == 0);
}

}  // namespace
