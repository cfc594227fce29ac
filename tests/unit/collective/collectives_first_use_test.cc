// Collectives of ranks that connect on first use: each call connects its partners only, and every member still learns
// of every failure.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "unit/collective/fake_bus.h"

using namespace mlt;
using namespace mlt::test;

namespace {

constexpr std::uint16_t kUsers = 7;
constexpr CollectiveAlgorithm kUsedAlgorithms[] = {CollectiveAlgorithm::kRing, CollectiveAlgorithm::kHalving,
                                                   CollectiveAlgorithm::kCentral};

FakeBus::Options on_use(std::uint64_t seed) { return {.ranks = kUsers, .seed = seed, .connects_on_use = true}; }

CollectiveRequest request_of(OperationId operation, std::vector<float>& data, CollectiveAlgorithm algorithm) {
  CollectiveRequest request = all_reduce_request(operation, data);
  request.algorithm = algorithm;
  return request;
}

std::size_t connections(const FakeBus& bus) {
  std::size_t count = 0;
  for (std::uint16_t a = 0; a < kUsers; ++a) {
    for (std::uint16_t b = 0; b < a; ++b) count += bus.are_connected(a, b);
  }
  return count;
}

}  // namespace

TEST_CASE("partners__are_the_ranks_of_the_streams") {
  std::vector<float> data(100);
  CollectiveRequest request = request_of(1, data, CollectiveAlgorithm::kRing);
  for (std::uint16_t rank = 0; rank < kUsers; ++rank) request.ranks.push_back(rank);
  CHECK(partners(request, 3) == std::vector<std::uint16_t>{2, 4});
  // The first rank, and the neighbours, with which each exchanges shapes.
  request.algorithm = CollectiveAlgorithm::kCentral;
  CHECK(partners(request, 3) == std::vector<std::uint16_t>{0, 2, 4});
  CHECK(partners(request, 0).size() == kUsers - 1);
  for (const CollectiveAlgorithm algorithm : kUsedAlgorithms) {
    request.algorithm = algorithm;
    for (std::uint16_t rank = 0; rank < kUsers; ++rank) {
      for (const std::uint16_t peer : partners(request, rank)) {
        CHECK(std::ranges::binary_search(partners(request, peer), rank));
      }
    }
  }
}

TEST_CASE("first_use__connects_what_the_algorithm_needs") {
  for (const auto& [algorithm, most] : {std::pair{CollectiveAlgorithm::kRing, kUsers + 0U},
                                        std::pair{CollectiveAlgorithm::kCentral, 2 * kUsers - 3U}}) {
    FakeBus bus(on_use(1));
    auto tensors = random_tensors(kUsers, 100, 3);
    for (std::uint16_t rank = 0; rank < kUsers; ++rank) bus.start(rank, request_of(1, tensors[rank], algorithm));
    bus.run();
    for (std::uint16_t rank = 0; rank < kUsers; ++rank) {
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].error == "");
    }
    CHECK(connections(bus) == most);
  }
}

// A rank dies before, while or after the others call; those that have not ended then call a second time.
TEST_CASE("first_use__a_death_is_named_at_every_member_whoever_calls_when") {
  for (const CollectiveAlgorithm algorithm : kUsedAlgorithms) {
    CAPTURE(static_cast<int>(algorithm));
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
      CAPTURE(seed);
      FakeBus bus(on_use(seed));
      base::Prng prng(seed);
      auto tensors = random_tensors(kUsers, 40, seed);
      const auto dead = static_cast<std::uint16_t>(prng.below(kUsers));
      std::vector<std::uint16_t> order;
      for (std::uint16_t rank = 0; rank < kUsers; ++rank) order.push_back(rank);
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.below(i)]);
      bool is_dead = false;
      std::vector<OperationId> calls(kUsers, 0);
      const auto call = [&](std::uint16_t rank) {
        if (!is_dead || rank != dead) bus.start(rank, request_of(++calls[rank], tensors[rank], algorithm));
      };
      for (const std::uint16_t rank : order) {
        if (!is_dead && prng.chance(0.2)) {
          bus.kill(dead);
          is_dead = true;
        }
        call(rank);
        bus.run_steps(static_cast<int>(prng.below(20)));
      }
      if (!is_dead) bus.kill(dead);
      is_dead = true;
      bus.run();
      for (const std::uint16_t rank : order) call(rank);
      bus.run();
      for (const std::uint16_t rank : order) {
        if (rank == dead) continue;
        CAPTURE(rank);
        REQUIRE(bus.done(rank).size() == 2);
        CHECK(bus.done(rank)[1].status == core::CompletionStatus::kPeerFailed);
        CHECK(bus.done(rank)[1].failed_peer == dead);
        CHECK(bus.posted(rank) == 0);
      }
    }
  }
}

TEST_CASE("first_use__a_group_resumes_after_a_cancelled_call_and_then_all_are_connected") {
  for (const CollectiveAlgorithm algorithm : kUsedAlgorithms) {
    CAPTURE(static_cast<int>(algorithm));
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      CAPTURE(seed);
      FakeBus bus(on_use(seed));
      base::Prng prng(seed);
      auto tensors = random_tensors(kUsers, 40, seed);
      const auto canceller = static_cast<std::uint16_t>(prng.below(kUsers));
      const auto late = static_cast<std::uint16_t>((canceller + 1 + prng.below(kUsers - 1)) % kUsers);
      for (std::uint16_t rank = 0; rank < kUsers; ++rank) {
        if (rank != late) bus.start(rank, request_of(1, tensors[rank], algorithm));
      }
      bus.run_steps(static_cast<int>(prng.below(10)));
      bus.machine(canceller).cancel(bus.now, 1, "enough");
      bus.run();
      bus.start(late, request_of(1, tensors[late], algorithm));
      bus.run();
      CHECK(connections(bus) == kUsers * (kUsers - 1) / 2);
      auto fresh = random_tensors(kUsers, 40, seed + 1);
      const auto expected = direct_sum(fresh, true);
      for (std::uint16_t rank = 0; rank < kUsers; ++rank) bus.start(rank, request_of(2, fresh[rank], algorithm));
      bus.run();
      for (std::uint16_t rank = 0; rank < kUsers; ++rank) {
        CAPTURE(rank);
        REQUIRE(bus.done(rank).size() == 2);
        CHECK(bus.done(rank)[0].status == core::CompletionStatus::kCancelled);
        CHECK(bus.done(rank)[0].failed_peer == canceller);
        CHECK(bus.done(rank)[1].error == "");
      }
    }
  }
}

// The group never resumes: no rank connects for it.
TEST_CASE("first_use__the_end_of_a_group_is_told_to_members_when_they_connect") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FakeBus bus(on_use(seed));
    auto tensors = random_tensors(kUsers, 40, seed);
    CollectiveRequest end;
    end.operation = 1;
    end.kind = CollectiveKind::kBarrier;
    end.ends_group = true;
    end.fault = "rank 2 ended the group";
    bus.start(2, end);
    bus.run();
    for (std::uint16_t rank = 0; rank < kUsers; ++rank) {
      if (rank != 2) bus.start(rank, request_of(1, tensors[rank], CollectiveAlgorithm::kRing));
    }
    bus.run();
    for (std::uint16_t rank = 0; rank < kUsers; ++rank) {
      CAPTURE(rank);
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].status == core::CompletionStatus::kCancelled);
      CHECK(bus.done(rank)[0].error.find("rank 2 ended the group") != std::string::npos);
    }
  }
}
