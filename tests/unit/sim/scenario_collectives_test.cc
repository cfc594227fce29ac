// What the swarm draws of collectives: every verb, type, reduction, algorithm and failure within a few thousand seeds.
#include "sim/scenario_collectives.h"

#include <doctest/doctest.h>

#include <map>

using namespace mlt;
using namespace mlt::sim;
using collective::CollectiveKind;

TEST_CASE("draw_collectives__covers_every_verb_type_reduction_algorithm_and_failure") {
  std::map<CollectiveKind, std::size_t> kinds, lossy, roots;
  std::map<wire::ElementType, std::size_t> elements;
  std::map<std::pair<CollectiveKind, collective::Reduction>, std::size_t> reductions;
  std::map<std::pair<CollectiveKind, collective::CollectiveAlgorithm>, std::size_t> algorithms;
  std::map<CallPlan::Fault, std::size_t> faults;
  std::map<Accident::Kind, std::size_t> deaths;
  std::map<std::size_t, std::size_t> sizes;
  std::size_t seeds = 0, checksums = 0, lossy_results = 0, second_streams = 0;
  constexpr std::uint64_t kSeeds = 6'000;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Scenario scenario = draw_scenario(seed);
    const CollectivesPlan& plan = scenario.collectives;
    if (plan.calls.empty()) continue;
    CAPTURE(seed);
    ++seeds;
    checksums += plan.checksums ? 1U : 0U;
    for (const GroupPlan& group : plan.groups) {
      ++sizes[group.ranks.size()];
      second_streams += group.stream;
    }
    for (const Accident& death : plan.deaths) ++deaths[death.kind];
    for (const CallPlan& call : plan.calls) {
      ++kinds[call.kind];
      ++elements[call.element];
      ++faults[call.fault];
      if (call.loss_bound > 0) ++lossy[call.kind];
      if (call.root > 0 && has_root(call.kind)) ++roots[call.kind];
      if (has_reduction(call.kind)) ++reductions[{call.kind, call.reduction}];
      if (has_algorithm(call.kind)) ++algorithms[{call.kind, call.algorithm}];
      lossy_results += call.lossy_results ? 1U : 0U;
      const GroupPlan& group = plan.groups[call.group];
      CollectiveCall made(call, group);
      for (std::size_t member = 0; member < group.ranks.size(); ++member) {
        CHECK(check_request(made.request(member, 1), group.ranks[member]) == "");
      }
    }
  }
  CHECK(seeds > kSeeds / 6);
  CHECK(seeds < kSeeds / 3);
  CHECK(kinds.size() == 9);
  CHECK(elements.size() == wire::kElementTypeCount);
  CHECK(reductions.size() == std::size_t{3} * collective::kReductionCount);
  // All-reduce by all but a chain, reduce and broadcast by four, all-gather and reduce-scatter by three.
  CHECK(algorithms.size() == 6 + 2 * 4 + 2 * 3);
  CHECK(faults.size() == 4);
  CHECK(deaths.size() == 2);
  CHECK(lossy.size() == 4);
  CHECK(roots.size() == 4);
  CHECK(sizes.size() == 7);  // 2 to 8 ranks
  CHECK(checksums > 0);
  CHECK(lossy_results > 0);
  CHECK(second_streams > 0);
}

TEST_CASE("draw_collectives__leaves_the_transfers_of_a_seed_as_they_were") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Scenario before = draw_scenario(seed, Draw::kTenth);
    Scenario now = draw_scenario(seed);
    CHECK(before.collectives.calls.empty());
    now.collectives = {};
    CHECK(now.text() == before.text());
    CHECK(now.limit_ns == before.limit_ns);
  }
}
