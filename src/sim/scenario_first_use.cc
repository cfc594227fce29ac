#include "sim/scenario_first_use.h"

#include <algorithm>

#include "base/prng.h"
#include "sim/log_uniform.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;

// A host that comes late posts nothing before.
void draw_late_host(base::Prng& prng, Scenario& scenario, std::uint16_t rank) {
  const auto late_ns = static_cast<DurationNs>(log_uniform(prng, 1e5, 5e8));
  scenario.absences.push_back({rank, late_ns});
  for (Exchange& exchange : scenario.exchanges) {
    const bool is_late_send = exchange.send.host == rank, is_late_receive = exchange.receive.host == rank;
    if (is_late_send) exchange.send_at_ns += late_ns;
    if (is_late_receive) exchange.receive_at_ns += late_ns;
    if (exchange.cancel_at_ns > 0 && (is_late_send || is_late_receive)) exchange.cancel_at_ns += late_ns;
  }
  scenario.quiet_ns = std::max(scenario.quiet_ns, late_ns + 50 * kMillisecond);
}

// While the connection of some exchange is being set up, or comes up at one side.
void draw_crash_while_connecting(base::Prng& prng, Scenario& scenario) {
  const Exchange& exchange = scenario.exchanges[prng.below(scenario.exchanges.size())];
  Accident crash;
  crash.kind = Accident::Kind::kCrash;
  crash.a = prng.chance(0.5) ? exchange.send.host : exchange.receive.host;
  const DurationNs longest = scenario.first_use.set_up_most_ns + scenario.first_use.spread_ns;
  crash.start_ns = std::min(exchange.send_at_ns, exchange.receive_at_ns) +
                   static_cast<DurationNs>(prng.below(static_cast<std::uint64_t>(longest)));
  crash.length_ns = static_cast<DurationNs>(log_uniform(prng, 1e4, 3e8));
  scenario.accidents.push_back(crash);
  scenario.quiet_ns = std::max(scenario.quiet_ns, crash.start_ns + crash.length_ns);
}

}  // namespace

void draw_first_use(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0xF1257ULL).next());
  if (!prng.chance(0.25)) return;
  FirstUsePlan& plan = scenario.first_use;
  plan.is_on = true;
  plan.set_up_most_ns = static_cast<DurationNs>(log_uniform(prng, 1e5, 5e7));
  // What one side sends before the other is up is dropped: a fault.
  if (!scenario.faultless) plan.spread_ns = static_cast<DurationNs>(log_uniform(prng, 1e4, 2e7));
  plan.give_up_ns = static_cast<DurationNs>(log_uniform(prng, 1e8, 1e9));
  if (!scenario.faultless) {
    for (std::uint16_t rank = 0; rank < scenario.hosts; ++rank) {
      const double share = prng.uniform() * scenario.hosts;
      if (share < 0.3) {
        draw_late_host(prng, scenario, rank);
      } else if (share < 0.4) {
        scenario.absences.push_back({rank, 0});
      }
    }
    for (std::uint64_t more = prng.below(3); more > 0; --more) draw_crash_while_connecting(prng, scenario);
  }
  // Posts wait so long, and then their operations begin.
  scenario.quiet_ns += plan.give_up_ns + plan.set_up_most_ns + plan.spread_ns;
}

}  // namespace mlt::sim
