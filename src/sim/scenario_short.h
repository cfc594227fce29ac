// Black holes: links that lose every datagram longer than they carry, for a while, and tell nobody.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Gives some of the scenarios with faults such links, by a generator of its own: what was drawn before stays.
void draw_short_links(Scenario& scenario);

}  // namespace mlt::sim
