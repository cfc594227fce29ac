#include "sim/scenario_budget.h"

#include "base/prng.h"

namespace mlt::sim {

void draw_shared_budgets(Scenario& scenario) {
  base::Prng prng(base::Prng(scenario.seed ^ 0xB0D6E7ULL).next());
  if (!prng.chance(0.33)) return;
  // 0: exact but for a whole segment. Half is what collectives allow a single receive.
  const double own = prng.chance(0.5) ? 0.5 : prng.chance(0.5) ? 0.0 : prng.uniform();
  for (std::uint16_t host = 0; host < scenario.hosts; ++host) {
    if (prng.chance(0.3)) continue;
    BudgetPlan budget;
    budget.bound = prng.chance(0.1) ? 0.999 * prng.uniform() : 0.2 * prng.uniform();
    const auto number = static_cast<std::uint32_t>(scenario.budgets.size() + 1);
    for (Exchange& exchange : scenario.exchanges) {
      Plan& receive = exchange.receive;
      if (receive.host != host || receive.element != wire::ElementType::kFloat32 || prng.chance(0.2)) continue;
      receive.shared_budget = number;
      receive.loss_bound = own;
      budget.elements += receive.bytes / wire::element_bytes(receive.element);
    }
    if (budget.elements > 0) {
      scenario.budgets.push_back(budget);
    } else {
      for (Exchange& exchange : scenario.exchanges) {
        if (exchange.receive.shared_budget == number) exchange.receive.shared_budget = 0;
      }
    }
  }
}

}  // namespace mlt::sim
