// What lost control packets cost an all-reduce (PROTOCOL 6.5.9, 7.6.4).
#include <doctest/doctest.h>

#include "sim/collectives/all_reduce_times.h"

using namespace mlt;
using namespace mlt::test;

// Found on the testbed, where links that lose a fifth made a ring wait five times as long for its control packets as
// for its data.
TEST_CASE("lost_control_packets__cost_a_ring_little" * doctest::test_suite("long")) {
  AllReduces what;
  what.ranks = 4;
  what.algorithm = collective::CollectiveAlgorithm::kRing;
  what.all_lose = true;
  what.rate = 25e6;
  what.propagation_ns = 50 * base::kMicrosecond;
  what.operations = 300;
  // By bytes, paths and loss, the most that p99 and the mean may be of the time without loss.
  struct Case {
    std::size_t bytes;
    std::uint8_t paths;
    double loss, loss_bound, most_p99, most_mean;
  };
  const Case cases[] = {
      {64U << 10, 1, 0.01, 0, 1.35, 1.2}, {64U << 10, 1, 0.01, 0.1, 1.3, 1.15}, {64U << 10, 8, 0.01, 0, 1.55, 1.3},
      {256U << 10, 1, 0.2, 0, 4.5, 2.2},  {256U << 10, 1, 0.2, 0.3, 4, 1.8},    {256U << 10, 8, 0.2, 0, 4, 2.5},
  };
  for (const Case& one : cases) {
    what.bytes = one.bytes;
    what.paths = one.paths;
    what.loss_bound = one.loss_bound;
    what.loss = what.control_loss = 0;
    const double lossless = time_all_reduces(what).mean();
    what.loss = what.control_loss = one.loss;
    const AllReduceTimes times = time_all_reduces(what);
    MESSAGE("" << one.bytes / 1024 << " KiB, " << int{one.paths} << " paths, loss " << one.loss << ", bound "
               << one.loss_bound << ": p99 " << times.percentile(99) / lossless << ", mean " << times.mean() / lossless
               << " of " << lossless / 1e6 << " ms");
    CHECK(times.percentile(99) < one.most_p99 * lossless);
    CHECK(times.mean() < one.most_mean * lossless);
  }
}
