// Endpoints that forget tags that are not in use as often as they may.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// In one seed of eight, by a generator of its own: what was drawn before stays in the others.
void draw_retirement(Scenario& scenario);

}  // namespace mlt::sim
