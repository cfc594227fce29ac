// Which algorithm carries an all-reduce: the choice by size, world and bound, and what a request may name.
#include "collective/algorithm.h"

#include <doctest/doctest.h>

#include "collective/collective.h"

using namespace mlt::collective;

namespace {

constexpr auto kAutomatic = CollectiveAlgorithm::kAutomatic;
constexpr auto kDirect = CollectiveAlgorithm::kDirect;
constexpr auto kCentral = CollectiveAlgorithm::kCentral;
constexpr auto kRing = CollectiveAlgorithm::kRing;
constexpr auto kHalving = CollectiveAlgorithm::kHalving;
constexpr auto kChain = CollectiveAlgorithm::kChain;
constexpr auto kTwoLevel = CollectiveAlgorithm::kTwoLevel;

constexpr std::uint64_t kTebibyte = std::uint64_t{1} << 40;

}  // namespace

TEST_CASE("chosen_algorithm__of_small_tensors_is_direct_or_central") {
  CHECK(chosen_algorithm({2}, 65'536) == kDirect);
  CHECK(chosen_algorithm({2}, 65'540) == kRing);
  CHECK(chosen_algorithm({3}, 32'768) == kDirect);
  CHECK(chosen_algorithm({3}, 32'772) != kDirect);
  CHECK(chosen_algorithm({16}, 4) == kDirect);
  CHECK(chosen_algorithm({17}, 4) == kCentral);
  CHECK(chosen_algorithm({17}, 4'096) == kCentral);
  CHECK(chosen_algorithm({17}, 4'100) != kCentral);
  CHECK(chosen_algorithm({1'025}, 64) == kCentral);
  CHECK(chosen_algorithm({1'026}, 64) != kCentral);
  CHECK(chosen_algorithm({65'535}, 0) == kCentral);
  CHECK(chosen_algorithm({1}, kTebibyte) == kDirect);
  CHECK(chosen_algorithm({65'535}, kTebibyte) == kRing);
}

TEST_CASE("chosen_algorithm__of_middle_tensors_is_halving") {
  CHECK(chosen_algorithm({3}, 32'772) == kRing);
  CHECK(chosen_algorithm({4}, 21'848) == kRing);
  CHECK(chosen_algorithm({5}, 16'388) == kHalving);
  CHECK(chosen_algorithm({5}, 20'480) == kHalving);
  CHECK(chosen_algorithm({5}, 20'484) == kRing);
  CHECK(chosen_algorithm({17}, 4'100) == kHalving);
  CHECK(chosen_algorithm({256}, 1U << 20) == kHalving);
  CHECK(chosen_algorithm({256}, (1U << 20) + 4) == kRing);
}

// What a ring would carry, and only with as many hosts as measurements show a gain for.
TEST_CASE("chosen_algorithm__of_large_tensors_between_two_or_three_hosts_is_two_level") {
  CHECK(chosen_algorithm({4, 2}, 1 << 20) == kTwoLevel);
  CHECK(chosen_algorithm({16, 8}, 1 << 20) == kTwoLevel);
  CHECK(chosen_algorithm({6, 2}, 1 << 20) == kTwoLevel);
  CHECK(chosen_algorithm({8, 2}, 1 << 20) == kRing);
  CHECK(chosen_algorithm({4, 1}, 1 << 20) == kRing);
  CHECK(chosen_algorithm({4, 4}, 1 << 20) == kRing);
  CHECK(chosen_algorithm({4, 0}, 1 << 20) == kRing);
  CHECK(chosen_algorithm({4, 2}, 4'096) == kDirect);
  CHECK(chosen_algorithm({16, 8}, 65'536) == kHalving);
}

TEST_CASE("depends_on_hosts__where_the_choice_would_change_with_them") {
  for (const std::uint64_t ranks : {4U, 6U, 16U}) {
    for (const std::uint64_t bytes : {4U, 4'096U, 65'536U, 65'540U, 1U << 20}) {
      const bool changes = chosen_algorithm({ranks, 2}, bytes) != chosen_algorithm({ranks, 0}, bytes);
      if (ranks / 2 <= kMaxTwoLevelHosts) CHECK(depends_on_hosts(kAutomatic, ranks, bytes) == changes);
      CHECK(depends_on_hosts(kTwoLevel, ranks, bytes));
      CHECK_FALSE(depends_on_hosts(kRing, ranks, bytes));
    }
  }
  CHECK_FALSE(depends_on_hosts(kAutomatic, 1, kTebibyte));
}

TEST_CASE("check_algorithm__two_levels_need_hosts_with_equally_many_adjacent_ranks") {
  CHECK(check_algorithm(kTwoLevel, {4, 2}, 4) == "");
  CHECK(check_algorithm(kTwoLevel, {6, 2}, kTebibyte) == "");
  CHECK(check_algorithm(kTwoLevel, {1, 1}, 4) == "");
  for (const std::uint64_t per_host : {0U, 1U, 4U}) {
    CHECK(check_algorithm(kTwoLevel, {4, per_host}, 4).find("two or more hosts") != std::string::npos);
  }
}

TEST_CASE("ranks_per_host__is_0_unless_every_host_has_as_many_members_in_one_run") {
  using Ranks = std::vector<std::uint16_t>;
  const Ranks hosts = {7, 7, 2, 2, 5, 5, 7};
  CHECK(ranks_per_host(Ranks{0, 1, 2, 3}, hosts) == 2);
  CHECK(ranks_per_host(Ranks{3, 2, 5, 4, 1, 0}, hosts) == 2);
  CHECK(ranks_per_host(Ranks{0, 2, 4}, hosts) == 1);
  CHECK(ranks_per_host(Ranks{0, 1, 6}, hosts) == 3);
  CHECK(ranks_per_host(Ranks{0, 2, 1, 3}, hosts) == 0);        // two runs of one host
  CHECK(ranks_per_host(Ranks{0, 1, 2}, hosts) == 0);           // another number
  CHECK(ranks_per_host(Ranks{0, 1, 2, 4}, hosts) == 0);        // another number in the sum of two runs
  CHECK(ranks_per_host(Ranks{0, 1, 2, 3, 6, 0}, hosts) == 0);  // a host again at the end
  CHECK(ranks_per_host(Ranks{0, 7}, hosts) == 0);              // not known
  CHECK(ranks_per_host(Ranks{0, 1}, Ranks{}) == 0);
  CHECK(ranks_per_host(Ranks{}, hosts) == 0);
}

TEST_CASE("algorithm_of__a_request_is_the_one_that_it_names_except_in_a_group_of_one") {
  for (const auto named : {kDirect, kCentral, kRing, kHalving}) {
    CHECK(algorithm_of(named, {4}, 4) == named);
    CHECK(algorithm_of(named, {4}, 1 << 20) == named);
    CHECK(algorithm_of(named, {1}, 1 << 20) == kDirect);
  }
  CHECK(algorithm_of(kAutomatic, {4}, 4) == kDirect);
}

TEST_CASE("check_algorithm__rejects_what_is_unknown_or_would_take_too_much_memory") {
  CHECK(check_algorithm(static_cast<CollectiveAlgorithm>(kCollectiveAlgorithmCount), {2}, 4).find("unknown") !=
        std::string::npos);
  CHECK(check_algorithm(kAutomatic, {65'535}, kTebibyte) == "");
  CHECK(check_algorithm(kRing, {65'535}, kTebibyte) == "");
  CHECK(check_algorithm(kHalving, {65'535}, kTebibyte) == "");
  CHECK(check_algorithm(kDirect, {1}, kTebibyte) == "");
  for (const auto named : {kDirect, kCentral}) {
    CHECK(check_algorithm(named, {8}, 32U << 20) == "");
    const std::string problem = check_algorithm(named, {8}, (32U << 20) + 4);
    CHECK(problem.find(algorithm_name(named)) != std::string::npos);
    CHECK(problem.find("holds 8 tensors of 33554436 bytes") != std::string::npos);
  }
}

TEST_CASE("rooted_algorithm_of__is_a_chain_for_long_tensors_by_hosts_if_it_may_unless_the_request_names_another") {
  for (const std::uint64_t ranks : {2U, 3U, 64U}) {
    CHECK(rooted_algorithm_of(kAutomatic, {ranks}, kChainBytes - 1) == kDirect);
    CHECK(rooted_algorithm_of(kAutomatic, {ranks}, kChainBytes) == kChain);
    CHECK(rooted_algorithm_of(kDirect, {ranks}, kTebibyte) == kDirect);
    CHECK(rooted_algorithm_of(kChain, {ranks}, 0) == kChain);
  }
  CHECK(rooted_algorithm_of(kAutomatic, {6, 2}, kChainBytes - 1) == kDirect);
  CHECK(rooted_algorithm_of(kAutomatic, {6, 2}, kChainBytes) == kTwoLevel);
  CHECK(rooted_algorithm_of(kChain, {6, 2}, kChainBytes) == kChain);
  CHECK(rooted_algorithm_of(kAutomatic, {6, 6}, kChainBytes) == kChain);
  CHECK(rooted_algorithm_of(kAutomatic, {1}, kTebibyte) == kDirect);
  CHECK(rooted_algorithm_of(kChain, {1}, kTebibyte) == kDirect);
  CHECK(rooted_depends_on_hosts(kAutomatic, kChainBytes));
  CHECK_FALSE(rooted_depends_on_hosts(kAutomatic, kChainBytes - 1));
  CHECK_FALSE(rooted_depends_on_hosts(kChain, kTebibyte));
  CHECK(rooted_depends_on_hosts(kTwoLevel, 0));
}

TEST_CASE("parted_algorithm_of__is_two_levels_for_long_parts_where_it_may_unless_the_request_names_another") {
  CHECK(parted_algorithm_of(kAutomatic, {6, 2}, kTwoLevelPartBytes - 1) == kDirect);
  CHECK(parted_algorithm_of(kAutomatic, {6, 2}, kTwoLevelPartBytes) == kTwoLevel);
  CHECK(parted_algorithm_of(kDirect, {6, 2}, kTebibyte) == kDirect);
  CHECK(parted_algorithm_of(kTwoLevel, {6, 2}, 0) == kTwoLevel);
  CHECK(parted_algorithm_of(kAutomatic, {6, 0}, kTebibyte) == kDirect);
  CHECK(parted_algorithm_of(kTwoLevel, {1}, kTebibyte) == kDirect);
  CHECK(parted_depends_on_hosts(kAutomatic, kTwoLevelPartBytes));
  CHECK_FALSE(parted_depends_on_hosts(kAutomatic, kTwoLevelPartBytes - 1));
  CHECK_FALSE(parted_depends_on_hosts(kDirect, kTebibyte));
  CHECK(parted_depends_on_hosts(kTwoLevel, 0));
}

TEST_CASE("check_other_algorithm__rejects_what_a_collective_does_not_have_and_check_algorithm_the_chain") {
  for (const auto one : {kAutomatic, kDirect, kChain}) CHECK(check_other_algorithm(one, {4}, true, "broadcast") == "");
  for (const auto one : {kCentral, kRing, kHalving}) {
    CHECK(check_other_algorithm(one, {4}, true, "broadcast") ==
          std::string("a broadcast has no ") + algorithm_name(one) + " algorithm: use direct or chain");
    CHECK(check_other_algorithm(one, {4}, false, "all-gather") ==
          std::string("an all-gather has no ") + algorithm_name(one) + " algorithm: use direct or two-level");
  }
  CHECK(check_other_algorithm(kChain, {4}, false, "reduce-scatter") != "");
  CHECK(check_other_algorithm(kTwoLevel, {4}, true, "broadcast").find("equally many ranks") != std::string::npos);
  CHECK(check_other_algorithm(kTwoLevel, {4, 2}, true, "broadcast") == "");
  CHECK(check_other_algorithm(kTwoLevel, {4, 2}, false, "all-gather") == "");
  CHECK(check_other_algorithm(kTwoLevel, {1}, false, "all-gather") == "");
  const auto unknown = static_cast<CollectiveAlgorithm>(kCollectiveAlgorithmCount);
  CHECK(check_other_algorithm(unknown, {4}, true, "broadcast").find("unknown") != std::string::npos);
  CHECK(check_algorithm(kChain, {4}, 4).find("no chain algorithm") != std::string::npos);
}

TEST_CASE("encode__an_all_reduce_s_shape_carries_the_algorithm_and_describe_shape_names_it") {
  Shape shape;
  shape.sequence = 3;
  shape.bytes = 400;
  shape.algorithm = kHalving;
  const auto bytes = encode(shape);
  CHECK(bytes[25] == std::byte{4});
  for (std::size_t i = 26; i < kShapeBytes; ++i) CHECK(bytes[i] == std::byte{0});
  CHECK(describe_shape(bytes) == "all-reduce number 4 of 400 bytes of float32, loss bound 0, sum, algorithm halving");
  shape.algorithm = kTwoLevel;
  shape.ranks_per_host = 300;
  CHECK(encode(shape)[26] == std::byte{300 % 256});
  CHECK(encode(shape)[27] == std::byte{1});
  CHECK(describe_shape(encode(shape)).find("sum, algorithm two-level of 300 ranks per host") != std::string::npos);
  shape.ranks_per_host = 0;
  shape.kind = CollectiveKind::kBarrier;
  shape.algorithm = kAutomatic;
  CHECK(describe_shape(encode(shape)).find("algorithm") == std::string::npos);
}
