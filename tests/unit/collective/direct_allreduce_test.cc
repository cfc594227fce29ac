// The all-reduce in one round over a bus without endpoints: which ones it is, sums bit for bit, what it leaves alone.
#include "collective/direct_allreduce.h"

#include <cmath>
#include <limits>

#include "fake_bus.h"

using namespace mlt::test;
using mlt::core::CompletionStatus;

namespace {

std::size_t max_elements(std::size_t ranks) { return kDirectBytes / (ranks - 1) / sizeof(float); }

}  // namespace

TEST_CASE("direct_allreduce__is_the_sum_in_the_group_s_order_bit_for_bit") {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 5U, 7U, 16U}) {
    const std::size_t most = ranks == 1 ? 100'000 : max_elements(ranks);
    for (const std::size_t elements :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{5}, std::size_t{1'000}, most - 1, most}) {
      for (const bool average : {false, true}) check_direct_sum(ranks, elements, average);
    }
  }
}

// 1e8 + 1 - 1e8 is 0 in float32, 1e8 - 1e8 + 1 is 1: the order is the group's, not the ranks'.
TEST_CASE("direct_allreduce__takes_any_group_in_its_own_order") {
  FakeBus bus({.ranks = 5, .seed = 3});
  std::vector<std::vector<float>> tensors = {{1.0F}, {55.0F}, {66.0F}, {-1e8F}, {1e8F}};
  for (const auto& [group, expected] :
       {std::pair<std::vector<std::uint16_t>, float>{{4, 0, 3}, 0.0F}, {{4, 3, 0}, 1.0F}}) {
    auto data = tensors;
    for (const std::uint16_t rank : group) {
      CollectiveRequest request = all_reduce_request(1, data[rank], false);
      request.ranks = group;
      bus.start(rank, request);
    }
    bus.run();
    for (const std::uint16_t rank : group) CHECK(data[rank][0] == expected);
    CHECK(data[1] == tensors[1]);
    CHECK(data[2] == tensors[2]);
  }
}

TEST_CASE("direct_allreduce__all_end_with_the_same_bits_whatever_the_values") {
  const float huge = std::numeric_limits<float>::max();
  const float infinite = std::numeric_limits<float>::infinity();
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + seed % 6);
    FakeBus bus({.ranks = ranks, .seed = seed});
    auto tensors = random_tensors(ranks, 200, seed);
    mlt::base::Prng prng(seed);
    for (auto& tensor : tensors) {
      for (const float value : {huge, -huge, infinite, -infinite, -0.0F, 1e-42F, std::nanf("1"), std::nanf("2")}) {
        tensor[prng.below(tensor.size())] = value;
      }
    }
    all_reduce(bus, tensors, seed % 2 == 0);
    for (const auto& tensor : tensors) CHECK(have_same_bits(tensor, tensors[0]));
  }
}

// The bus loses whatever a receive allows.
TEST_CASE("direct_allreduce__loses_nothing_under_a_bound_that_is_too_small_for_a_segment") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FakeBus bus({.ranks = 3, .seed = seed, .lossy = true});
    auto tensors = random_tensors(3, 250, seed);
    const auto expected = direct_sum(tensors, true);
    all_reduce(bus, tensors, true, 0.99);
    CHECK(bus.lost_elements() == 0);
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      CHECK(bus.done(rank)[0].status == CompletionStatus::kComplete);
      CHECK(tensors[rank] == expected);
    }
  }
}

// The shape does not hold the tensor up, and nothing else follows: one round.
TEST_CASE("direct_allreduce__posts_everything_at_once") {
  FakeBus bus({.ranks = 5, .seed = 1});
  std::vector<float> data(100);
  bus.start(2, all_reduce_request(1, data));
  CHECK(bus.posted(2) == 2 * 4);
}

// A receive may end long before the own sends: the caller's tensor is what they carry, also when they carry it again.
TEST_CASE("direct_allreduce__the_tensor_stays_as_it_is_until_everything_has_arrived_and_for_good_if_not") {
  check_a_failure_leaves_the_tensors(4, 1'000, 1, 19);
}

TEST_CASE("direct_allreduce__waits_for_room_where_there_is_none") { check_waits_for_space(6, 9, 300, 20); }
