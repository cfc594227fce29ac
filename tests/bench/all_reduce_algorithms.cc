// Each algorithm of an all-reduce between simulated hosts around one switch, with production endpoints in virtual time:
// the mean time in microseconds until the last rank has the result, by ranks, bytes and loss; and what a bound saves a
// ring. Prints tables of docs/collectives.md; as many operations a cell as the first argument says (10), and the hosts
// that follow (8 16 32 64).
//
// Links of 10 Gbit/s, 2 us from a host to the switch; each loses the given share of its data. A host's CPU costs
// nothing here.
#include <algorithm>
#include <cstdio>

#include "bench/arguments.h"
#include "sim/collectives/all_reduce_times.h"

namespace {

using namespace mlt;
using base::DurationNs;
using collective::CollectiveAlgorithm;

constexpr CollectiveAlgorithm kAlgorithms[] = {CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kCentral,
                                               CollectiveAlgorithm::kRing, CollectiveAlgorithm::kHalving};

test::AllReduces cell(std::uint16_t ranks, std::size_t bytes, double loss, int operations) {
  test::AllReduces what;
  what.ranks = ranks;
  what.bytes = bytes;
  what.loss = loss;
  what.all_lose = true;
  what.operations = operations;
  return what;
}

void print_mean(const test::AllReduces& what) {
  std::printf(" %.0f |", test::time_all_reduces(what).mean() / 1e3);
  std::fflush(stdout);
}

void print_table(std::uint16_t ranks, double loss, int operations) {
  std::printf("| %d hosts, %g %% loss |", ranks, 100 * loss);
  for (const CollectiveAlgorithm one : kAlgorithms) std::printf(" %s |", algorithm_name(one));
  std::printf("\n|---|---|---|---|---|\n");
  for (std::size_t bytes = 1'024; bytes <= (4U << 20); bytes *= 4) {
    std::printf("| %zu KiB |", bytes / 1'024);
    for (const CollectiveAlgorithm one : kAlgorithms) {
      const bool has_records = one == CollectiveAlgorithm::kDirect || one == CollectiveAlgorithm::kCentral;
      if (has_records && bytes * ranks > (8U << 20)) {  // takes long, and loses
        std::printf(" |");
        continue;
      }
      test::AllReduces what = cell(ranks, bytes, loss, operations);
      what.algorithm = one;
      print_mean(what);
    }
    std::printf("\n");
  }
  std::printf("\n");
}

// What a bound of 0.1 saves in a ring, beside what is chosen for an exact call.
void print_bound_table(std::uint16_t ranks, double loss, DurationNs round_trip_ns, int operations) {
  std::printf("| %d hosts, round trip %lld us, %g %% loss | exact: chosen | exact: ring | bound 0.1: ring |\n", ranks,
              static_cast<long long>(round_trip_ns / base::kMicrosecond), 100 * loss);
  std::printf("|---|---|---|---|\n");
  for (std::size_t bytes = 16'384; bytes <= (1U << 20); bytes *= 4) {
    std::printf("| %zu KiB |", bytes / 1'024);
    test::AllReduces what = cell(ranks, bytes, loss, operations);
    what.propagation_ns = round_trip_ns / 4;
    for (const double bound : {-1.0, 0.0, 0.1}) {
      what.algorithm = bound < 0 ? CollectiveAlgorithm::kAutomatic : CollectiveAlgorithm::kRing;
      what.loss_bound = std::max(bound, 0.0);
      print_mean(what);
    }
    std::printf("\n");
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, "[operations a cell] [hosts, 2 or more ...]");
  const int operations = arguments.number(1, 10);
  std::vector<std::uint16_t> ranks = {8, 16, 32, 64};
  if (arguments.count() > 1) ranks.clear();
  for (int i = 2; i <= arguments.count(); ++i) ranks.push_back(arguments.number<std::uint16_t>(i, 0, 2));
  for (const std::uint16_t one : ranks) {
    for (const double loss : {0.0, 0.01}) print_table(one, loss, operations);
    for (const double loss : {0.01, 0.05}) {
      for (const DurationNs round_trip_ns : {8 * base::kMicrosecond, 1'000 * base::kMicrosecond}) {
        print_bound_table(one, loss, round_trip_ns, operations);
      }
    }
  }
  return 0;
}
