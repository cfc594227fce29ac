#include "sim/scenario_erasure.h"

#include "base/prng.h"

namespace mlt::sim {

void draw_erasure_correction(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0xEC0DEULL).next());
  if (!prng.chance(0.33)) return;
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  endpoint.erasure_correction = true;
  endpoint.paths = 1;
  // Round trips are short in most seeds, and repair rounds cheap: packets of parity are worth them where links are
  // fast.
  constexpr base::DurationNs kMinRoundTrips[] = {0, 0, 0, 500 * base::kMicrosecond};
  endpoint.min_parity_round_trip_ns = kMinRoundTrips[prng.below(4)];
  constexpr std::uint32_t kPackets[] = {1, 4, 64, 1'024};
  endpoint.parity_packets = kPackets[prng.below(4)];
  if (!scenario.faultless && prng.chance(0.7)) {
    scenario.fabric.host_link.data.drop = 0.002 + 0.03 * prng.uniform();
    scenario.fabric.core_link.data.drop = 0;
  }
  for (Exchange& exchange : scenario.exchanges) {
    exchange.receive.places_in_data = prng.chance(0.5);
    if (prng.chance(0.5)) exchange.receive.loss_bound = 0;
  }
}

}  // namespace mlt::sim
