// The ways that a schedule states, from node numbers to the edges of its graph.
//
// Absent on purpose: how packets follow them (sim/way_table.h), how they were found (the planners).
#pragma once

#include <vector>

#include "sim/topology.h"
#include "sim/transfers.h"

namespace mlt::sim {

// For both directions of every pair: what is stated, or the other direction's ways in reverse. `topology` is the
// schedule's, made of cables only. Throws std::invalid_argument, which names the way that does not fit.
std::vector<PlannedWays> planned_ways(const TransferSchedule& schedule, const Topology& topology);

}  // namespace mlt::sim
