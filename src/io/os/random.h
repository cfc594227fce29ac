// Unpredictable numbers from the kernel: cookies and incarnations. Everything repeatable uses base::Prng.
#pragma once

#include <cstdint>

namespace mlt::io {

std::uint64_t random_u64();

}  // namespace mlt::io
