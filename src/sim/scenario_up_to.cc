#include "sim/scenario_up_to.h"

#include "base/prng.h"

namespace mlt::sim {

void draw_up_to(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0x0BEDULL).next());
  if (!prng.chance(0.5)) return;
  for (Exchange& exchange : scenario.exchanges) {
    Plan& receive = exchange.receive;
    if (!prng.chance(0.4)) continue;
    receive.up_to = true;
    const std::uint32_t element = wire::element_bytes(receive.element);
    const std::uint64_t elements = receive.bytes / element;
    // Most are longer than what is sent, by little or by several segments; a few are too short.
    const std::uint64_t more = prng.chance(0.3) ? prng.below(4) : prng.below(elements + 64);
    receive.bytes = static_cast<std::uint32_t>(element * (elements + more));
    if (prng.chance(0.05)) receive.bytes = static_cast<std::uint32_t>(element * prng.below(elements + 1));
  }
}

}  // namespace mlt::sim
