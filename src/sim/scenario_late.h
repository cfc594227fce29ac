// Networks that lose nothing and are late: paths that differ by up to 200 ms, links paused for up to two seconds (PFC),
// links at a thousandth of their rate, transfers whose segments overtake each other by their classes.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Makes most of the scenarios without faults late, by a generator of its own: what was drawn before stays.
void draw_late(Scenario& scenario);

}  // namespace mlt::sim
