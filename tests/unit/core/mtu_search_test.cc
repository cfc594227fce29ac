#include "core/mtu_search.h"

#include <doctest/doctest.h>

namespace {

using namespace mlt;
using core::MtuSearch;

constexpr std::uint32_t kFullDatagram = 1'472;

// Runs pairs of the full size, of which no long probe is answered, until the search tries a shorter size; returns their
// number. Every `answered_every`-th short probe is answered.
int pairs_until_too_long(int answered_every) {
  MtuSearch search(kFullDatagram);
  base::TimeNs now = base::kMillisecond;
  search.start(0, 0);
  for (int pair = 1; pair <= 100; ++pair) {
    REQUIRE(search.next_probe(now) == kFullDatagram);
    REQUIRE(search.next_probe(now) == MtuSearch::kShortProbeBytes);
    if (pair % answered_every == 0) {
      search.on_reply(now, static_cast<std::uint32_t>(now), MtuSearch::kShortProbeBytes);
    }
    now = search.timeout_ns();
    REQUIRE(search.on_timeout(now, 0) == MtuSearch::Outcome::kNone);
    REQUIRE(search.is_running());
    MtuSearch after = search;
    if (after.next_probe(now) < kFullDatagram) return pair;
  }
  return 0;
}

// RECOVERY R2.6.3: It MUST NOT take a size as too long before n pairs without an answer to a long probe, n being 10 at
//     least, ..., and only if ((short ones unanswered + 1) / (n + 2))^n is 10^-9 at most, ....
TEST_CASE("too_long__takes_the_more_pairs_the_more_short_probes_are_lost") {
  CHECK(pairs_until_too_long(1) == 10);
  // Half of them lost: 0.5^28 is 3.7e-9, 0.5^30 is 9.3e-10.
  CHECK(pairs_until_too_long(2) == 30);
}

}  // namespace
