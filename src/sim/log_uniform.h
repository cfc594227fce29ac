// A number between two positive limits whose logarithm is uniform: as many small ones as large ones. For drawn
// scenarios.
#pragma once

#include <cmath>

#include "base/prng.h"

namespace mlt::sim {

inline double log_uniform(base::Prng& prng, double min, double max) {
  return min * std::exp(prng.uniform() * std::log(max / min));
}

}  // namespace mlt::sim
