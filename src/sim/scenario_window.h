// Windows that carry in time what a scenario posts (sim/scenario.h).
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

void widen_window(Scenario& scenario);

}  // namespace mlt::sim
