// The exit status of the process for engines whose interpreter ends first: Python gives it to none of its own handlers.
#pragma once

#include <memory>

#include "mlt.h"

namespace mlt::bindings {

// Ends the operations of `engine` and keeps it until the process ends; its peers then receive the exit status. Where
// the C library does not report that, or after 30 s, they receive an orderly end. Does not need the GIL.
void close_at_exit(std::shared_ptr<Engine> engine);

}  // namespace mlt::bindings
