// Runs a scenario's collectives: production endpoints and the state machines that the engine runs, over the scenario's
// network, with its accidents and deaths, and checks every end. Rule 17 of docs/simulator.md:
//
// Every call ends once at each member that lives: with the result that the inputs give, or, where a member of the group
// died, left, cancelled, differed or had a fault of its own before, with an error that names that member. Its memory is
// then the caller's. Afterwards the survivors of all groups work as a new group, and every group whose members all live
// works again.
//
// Absent on purpose: what is drawn (sim/scenario_collectives.h), and transfers (sim/swarm.h). One thread.
#pragma once

#include <functional>

#include "sim/swarm.h"

namespace mlt::sim {

Verdict run_collectives(const Scenario& scenario, const std::function<void(const TraceRecord&)>& trace);

}  // namespace mlt::sim
