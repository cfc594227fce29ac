// Receives that are posted for up to a size (clause 7.1.5).
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Posts some of the receives so in one seed of two, with a separate generator: all other draws are unchanged.
void draw_up_to(Scenario& scenario);

}  // namespace mlt::sim
