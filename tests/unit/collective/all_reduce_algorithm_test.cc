// Which algorithm carries an all-reduce: the choice by size, world and bound, and what a request may name.
#include "collective/all_reduce_algorithm.h"

#include <doctest/doctest.h>

#include "collective/collective.h"

using namespace mlt::collective;

namespace {

constexpr auto kAutomatic = AllReduceAlgorithm::kAutomatic;
constexpr auto kDirect = AllReduceAlgorithm::kDirect;
constexpr auto kCentral = AllReduceAlgorithm::kCentral;
constexpr auto kRing = AllReduceAlgorithm::kRing;
constexpr auto kHalving = AllReduceAlgorithm::kHalving;

constexpr std::uint64_t kTebibyte = std::uint64_t{1} << 40;

}  // namespace

TEST_CASE("chosen_algorithm__of_small_tensors_whose_bound_can_spare_nothing_is_direct_or_central") {
  CHECK(chosen_algorithm(2, 65'536, 0) == kDirect);
  CHECK(chosen_algorithm(2, 65'540, 0) == kRing);
  CHECK(chosen_algorithm(3, 32'768, 0) == kDirect);
  CHECK(chosen_algorithm(3, 32'772, 0) != kDirect);
  CHECK(chosen_algorithm(16, 4, 0) == kDirect);
  CHECK(chosen_algorithm(17, 4, 0) == kCentral);
  CHECK(chosen_algorithm(17, 4'096, 0) == kCentral);
  CHECK(chosen_algorithm(17, 4'100, 0) != kCentral);
  CHECK(chosen_algorithm(1'025, 64, 0) == kCentral);
  CHECK(chosen_algorithm(1'026, 64, 0) != kCentral);
  CHECK(chosen_algorithm(65'535, 0, 0.99) == kCentral);
  CHECK(chosen_algorithm(1, kTebibyte, 0) == kDirect);
  CHECK(chosen_algorithm(65'535, kTebibyte, 0) == kRing);
  CHECK(chosen_algorithm(2, 2'044, 0.5) == kDirect);
  CHECK(chosen_algorithm(2, 2'048, 0.5) == kRing);
  CHECK(chosen_algorithm(2, 65'536, 0.0156) == kDirect);
  CHECK(chosen_algorithm(2, 65'536, 0.015625) == kRing);
  CHECK(chosen_algorithm(17, 2'044, 0.5) == kCentral);
  CHECK(chosen_algorithm(17, 2'048, 0.5) == kRing);
}

TEST_CASE("chosen_algorithm__of_middle_tensors_is_halving") {
  CHECK(chosen_algorithm(3, 32'772, 0) == kRing);
  CHECK(chosen_algorithm(4, 21'848, 0) == kRing);
  CHECK(chosen_algorithm(5, 16'388, 0) == kHalving);
  CHECK(chosen_algorithm(5, 20'480, 0) == kHalving);
  CHECK(chosen_algorithm(5, 20'484, 0) == kRing);
  CHECK(chosen_algorithm(17, 4'100, 0) == kHalving);
  CHECK(chosen_algorithm(256, 1U << 20, 0) == kHalving);
  CHECK(chosen_algorithm(256, (1U << 20) + 4, 0) == kRing);
  CHECK(chosen_algorithm(16, 65'536, 0.0156) == kHalving);
  CHECK(chosen_algorithm(16, 65'536, 0.015625) == kRing);
}

TEST_CASE("algorithm_of__a_request_is_the_one_that_it_names_except_in_a_group_of_one") {
  for (const auto named : {kDirect, kCentral, kRing, kHalving}) {
    CHECK(algorithm_of(named, 4, 4, 0) == named);
    CHECK(algorithm_of(named, 4, 1 << 20, 0.1) == named);
    CHECK(algorithm_of(named, 1, 1 << 20, 0) == kDirect);
  }
  CHECK(algorithm_of(kAutomatic, 4, 4, 0) == kDirect);
}

TEST_CASE("check_algorithm__rejects_what_is_unknown_or_would_take_too_much_memory") {
  CHECK(check_algorithm(static_cast<AllReduceAlgorithm>(kAllReduceAlgorithmCount), 2, 4).find("unknown") !=
        std::string::npos);
  CHECK(check_algorithm(kAutomatic, 65'535, kTebibyte) == "");
  CHECK(check_algorithm(kRing, 65'535, kTebibyte) == "");
  CHECK(check_algorithm(kHalving, 65'535, kTebibyte) == "");
  CHECK(check_algorithm(kDirect, 1, kTebibyte) == "");
  for (const auto named : {kDirect, kCentral}) {
    CHECK(check_algorithm(named, 8, 32U << 20) == "");
    const std::string problem = check_algorithm(named, 8, (32U << 20) + 4);
    CHECK(problem.find(algorithm_name(named)) != std::string::npos);
    CHECK(problem.find("holds 8 tensors of 33554436 bytes") != std::string::npos);
  }
}

TEST_CASE("encode__an_all_reduce_s_shape_carries_the_algorithm_and_describe_shape_names_it") {
  Shape shape;
  shape.sequence = 3;
  shape.bytes = 400;
  shape.algorithm = kHalving;
  const auto bytes = encode(shape);
  CHECK(bytes[25] == std::byte{4});
  for (std::size_t i = 26; i < kShapeBytes; ++i) CHECK(bytes[i] == std::byte{0});
  CHECK(describe_shape(bytes) == "all-reduce number 3 of 400 bytes of float32, loss bound 0, sum, algorithm halving");
  shape.kind = CollectiveKind::kBarrier;
  shape.algorithm = kAutomatic;
  CHECK(describe_shape(encode(shape)).find("algorithm") == std::string::npos);
}
