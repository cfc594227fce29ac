// What one simulated rank of an all-reduce in a tree costs, by the number of ranks: one line of JSON for each.
//   mlt_sim_scale --ranks 64 --ranks 1024      each in a process of its own, whose memory is measured
//   mlt_sim_scale --check                      64 and 256 ranks: exits with 1 if a rank costs more than grows as log n
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tree_run.h"

namespace {

using namespace mlt;

// In a child: what an earlier run has freed would count as memory of none.
test::TreeCost run_apart(const test::TreeAllReduce& what) {
  int ends[2];
  MLT_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  MLT_CHECK(child >= 0);
  test::TreeCost cost;
  if (child == 0) {
    // A process may have 65,530 mappings, fewer than thousands of endpoints have large tables.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    cost = test::run_tree(what);
    const bool is_written = write(ends[1], &cost, sizeof cost) == sizeof cost;
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  const bool is_read = read(ends[0], &cost, sizeof cost) == sizeof cost;
  close(ends[0]);
  int status = 0;
  MLT_CHECK(waitpid(child, &status, 0) == child);
  if (!is_read || status != 0) {
    std::fprintf(stderr, "%u ranks: the run failed\n", what.ranks);
    std::exit(1);
  }
  return cost;
}

void print(const test::TreeAllReduce& what, const test::TreeCost& cost) {
  const double ranks = what.ranks, calls = ranks * what.rounds;
  std::printf(
      "{\"ranks\": %u, \"connections_per_rank\": %.1f, \"events_per_rank\": %.1f, \"datagrams_per_rank\": %.1f, "
      "\"lost\": %llu, \"cpu_microseconds_per_rank\": %.1f, \"kib_per_rank\": %.1f, \"cpu_seconds\": %.2f, "
      "\"set_up_cpu_seconds\": %.2f, \"virtual_microseconds\": %.1f}\n",
      what.ranks, 2 * static_cast<double>(cost.connections) / ranks, static_cast<double>(cost.events) / calls,
      static_cast<double>(cost.datagrams) / calls, static_cast<unsigned long long>(cost.lost),
      1e6 * cost.cpu_seconds / calls, static_cast<double>(cost.resident_bytes) / ranks / 1024, cost.cpu_seconds,
      cost.set_up_cpu_seconds, 1e6 * cost.virtual_seconds);
  std::fflush(stdout);
}

// Whether a rank of the larger job costs no more than the levels of its tree explain, and a quarter; and each further
// rank, with which it exchanges nothing, hardly any memory.
bool check() {
  constexpr std::uint16_t kFew = 64, kMany = 256;
  constexpr double kMaxKibPerRank = 0.5;
  test::TreeAllReduce what;
  what.ranks = kFew;
  const test::TreeCost few = run_apart(what);
  print(what, few);
  what.ranks = kMany;
  const test::TreeCost many = run_apart(what);
  print(what, many);
  const auto of_rank = [](std::uint64_t all, std::uint16_t ranks) { return static_cast<double>(all) / ranks; };
  const double levels = std::log2(kMany) / std::log2(kFew);
  const double events = of_rank(many.events, kMany) / of_rank(few.events, kFew);
  const double kib = (of_rank(many.resident_bytes, kMany) - of_rank(few.resident_bytes, kFew)) / 1024 / (kMany - kFew);
  std::printf("%.2f times the levels, %.2f times the events of a rank; %.2f KiB for each further rank\n", levels,
              events, kib);
  return few.lost > 0 && many.lost > 0 && events <= 1.25 * levels && kib <= kMaxKibPerRank;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::uint16_t> sizes;
  bool checks = false;
  test::TreeAllReduce what;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0ULL; };
    if (option == "--check") {
      checks = true;
    } else if (option == "--ranks") {
      sizes.push_back(static_cast<std::uint16_t>(value()));
    } else if (option == "--seed") {
      what.seed = value();
    } else {
      std::fprintf(stderr, "usage: %s --check | --ranks N [--ranks N] [--seed S]\n", argv[0]);
      return 2;
    }
  }
  if (checks) return check() ? 0 : 1;
  for (const std::uint16_t ranks : sizes) {
    what.ranks = ranks;
    print(what, run_apart(what));
  }
  return 0;
}
