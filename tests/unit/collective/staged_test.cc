// The all-reduce in stages, by recursive halving and by two levels, over a bus without endpoints: sums bit for bit in
// any order of arrival, groups of any size, how few transfers, scarce slots, calls that differ, failures.
#include "collective/staged.h"

#include <array>

#include "fake_bus.h"

using namespace mlt::test;
using mlt::core::CompletionStatus;

namespace {

CollectiveRequest halving_request(OperationId operation, std::vector<float>& data) {
  CollectiveRequest request = all_reduce_request(operation, data);
  request.algorithm = CollectiveAlgorithm::kHalving;
  return request;
}

CollectiveRequest two_level_request(OperationId operation, std::vector<float>& data, std::uint16_t ranks_per_host) {
  CollectiveRequest request = all_reduce_request(operation, data);
  request.algorithm = CollectiveAlgorithm::kTwoLevel;
  request.ranks_per_host = ranks_per_host;
  return request;
}

// The bus loses `dead` after `steps`. How many ranks have the error that names it; the others have the result.
std::size_t failures_after_a_death(FakeBus& bus, int steps, std::uint16_t dead,
                                   const std::vector<std::vector<float>>& tensors, const std::vector<float>& expected) {
  bus.run_steps(steps);
  bus.kill(dead);
  bus.run();
  return check_death_is_named(bus, dead, tensors, expected);
}

struct Hosts {
  std::uint16_t hosts, ranks_per_host;
};
constexpr Hosts kHosts[] = {{2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 8}, {5, 3}, {8, 2}};

}  // namespace

TEST_CASE("halving_allreduce__is_the_sum_of_its_tree_bit_for_bit_in_any_order_of_arrival") {
  for (const std::size_t ranks : {2U, 3U, 4U, 5U, 6U, 7U, 8U, 11U, 16U, 23U, 32U}) {
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1'003}}) {
      for (const std::uint64_t seed : {1U, 2U, 3U}) {
        CAPTURE(ranks);
        CAPTURE(elements);
        CAPTURE(seed);
        FakeBus bus({.ranks = static_cast<std::uint16_t>(ranks), .seed = seed * elements + ranks});
        auto tensors = random_tensors(ranks, elements, elements + seed);
        const bool average = seed % 2 == 1;
        const auto expected = halving_sum(tensors, average);
        all_reduce(bus, tensors, average, 0, CollectiveAlgorithm::kHalving);
        check_complete(bus, tensors, expected);
      }
    }
  }
}

TEST_CASE("halving_allreduce__takes_any_group_in_its_own_order") {
  const std::vector<std::uint16_t> group = {4, 1, 6, 0, 3, 5};
  FakeBus bus({.ranks = 7, .seed = 4});
  auto tensors = random_tensors(7, 500, 9);
  std::vector<std::vector<float>> ordered;
  for (const std::uint16_t rank : group) ordered.push_back(tensors[rank]);
  const auto expected = halving_sum(ordered, true);
  for (const std::uint16_t rank : group) {
    CollectiveRequest request = halving_request(1, tensors[rank]);
    request.ranks = group;
    bus.start(rank, request);
  }
  bus.run();
  check_group_complete(bus, group, tensors, expected);
}

// Of 256 ranks, each has 8 partners: 16 parts each way, not the 510 of a ring.
TEST_CASE("halving_allreduce__has_two_log_n_transfers_each_way_and_the_shapes") {
  const auto steps = [](std::uint32_t ranks, std::uint32_t own, std::size_t elements) {
    std::vector<float> data(elements);
    Membership group;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) group.ranks.push_back(rank);
    group.own = own;
    const auto bytes = std::as_writable_bytes(std::span(data));
    const Staged halving(group, bytes.size(), mlt::wire::ElementType::kFloat32, Reduction::kSum,
                         halving_stages(ranks, own, bytes, sizeof(float)));
    std::array<std::uint32_t, 2> sent_and_received{};
    for (const Stream& stream : halving.streams) sent_and_received[stream.is_send ? 0 : 1] += stream.steps;
    return sent_and_received;
  };
  // 16 parts, 8 shapes, and one for the neighbour in the group that is no partner.
  CHECK(steps(256, 5, 1 << 18) == std::array{25U, 24U});  // its next is no partner, the one before is
  CHECK(steps(256, 6, 1 << 18) == std::array{24U, 25U});
  CHECK(steps(2, 0, 1'000) == std::array{3U, 3U});
  // A pair of three: the second member sends its tensor and receives the result.
  CHECK(steps(3, 1, 1'000) == std::array{3U, 2U});
  CHECK(steps(3, 0, 1'000) == std::array{5U, 5U});
  // Long parts are cut.
  CHECK(steps(2, 0, 5 * kStagePieceBytes / sizeof(float)) == std::array{7U, 7U});
}

TEST_CASE("halving_allreduce__long_parts_are_carried_in_pieces") {
  for (const std::uint16_t ranks : {std::uint16_t{2}, std::uint16_t{3}, std::uint16_t{4}}) {
    FakeBus bus({.ranks = ranks, .seed = ranks, .segment_bytes = [](auto, auto) { return 8'920U; }});
    auto tensors = random_tensors(ranks, 3 * kStagePieceBytes / sizeof(float) + 7, ranks);
    const auto expected = halving_sum(tensors, true);
    all_reduce(bus, tensors, true, 0, CollectiveAlgorithm::kHalving);
    for (const auto& tensor : tensors) CHECK(tensor == expected);
  }
}

TEST_CASE("halving_allreduce__loses_nothing_even_with_a_bound") {
  FakeBus bus({.ranks = 8, .seed = 3, .lossy = true});
  auto tensors = random_tensors(8, 50'000, 9);
  const auto expected = halving_sum(tensors, true);
  all_reduce(bus, tensors, true, 0.2, CollectiveAlgorithm::kHalving);
  for (const auto& tensor : tensors) CHECK(tensor == expected);
  CHECK(bus.lost_elements() == 0);
}

// Ranks hold few slots, and receives of late stages must not take those of early ones.
TEST_CASE("halving_allreduce__waits_for_space_where_there_is_none") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 14);
    FakeBus bus({.ranks = ranks, .seed = seed, .max_posted = 3, .shared_transfers = 2});
    std::vector<std::vector<std::vector<float>>> tensors;
    constexpr std::size_t kCalls = 6;
    for (std::size_t i = 0; i < kCalls; ++i) {
      tensors.push_back(random_tensors(ranks, 200 + i, i));
      for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, halving_request(i + 1, tensors[i][rank]));
    }
    bus.run();
    for (std::size_t i = 0; i < kCalls; ++i) {
      const auto expected = halving_sum(random_tensors(ranks, 200 + i, i), true);
      for (const auto& tensor : tensors[i]) CHECK(tensor == expected);
    }
  }
}

TEST_CASE("halving_allreduce__a_member_that_names_another_algorithm_is_named_at_every_rank_and_the_next_call_works") {
  for (const auto other : {CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kCentral, CollectiveAlgorithm::kRing}) {
    for (std::uint16_t ranks = 2; ranks < 8; ++ranks) {
      for (std::uint16_t odd = 0; odd < ranks; ++odd) {
        for (const std::size_t elements : {std::size_t{0}, std::size_t{100}}) {
          CAPTURE(std::string(algorithm_name(other)));
          CAPTURE(ranks);
          CAPTURE(odd);
          CAPTURE(elements);
          FakeBus bus({.ranks = ranks, .seed = odd + elements + 1U});
          auto tensors = random_tensors(ranks, elements, 3), next = random_tensors(ranks, 60, 4);
          for (std::uint16_t rank = 0; rank < ranks; ++rank) {
            CollectiveRequest request = halving_request(1, tensors[rank]);
            if (rank == odd) request.algorithm = other;
            bus.start(rank, request);
          }
          run_to_the_end(bus, ranks);
          for (std::uint16_t rank = 0; rank < ranks; ++rank) {
            REQUIRE(bus.done(rank).size() == 1);
            const CollectiveDone& done = bus.done(rank)[0];
            CAPTURE(done.error);
            CHECK(done.status == CompletionStatus::kSizeMismatch);
            CHECK(done.error.find("rank " + std::to_string(odd) + " called all-reduce") != std::string::npos);
            CHECK(done.error.find(std::string("algorithm ") + algorithm_name(other)) != std::string::npos);
            CHECK(done.error.find("algorithm halving") != std::string::npos);
          }
          const auto expected = halving_sum(next, true);
          for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, halving_request(2, next[rank]));
          bus.run();
          for (const auto& tensor : next) CHECK(tensor == expected);
        }
      }
    }
  }
}

TEST_CASE("halving_allreduce__a_rank_that_dies_is_named_by_each_that_does_not_have_the_result") {
  std::size_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + seed % 8);
    FakeBus bus({.ranks = ranks, .seed = seed});
    auto tensors = random_tensors(ranks, 300, seed);
    const auto expected = halving_sum(tensors, true);
    for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, halving_request(1, tensors[rank]));
    const auto dead = static_cast<std::uint16_t>(seed % ranks);
    failures += failures_after_a_death(bus, static_cast<int>(seed), dead, tensors, expected);
  }
  CHECK(failures > 100);
}

TEST_CASE("two_level_allreduce__is_the_sum_of_its_stages_bit_for_bit_in_any_order_of_arrival") {
  for (const auto [hosts, ranks_per_host] : kHosts) {
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1'003}}) {
      for (const std::uint64_t seed : {1U, 2U, 3U}) {
        CAPTURE(hosts);
        CAPTURE(ranks_per_host);
        CAPTURE(elements);
        CAPTURE(seed);
        const auto ranks = static_cast<std::uint16_t>(hosts * ranks_per_host);
        FakeBus bus({.ranks = ranks, .seed = seed * elements + ranks});
        auto tensors = random_tensors(ranks, elements, elements + seed);
        const auto expected = two_level_sum(tensors, ranks_per_host, true);
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          bus.start(rank, two_level_request(rank + 1U, tensors[rank], ranks_per_host));
        }
        bus.run();
        check_complete(bus, tensors, expected);
      }
    }
  }
}

// More slices than are in progress at once, and few slots: memory for what a slice receives is used again.
TEST_CASE("two_level_allreduce__slices_take_turns") {
  for (const auto [hosts, ranks_per_host] : {Hosts{2, 2}, Hosts{3, 2}}) {
    for (const std::size_t max_posted : {std::size_t{3}, std::size_t{1'000}}) {
      CAPTURE(hosts);
      CAPTURE(max_posted);
      const auto ranks = static_cast<std::uint16_t>(hosts * ranks_per_host);
      FakeBus bus({.ranks = ranks,
                   .seed = hosts,
                   .max_posted = max_posted,
                   .shared_transfers = 2,
                   .segment_bytes = [](auto, auto) { return 8'920U; }});
      // 9 slices.
      auto tensors = random_tensors(ranks, (33U << 20) / sizeof(float) + 7, hosts);
      const auto expected = two_level_sum(tensors, ranks_per_host, false);
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        CollectiveRequest request = two_level_request(1, tensors[rank], ranks_per_host);
        request.reduction = Reduction::kSum;
        bus.start(rank, request);
      }
      bus.run();
      for (std::uint16_t rank = 0; rank < ranks; ++rank) REQUIRE(bus.done(rank).size() == 1);
      for (const auto& tensor : tensors) CHECK(tensor == expected);
    }
  }
}

TEST_CASE("two_level_allreduce__members_that_know_other_hosts_are_named_at_every_rank_and_the_next_call_works") {
  for (std::uint16_t odd = 0; odd < 12; ++odd) {
    CAPTURE(odd);
    FakeBus bus({.ranks = 12, .seed = odd + 1U});
    auto tensors = random_tensors(12, 100, 3), next = random_tensors(12, 60, 4);
    for (std::uint16_t rank = 0; rank < 12; ++rank) {
      bus.start(rank, two_level_request(1, tensors[rank], rank == odd ? 3 : 4));
    }
    run_to_the_end(bus, 12);
    for (std::uint16_t rank = 0; rank < 12; ++rank) {
      const CollectiveDone& done = bus.done(rank)[0];
      CAPTURE(done.error);
      CHECK(done.status == CompletionStatus::kSizeMismatch);
      CHECK(done.error.find("rank " + std::to_string(odd) + " called all-reduce") != std::string::npos);
      CHECK(done.error.find("two-level of 3 ranks per host") != std::string::npos);
      CHECK(done.error.find("two-level of 4 ranks per host") != std::string::npos);
    }
    const auto expected = two_level_sum(next, 4, true);
    for (std::uint16_t rank = 0; rank < 12; ++rank) bus.start(rank, two_level_request(2, next[rank], 4));
    bus.run();
    for (const auto& tensor : next) CHECK(tensor == expected);
  }
}

TEST_CASE("two_level_allreduce__a_rank_that_dies_is_named_by_each_that_does_not_have_the_result") {
  std::size_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const auto [hosts, ranks_per_host] = kHosts[seed % 4];
    const auto ranks = static_cast<std::uint16_t>(hosts * ranks_per_host);
    FakeBus bus({.ranks = ranks, .seed = seed});
    auto tensors = random_tensors(ranks, 300, seed);
    const auto expected = two_level_sum(tensors, ranks_per_host, true);
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      bus.start(rank, two_level_request(1, tensors[rank], ranks_per_host));
    }
    const auto dead = static_cast<std::uint16_t>(seed % ranks);
    failures += failures_after_a_death(bus, static_cast<int>(seed), dead, tensors, expected);
  }
  CHECK(failures > 100);
}
