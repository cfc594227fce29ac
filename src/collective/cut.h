// The cut of elements into parts whose sizes differ by at most one, the longer ones first.
#pragma once

#include <algorithm>
#include <cstddef>

namespace mlt::collective {

// First element of part `i` of `parts` of n elements; i = parts: n.
constexpr std::size_t cut(std::size_t n, std::size_t i, std::size_t parts) {
  return n / parts * i + std::min(i, n % parts);
}

}  // namespace mlt::collective
