// Long paths, windows that grow, and hosts whose sockets drop what comes while they pause, though the network loses
// nothing.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Gives some of the scenarios such paths and hosts, with a separate generator: all other draws are unchanged.
void draw_long_paths(Scenario& scenario);

}  // namespace mlt::sim
