// Sends whose segments become ready one after another, like those of a ring that forwards what it receives.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Changes some of the sends in one seed of four, with a separate generator: all other draws are unchanged.
void draw_fed(Scenario& scenario);

}  // namespace mlt::sim
