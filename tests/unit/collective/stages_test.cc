// The plans of an all-reduce in stages: who exchanges what with whom, in which order, and what crosses between hosts.
#include "collective/stages.h"

#include <doctest/doctest.h>

#include <vector>

using namespace mlt::collective;

namespace {

constexpr std::uint32_t kElementBytes = 4;

std::size_t bytes_of(const Stage::Bytes& part) { return part ? part->size() : 0; }

}  // namespace

// Both ends of each transfer have it at the same place in their order, with the same part of the tensor.
TEST_CASE("two_level_stages__what_a_member_sends_is_what_the_other_receives_in_the_same_order") {
  struct Case {
    std::uint32_t ranks, ranks_per_host;
    std::size_t bytes;
  };
  for (const auto [ranks, ranks_per_host, bytes] :
       {Case{4, 2, 4}, Case{6, 3, 4'004}, Case{6, 2, 5'000'000}, Case{12, 3, 1 << 20}, Case{16, 4, 2 << 20}}) {
    CAPTURE(ranks);
    CAPTURE(ranks_per_host);
    std::vector<std::vector<std::byte>> tensors(ranks, std::vector<std::byte>(bytes));
    std::vector<StagePlan> plans;
    for (std::uint32_t own = 0; own < ranks; ++own) {
      plans.push_back(two_level_stages(ranks, own, ranks_per_host, tensors[own], kElementBytes));
    }
    for (std::uint32_t own = 0; own < ranks; ++own) {
      for (std::size_t i = 0; i < plans[own].stages.size(); ++i) {
        const Stage& sends = plans[own].stages[i];
        REQUIRE(plans[sends.to].stages.size() == plans[own].stages.size());
        const Stage& receives = plans[sends.to].stages[i];
        CHECK(receives.from == own);
        CHECK(bytes_of(receives.received) == bytes_of(sends.sent));
        CHECK(receives.received->data() - tensors[sends.to].data() == sends.sent->data() - tensors[own].data());
      }
    }
  }
}

// A ring sends 2 (n - 1) / n tensors from each host.
TEST_CASE("two_level_stages__a_host_sends_others_twice_all_but_its_share_of_one_tensor") {
  constexpr std::size_t kBytes = 12U << 20;
  std::vector<std::byte> tensor(kBytes);
  for (const std::uint32_t hosts : {2U, 3U, 4U, 6U, 8U}) {
    for (const std::uint32_t ranks_per_host : {2U, 4U}) {
      CAPTURE(hosts);
      CAPTURE(ranks_per_host);
      std::size_t sent = 0;
      for (std::uint32_t own = 0; own < ranks_per_host; ++own) {
        for (const Stage& stage :
             two_level_stages(hosts * ranks_per_host, own, ranks_per_host, tensor, kElementBytes).stages) {
          if (stage.to / ranks_per_host != 0) sent += bytes_of(stage.sent);
        }
      }
      CHECK(sent == doctest::Approx(2.0 * (hosts - 1) / hosts * kBytes).epsilon(1e-4));
    }
  }
}

// A slice is between hosts while the one after it is within them.
TEST_CASE("two_level_stages__slices_overlap_and_depend_only_on_themselves") {
  std::vector<std::byte> tensor(4U << 20);
  const StagePlan plan = two_level_stages(4, 0, 2, tensor, kElementBytes);
  CHECK(plan.slices == 8);
  CHECK(plan.slices_at_once == 4);
  std::vector<std::uint32_t> seen(plan.slices);
  for (const Stage& stage : plan.stages) {
    CHECK(stage.needs == seen[stage.slice]);
    ++seen[stage.slice];
  }
  for (const std::uint32_t count : seen) CHECK(count == 4);
  CHECK(plan.stages[1].slice == 0);
  CHECK(plan.stages[2].slice == 1);
  CHECK(two_level_stages(4, 0, 2, std::span(tensor).first(512U << 10), kElementBytes).slices == 1);
  tensor.resize(100U << 20);
  CHECK(two_level_stages(4, 0, 2, tensor, kElementBytes).slices == 25);
}
