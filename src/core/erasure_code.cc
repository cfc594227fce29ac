#include "core/erasure_code.h"

#include <array>

#include "base/check.h"

namespace mlt::core {

using base::galois::inverse;
using base::galois::multiply;
using base::galois::multiply_add;
using base::galois::scale;

// Gauss-Jordan elimination. No pivot is ever zero: every square part of a Cauchy matrix is regular, and so is what
// remains of it after each step.
void restore_segments(std::span<const std::uint8_t> positions, std::span<const std::uint8_t> indices,
                      std::span<std::byte* const> sums, std::size_t bytes) {
  const std::size_t n = positions.size();
  MLT_CHECK(n <= kMaxBlockParities && indices.size() == n && sums.size() == n);
  std::array<std::array<std::uint8_t, kMaxBlockParities>, kMaxBlockParities> rows;
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = 0; column < n; ++column) {
      rows[row][column] = parity_coefficient(indices[row], positions[column]);
    }
  }
  for (std::size_t pivot = 0; pivot < n; ++pivot) {
    MLT_CHECK(rows[pivot][pivot] != 0);
    const std::uint8_t factor = inverse(rows[pivot][pivot]);
    for (std::size_t column = pivot; column < n; ++column) rows[pivot][column] = multiply(rows[pivot][column], factor);
    scale(sums[pivot], bytes, factor);
    for (std::size_t row = 0; row < n; ++row) {
      const std::uint8_t times = rows[row][pivot];
      if (row == pivot || times == 0) continue;
      for (std::size_t column = pivot; column < n; ++column) {
        rows[row][column] = static_cast<std::uint8_t>(rows[row][column] ^ multiply(rows[pivot][column], times));
      }
      multiply_add(sums[row], sums[pivot], bytes, times);
    }
  }
}

}  // namespace mlt::core
