// Collectives in one seed of four: verbs, types, groups, roots, algorithms, and members that die, leave, cancel or
// differ. Drawn from numbers of their own, so that seeds keep their transfers.
#pragma once

#include "base/prng.h"
#include "sim/scenario.h"

namespace mlt::sim {

void draw_collectives(Scenario& scenario);
// A call of a group, by its number, with all but its times and its fault, of up to so many bytes at a member.
CallPlan draw_call(base::Prng& prng, const GroupPlan& group, std::uint32_t number, double max_bytes);

}  // namespace mlt::sim
