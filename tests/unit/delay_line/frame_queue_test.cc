#include "delay_line/frame_queue.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

namespace mlt::delay_line {

namespace {

constexpr std::uint32_t kFrameBytes = 64;
constexpr std::uint32_t kSpare = 4;

// Holds one frame whose bytes are all `content`.
bool hold(FrameQueue& queue, std::byte content, base::TimeNs arrival, base::DurationNs delay,
          base::DurationNs jitter = 0) {
  std::memset(queue.space(0).data(), static_cast<int>(content), 10);
  const std::array<std::uint32_t, 1> lengths = {10};
  const std::array<base::TimeNs, 1> arrivals = {arrival};
  return queue.hold(lengths, arrivals, delay, jitter) == 1;
}

// Contents of all frames due at `now`, which leave.
std::vector<std::byte> take(FrameQueue& queue, base::TimeNs now) {
  std::vector<std::byte> found;
  while (!queue.due_frame(0, now).empty()) {
    CHECK(queue.due_frame(0, now).size() == 10);
    found.push_back(queue.due_frame(0, now)[9]);
    queue.pop(1);
  }
  return found;
}

}  // namespace

TEST_CASE("hold__is_due_exactly_a_delay_after_the_arrival") {
  FrameQueue queue(8, kSpare, kFrameBytes, 1);
  CHECK(queue.due() == base::kNever);
  CHECK(hold(queue, std::byte{7}, 1000, 500));
  CHECK(queue.due() == 1500);
  CHECK(take(queue, 1499).empty());
  CHECK(take(queue, 1500) == std::vector{std::byte{7}});
  CHECK(queue.due() == base::kNever);
}

TEST_CASE("hold__keeps_the_order_under_jitter_and_a_shorter_delay") {
  FrameQueue queue(1000, kSpare, kFrameBytes, 1);
  CHECK(hold(queue, std::byte{1}, 0, 1'000'000));
  CHECK(hold(queue, std::byte{2}, 10, 0));
  CHECK(take(queue, 999'999).empty());
  CHECK(take(queue, 1'000'000) == std::vector{std::byte{1}, std::byte{2}});
  for (int i = 0; i < 200; ++i) CHECK(hold(queue, static_cast<std::byte>(i), 2'000'000 + i, 1000, 5000));
  std::vector<std::byte> all;
  for (base::TimeNs now = 2'000'000; now < 2'010'000; now += 100) {
    for (const std::byte one : take(queue, now)) all.push_back(one);
  }
  REQUIRE(all.size() == 200);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == static_cast<std::byte>(i));
}

TEST_CASE("hold__draws_jitter_from_the_seed_uniformly_in_its_range") {
  FrameQueue queue(4, kSpare, kFrameBytes, 5);
  FrameQueue same(4, kSpare, kFrameBytes, 5);
  constexpr int kFrames = 4000;
  double sum = 0;
  base::DurationNs most = 0;
  for (int i = 0; i < kFrames; ++i) {
    const base::TimeNs arrival = base::TimeNs{i} * 1'000'000;
    CHECK(hold(queue, std::byte{0}, arrival, 10'000, 2000));
    CHECK(hold(same, std::byte{0}, arrival, 10'000, 2000));
    const base::DurationNs extra = queue.due() - arrival - 10'000;
    CHECK(queue.due() == same.due());
    CHECK(extra >= 0);
    CHECK(extra <= 2000);
    sum += static_cast<double>(extra);
    most = std::max(most, extra);
    queue.pop(1);
    same.pop(1);
  }
  CHECK(sum / kFrames == doctest::Approx(1000).epsilon(0.05));
  CHECK(most > 1900);
}

TEST_CASE("hold__beyond_the_limit_keeps_nothing_and_reuses_spaces") {
  FrameQueue queue(3, kSpare, kFrameBytes, 1);
  for (int round = 0; round < 100; ++round) {
    for (std::uint32_t i = 0; i < kSpare; ++i) std::memset(queue.space(i).data(), static_cast<int>(i) + 1, 10);
    const std::array<std::uint32_t, kSpare> lengths = {10, 10, 10, 10};
    const std::array<base::TimeNs, kSpare> arrivals = {1, 2, 3, 4};
    CHECK(queue.hold(lengths, arrivals, 0, 0) == 3);
    CHECK(queue.size() == 3);
    CHECK(queue.hold(lengths, arrivals, 0, 0) == 0);
    CHECK(take(queue, 100'000) == std::vector{std::byte{1}, std::byte{2}, std::byte{3}});
  }
}

TEST_CASE("hold__clamps_an_absurd_delay") {
  FrameQueue queue(3, kSpare, kFrameBytes, 1);
  CHECK(hold(queue, std::byte{1}, 0, base::kNever));
  CHECK(queue.due() == kMaxDelayNs);
  queue.pop(1);
  FrameQueue other(3, kSpare, kFrameBytes, 1);
  CHECK(hold(other, std::byte{1}, 5, -1));
  CHECK(other.due() == 5);
}

}  // namespace mlt::delay_line
