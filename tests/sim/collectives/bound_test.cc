// Where a loss bound pays: times of all-reduces with one against those without, one link losing 2 % of its data
// (docs/bound.md has more of them).
#include <doctest/doctest.h>

#include "sim/collectives/all_reduce_times.h"

using namespace mlt::test;

// A tenth of a chunk of 8 KiB is less than a segment, a tenth of all chunks that a rank receives is four. In half of
// all operations no repair of a sum is on the critical path any more; the results are exact with either.
TEST_CASE("bound__of_a_small_ring_with_one_lossy_link_makes_it_faster_and_nothing_slower" *
          doctest::test_suite("long")) {
  for (const mlt::base::DurationNs propagation_ns : {2'000, 250'000}) {
    CAPTURE(propagation_ns);
    AllReduces exact;
    exact.propagation_ns = propagation_ns;
    exact.algorithm = mlt::collective::CollectiveAlgorithm::kRing;
    AllReduces bounded = exact;
    bounded.loss_bound = 0.1;
    const AllReduceTimes without = time_all_reduces(exact), with = time_all_reduces(bounded);
    CHECK(with.missing > 0.001);
    CHECK(with.mean() < 0.97 * without.mean());
    CHECK(with.percentile(40) < 0.95 * without.percentile(40));
    for (const double percent : {1.0, 50.0, 90.0, 99.0}) {
      CAPTURE(percent);
      CHECK(with.percentile(percent) < 1.001 * without.percentile(percent));
    }
  }
}
