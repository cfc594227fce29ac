// Connections on first use (sim/first_use.h) in a share of the scenarios, with hosts that never come, come late, or
// crash while they connect.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

void draw_first_use(Scenario& scenario);

}  // namespace mlt::sim
