#include "sim/scenario_fed.h"

#include <cmath>

#include "base/prng.h"

namespace mlt::sim {

namespace {

constexpr std::uint64_t kMaxParts = 16;

}  // namespace

void draw_fed(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0xFEDULL).next());
  if (!prng.chance(0.25)) return;
  const double part = 0.2 + 0.8 * prng.uniform();
  for (Exchange& exchange : scenario.exchanges) {
    if (!prng.chance(part)) continue;
    exchange.send.fed_parts = 1 + static_cast<std::uint32_t>(prng.below(kMaxParts));
    exchange.send.fed_run = 1 + static_cast<std::uint32_t>(prng.below(prng.chance(0.5) ? 2 : 64));
    // From faster than any link to slower than a retransmission timeout: 100 ns to 5 ms.
    exchange.feed_every_ns = static_cast<base::DurationNs>(100 * std::exp(prng.uniform() * std::log(5e4)));
  }
}

}  // namespace mlt::sim
