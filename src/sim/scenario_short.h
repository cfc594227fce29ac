// MTU black holes: links that silently drop long datagrams for a while.
#pragma once

#include "sim/scenario.h"

namespace mlt::sim {

// Gives some of the scenarios with faults such links, with a separate generator: all other draws are unchanged.
void draw_short_links(Scenario& scenario);

}  // namespace mlt::sim
