// The swarm's scenarios with endpoints that forget their tags as often as they may (PROTOCOL 5.2.6): no rule breaks.
#include <doctest/doctest.h>

#include <vector>

#include "sim/swarm.h"

using namespace mlt;

TEST_CASE("retire__breaks_no_rule_of_the_oracle") {
  std::uint64_t completions = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    sim::Scenario scenario = sim::draw_scenario(seed);
    scenario.simulator.host.endpoint.retire_after = 1U + static_cast<std::uint32_t>(seed % 3);
    // That a send may fail by it, only the watches know, which do without endpoints that forget.
    std::erase_if(scenario.accidents,
                  [](const auto& accident) { return accident.kind == sim::Accident::Kind::kPathLimit; });
    const sim::Verdict verdict = sim::run_scenario(scenario);
    CHECK(verdict.fault == "");
    completions += verdict.completions;
  }
  CHECK(completions > 3'000);
}
