// Counts calls of the global operator new in this process, and makes them fail. A test binary that uses it lists
// allocation_counter.cc among its sources, because replacing operator new is a property of a program.
#pragma once

#include <cstdint>

namespace mlt::test {

// Allocations since the program started, by any thread.
std::uint64_t allocations();
// Of those that were not released since.
std::uint64_t allocated_bytes();

// While it lives, allocations of this thread throw std::bad_alloc after the first `allowed`.
class AllocationLimit {
 public:
  explicit AllocationLimit(std::uint64_t allowed);
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;
  ~AllocationLimit();
};

}  // namespace mlt::test
