// All-reduces around a ring of simulated hosts of which one has a slower link, with equal chunks and with shares by
// rate (collective/shares.h), with production endpoints in virtual time: the mean time in milliseconds until the last
// rank has the sum. Prints a table of docs/collectives.md; the hosts are its arguments (4 8).
//
// Links of 200 Mbit/s in both directions, 4 MiB, 2 us from a host to the switch; no CPU cost; 10 operations, after as
// many as the ranks need to learn the rates.
#include <cstdio>

#include "bench/arguments.h"
#include "sim/collectives/all_reduce_times.h"

namespace {

double milliseconds(std::uint16_t hosts, double slowness, bool shares_by_rate) {
  mlt::test::AllReduces what;
  what.ranks = hosts;
  what.bytes = 4U << 20;
  what.algorithm = mlt::collective::CollectiveAlgorithm::kRing;
  what.loss = 0;
  what.rate = 25e6;
  what.slowness = slowness;
  what.shares_by_rate = shares_by_rate;
  what.warm_up = 12 * hosts;
  what.operations = 10;
  return mlt::test::time_all_reduces(what).mean() / 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  const mlt::bench::Arguments arguments(argc, argv, "[hosts, 3 or more ...]");
  std::vector<std::uint16_t> hosts = {4, 8};
  if (arguments.count() > 0) hosts.clear();
  for (int i = 1; i <= arguments.count(); ++i) hosts.push_back(arguments.number<std::uint16_t>(i, 0, 3));
  std::printf("| hosts | equal links | slower by | equal chunks | shares by rate |\n|---|---|---|---|---|\n");
  for (const std::uint16_t one : hosts) {
    const double even = milliseconds(one, 1, false);
    for (const double slowness : {1.25, 1.5, 2.0, 4.0}) {
      std::printf("| %u | %.0f | %g | %.0f | %.0f |\n", one, even, slowness, milliseconds(one, slowness, false),
                  milliseconds(one, slowness, true));
      std::fflush(stdout);
    }
  }
  return 0;
}
