// Endpoints that forget unused tags as often as permitted.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Applies to one seed of eight, with a separate generator: all other draws are unchanged.
void draw_retirement(Scenario& scenario);

}  // namespace mlt::sim
