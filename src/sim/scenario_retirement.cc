#include "sim/scenario_retirement.h"

#include <vector>

#include "base/prng.h"

namespace mlt::sim {

void draw_retirement(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0x7A65ULL).next());
  if (!prng.chance(0.125)) return;
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  endpoint.retire_after = 1 + static_cast<std::uint32_t>(prng.below(3));
  if (prng.chance(0.5)) endpoint.unknown_tags = 1 + static_cast<std::uint32_t>(prng.below(8));
  // Few tags, reused repeatedly.
  const std::uint64_t tags = 2 + prng.below(12);
  for (Exchange& exchange : scenario.exchanges) exchange.send.tag = exchange.receive.tag = exchange.send.tag % tags;
  // Only the watches know that a send may fail because of it, and they are off for endpoints that forget tags.
  std::erase_if(scenario.accidents,
                [](const Accident& accident) { return accident.kind == Accident::Kind::kPathLimit; });
}

}  // namespace mlt::sim
