// Ranges of the engine's options that do not depend on the host.
#pragma once

#include <cstdint>

#include "mlt.h"

namespace mlt::engine {

// Max of Options::max_operations. With the spare ones (kSpareOperations), it must stay below the receives that a gap of
// generations allows (kGenerationGap).
inline constexpr std::uint32_t kMaxOperationsLimit = 131'072;

// Throws mlt::Error, which names the option, its value and its range.
void check_options(const Options& options);

}  // namespace mlt::engine
