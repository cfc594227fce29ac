// Makes windows and ports large enough to carry a scenario's transfers in time (sim/scenario.h).
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

void widen_window(Scenario& scenario);
void widen_ports(Scenario& scenario);

}  // namespace mlt::sim
