// Converts a schedule's routes from node numbers to the edges of its graph.
//
// Absent on purpose: forwarding along them (sim/route_table.h), route planning (the planners).
#pragma once

#include <vector>

#include "sim/topology.h"
#include "sim/transfers.h"

namespace mlt::sim {

// For both directions of every pair: the stated routes, or the other direction's in reverse. `topology` is the
// schedule's, made of cables only. Throws std::invalid_argument, which names the invalid route.
std::vector<PlannedRoutes> planned_routes(const TransferSchedule& schedule, const Topology& topology);

}  // namespace mlt::sim
