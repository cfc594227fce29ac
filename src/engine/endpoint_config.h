// Sizes and settings of the core's endpoint, from the options and the opened datapath.
#pragma once

#include <cstdint>

#include "core/config.h"
#include "engine/datapath_opening.h"
#include "mlt.h"

namespace mlt::engine {

// Extra operations in the endpoint beyond the application's, for sends and receives each: those of collectives and
// services in progress, and failed sends with ABORT unacknowledged.
inline constexpr std::uint32_t kSpareOperations = 16'384;

// The configured map of classes to code points, or the default if empty; not validated.
core::DscpMap dscp_map(const Options& options);

// Throws mlt::Error if the configured segment bytes do not fit the interface. The other options must be valid.
core::EndpointConfig endpoint_config(const Options& options, const OpenedDatapath& datapath);

}  // namespace mlt::engine
