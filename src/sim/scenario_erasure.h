// Parity packets (clauses 6.12 and 7.8).
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Lets one seed of three send parity, with a separate generator: all other draws are unchanged.
void draw_erasure_correction(Scenario& scenario);

}  // namespace mlt::sim
