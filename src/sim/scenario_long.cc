#include "sim/scenario_long.h"

#include <algorithm>
#include <cmath>

#include "base/prng.h"
#include "sim/log_uniform.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMillisecond;

constexpr DurationNs kLongTimeoutNs = 60 * base::kSecond;

}  // namespace

void draw_long_paths(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0x10D6ULL).next());
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  SimulatorConfig& simulator = scenario.simulator;
  // Half of the seeds keep the window that was offered: the oracle then knows it exactly.
  constexpr std::uint64_t kLimits[] = {0, 0, 1ULL << 18, 512ULL << 20};
  endpoint.max_window_bytes = kLimits[prng.below(4)];
  if (prng.chance(0.1)) endpoint.early_segments = static_cast<std::uint32_t>(log_uniform(prng, 256, 8'192));
  if (prng.chance(0.25)) {
    // Two to four links in each direction: a round trip of 0.8 to 200 ms.
    const auto more = static_cast<DurationNs>(log_uniform(prng, 2e5, 2.5e7));
    scenario.fabric.host_link.propagation_ns += more;
    const bool core_too = prng.chance(0.5) && scenario.spine_delay.empty();  // those are multiples of the core's
    scenario.fabric.core_link.propagation_ns += core_too ? more : 0;
    simulator.control_delay_ns += 2 * more;
    // A large tensor through a port of a few packets takes many rounds, each of some round trips.
    endpoint.operation_timeout_ns = kLongTimeoutNs;
  }
  const std::uint64_t packet = simulator.segment_bytes + MLT_DATA_HEADER_BYTES + kOverheadBytes;
  if (scenario.faultless && prng.chance(0.5)) {
    simulator.host.socket_buffer_bytes = static_cast<std::uint64_t>(log_uniform(prng, 8, 512)) * packet;
    if (prng.chance(0.5)) {
      Accident pause;
      pause.a = static_cast<std::uint32_t>(prng.below(scenario.hosts));
      pause.start_ns = static_cast<DurationNs>(prng.below(20 * kMillisecond));
      pause.length_ns = static_cast<DurationNs>(log_uniform(prng, 1e4, 1e8));
      scenario.accidents.push_back(pause);
      scenario.quiet_ns = std::max(scenario.quiet_ns, pause.start_ns + pause.length_ns);
    }
  }
}

}  // namespace mlt::sim
