// Shares by rate: all-reduces around a ring of which one host's link is slow, with them and without.
#include <doctest/doctest.h>

#include "sim/collectives/all_reduce_times.h"

using namespace mlt::test;

namespace {

// Links of 200 Mbit/s; the hosts learn that when packets queue, if they believe in a faster line.
AllReduces ring_of(std::uint16_t ranks, double line, double slowness) {
  AllReduces what;
  what.ranks = ranks;
  what.bytes = 2U << 20;
  what.algorithm = mlt::collective::CollectiveAlgorithm::kRing;
  what.loss = 0;
  what.rate = 25e6;
  what.line_rate = line * what.rate;
  what.slowness = slowness;
  what.warm_up = 10 * ranks;
  what.operations = 12;
  return what;
}

}  // namespace

// The tensor crosses the slow host's links once, and all others twice: a host of half the rate then costs 1 / (1 - 1/n)
// of equal chunks on equal links, a third with 4 hosts and a seventh with 8, where equal chunks cost twice the time.
TEST_CASE("shares_by_rate__make_a_slow_host_cost_what_it_must_and_nothing_where_links_are_equal") {
  for (const std::uint16_t ranks : {std::uint16_t{4}, std::uint16_t{8}}) {
    for (const double line : {1.0, 10.0}) {
      CAPTURE(ranks);
      CAPTURE(line);
      AllReduces even = ring_of(ranks, line, 1);
      AllReduces slow = ring_of(ranks, line, 2);
      const double even_ns = time_all_reduces(even).mean(), slow_ns = time_all_reduces(slow).mean();
      CHECK(slow_ns > 1.9 * even_ns);
      even.shares_by_rate = slow.shares_by_rate = true;
      CHECK(time_all_reduces(even).mean() == even_ns);
      const double must = static_cast<double>(ranks) / (ranks - 1);
      const double shared_ns = time_all_reduces(slow).mean();
      CHECK(shared_ns < 1.1 * must * even_ns);
      CHECK(shared_ns < 0.7 * slow_ns);
      slow.slowness = 4;
      CHECK(time_all_reduces(slow).mean() < 1.1 * 2 * must * even_ns);
    }
  }
}
