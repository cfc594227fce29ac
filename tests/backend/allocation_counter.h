// Counts every call of operator new in this test binary.
#pragma once

#include <cstdint>

namespace mlt::io_test {

std::uint64_t allocations();

}  // namespace mlt::io_test
