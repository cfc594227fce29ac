// Sequence numbers pass 2^32 - 1 in the middle of a run, on every path, and nothing changes (PROTOCOL 4.4.4).
#include <doctest/doctest.h>

#include <string>

#include "sim/swarm.h"

namespace {

using namespace mlt;

std::uint64_t endpoints_checked(std::uint64_t seed, std::uint32_t before_wrap) {
  sim::Scenario scenario = sim::draw_scenario(seed, sim::Draw::kSecond);
  scenario.simulator.host.endpoint.first_sequence = 0U - before_wrap;
  const sim::Verdict verdict = sim::run_scenario(scenario);
  CAPTURE(seed);
  CAPTURE(before_wrap);
  CHECK(verdict.fault == "");
  return verdict.completions;
}

}  // namespace

// Without faults nothing may be lost (the oracle's rule 8): the number 0, taken for "none", lost 1,432 bytes here.
TEST_CASE("sequence_wrap__loses_nothing_on_a_network_without_faults") {
  for (const std::uint32_t before : {1U, 2U, 16U, 48U, 100U, 300U}) CHECK(endpoints_checked(1466, before) > 0);
}

TEST_CASE("sequence_wrap__breaks_no_rule_of_the_oracle") {
  std::uint64_t completions = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    completions += endpoints_checked(seed, 1U + static_cast<std::uint32_t>(seed * 37 % 400));
  }
  CHECK(completions > 500);
}
