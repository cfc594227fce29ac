// Counts calls of the global operator new in this process. A test binary that uses it lists allocation_counter.cc among
// its sources, because replacing operator new is a property of a program.
#pragma once

#include <cstdint>

namespace mlt::test {

// Allocations since the program started, by any thread.
std::uint64_t allocations();

}  // namespace mlt::test
