// Windows and ports that carry in time what a scenario posts (sim/scenario.h).
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

void widen_window(Scenario& scenario);
void widen_ports(Scenario& scenario);

}  // namespace mlt::sim
