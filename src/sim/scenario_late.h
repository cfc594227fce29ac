// Late networks without loss: paths that differ by up to 200 ms, links paused for up to two seconds (PFC), links at a
// thousandth of their rate, transfers whose segments overtake each other by their classes.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Makes most of the scenarios without faults late, with a separate generator: all other draws are unchanged.
void draw_late(Scenario& scenario);

}  // namespace mlt::sim
