// Sends whose segments become ready one after another, as those of a ring do that passes on what it receives.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Some of the sends in one seed of four, by a generator of its own: what was drawn before stays in the others.
void draw_fed(Scenario& scenario);

}  // namespace mlt::sim
