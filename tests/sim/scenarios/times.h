// Times of operations of a simulated run.
#pragma once

#include <vector>

namespace mlt::test {

struct Times {
  std::vector<double> ns;  // sorted
  double percentile(double percent) const {
    return ns[static_cast<std::size_t>(percent / 100 * static_cast<double>(ns.size() - 1) + 0.5)];
  }
  double mean() const {
    double sum = 0;
    for (const double one : ns) sum += one;
    return sum / static_cast<double>(ns.size());
  }
};

}  // namespace mlt::test
