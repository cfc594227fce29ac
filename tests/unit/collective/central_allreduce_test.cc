// The all-reduce through the group's first rank, over a bus without endpoints: which ones it is, sums bit for bit, few
// transfers, what it leaves alone.
#include "collective/central_allreduce.h"

#include <cstring>

#include "collective/direct_allreduce.h"
#include "fake_bus.h"

using namespace mlt::test;
using mlt::core::CompletionStatus;

TEST_CASE("central_allreduce__is_the_sum_in_the_group_s_order_bit_for_bit") {
  for (const std::size_t ranks : {17U, 18U, 33U}) {
    const std::size_t most = kDirectBytes / (ranks - 1) / sizeof(float);
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{5}, most}) {
      for (const bool average : {false, true}) check_direct_sum(ranks, elements, average);
    }
  }
}

TEST_CASE("central_allreduce__takes_any_group_in_its_own_order") {
  std::vector<std::uint16_t> group;
  for (std::uint16_t i = 0; i < 17; ++i) group.push_back(static_cast<std::uint16_t>((5 * i + 3) % 17));
  FakeBus bus({.ranks = 17, .seed = 4});
  auto tensors = random_tensors(17, 20, 9);
  std::vector<std::vector<float>> ordered;
  for (const std::uint16_t rank : group) ordered.push_back(tensors[rank]);
  const auto expected = direct_sum(ordered, true);
  for (std::uint16_t rank = 0; rank < 17; ++rank) {
    CollectiveRequest request = all_reduce_request(1, tensors[rank]);
    request.ranks = group;
    bus.start(rank, request);
  }
  bus.run();
  for (std::uint16_t rank = 0; rank < 17; ++rank) {
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].error == "");
    CHECK(tensors[rank] == expected);
  }
}

TEST_CASE("central_allreduce__a_member_has_transfers_with_the_first_and_its_neighbours_only") {
  FakeBus bus({.ranks = 100, .seed = 1});
  std::vector<float> data(10);
  bus.start(50, all_reduce_request(1, data));
  CHECK(bus.posted(50) == 5);  // to the first, from it shape and result; shapes of both neighbours
  bus.start(1, all_reduce_request(1, data));
  CHECK(bus.posted(1) == 4);  // the first is a neighbour
  bus.start(99, all_reduce_request(1, data));
  CHECK(bus.posted(99) == 4);
  bus.start(0, all_reduce_request(1, data));
  CHECK(bus.posted(0) == 2 * 99);  // the results follow
}

TEST_CASE("central_allreduce__the_tensor_stays_as_it_is_until_the_result_has_arrived_and_for_good_if_not") {
  check_a_failure_leaves_the_tensors(17, 100, 4, 9);
}

TEST_CASE("central_allreduce__another_call_of_any_member_is_named") {
  for (std::uint16_t odd = 0; odd < 17; ++odd) {
    CAPTURE(odd);
    FakeBus bus({.ranks = 17, .seed = odd + 1U});
    auto tensors = random_tensors(17, 100, 3);
    tensors[odd].resize(50);
    for (std::uint16_t rank = 0; rank < 17; ++rank) bus.start(rank, all_reduce_request(1, tensors[rank]));
    bus.run();
    for (std::uint16_t rank = 0; rank < 17; ++rank) {
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].status == CompletionStatus::kSizeMismatch);
      CHECK(bus.done(rank)[0].error.find("200 bytes") != std::string::npos);
      CHECK(bus.done(rank)[0].error.find("of its group") == std::string::npos);  // it says "number 0" twice already
    }
  }
}

TEST_CASE("central_allreduce__waits_for_room_where_there_is_none") { check_waits_for_space(20, 6, 30, 10); }
