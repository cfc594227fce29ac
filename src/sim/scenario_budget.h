// Receives that share a loss budget, like those of an all-reduce.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Lets some of the receives of some hosts share a budget in one seed of three, with a separate generator: all other
// draws are unchanged.
void draw_shared_budgets(Scenario& scenario);

}  // namespace mlt::sim
