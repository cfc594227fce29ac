// All-gather and reduce-scatter by two levels (collective/stages.h): the memory that their stages need.
//
// An all-gather works in the caller's output. A reduce-scatter holds a part of the input for each host, and the terms
// that it receives; the output changes at the end only. Both lose nothing, whatever the bound.
#pragma once

#include <memory>

#include "collective/collective.h"

namespace mlt::collective {

std::unique_ptr<Collective> make_two_level_all_gather(const CollectiveRequest& request, const Membership& group);
std::unique_ptr<Collective> make_two_level_reduce_scatter(const CollectiveRequest& request, const Membership& group);

}  // namespace mlt::collective
