// mlt_chaos_check FOLDER: checks the traces of a run on real sockets (tools/chaos). Prints every broken rule and the
// totals as "name value" lines; ends with 1 if a rule was broken, with 2 if the trace can't be read.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "sim/chaos/checker.h"

namespace {

void add(mlt::chaos::Totals& sum, const mlt::chaos::Totals& one) {
  sum.operations += one.operations;
  sum.lost += one.lost;
  sum.bytes += one.bytes;
  sum.missing_bytes += one.missing_bytes;
  sum.receives_without_drops += one.receives_without_drops;
  for (const auto& [status, count] : one.by_status) sum.by_status[status] += count;
  for (const auto& [kind, worst] : one.worst_end) sum.worst_end[kind] = std::max(sum.worst_end[kind], worst);
}

void print(const std::string& name, std::uint64_t value) {
  std::printf("%s %llu\n", name.c_str(), static_cast<unsigned long long>(value));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: mlt_chaos_check FOLDER\n");
    return 2;
  }
  try {
    mlt::chaos::Totals totals;
    std::uint64_t broken = 0;
    for (const auto& [number, job] : mlt::chaos::read_traces(arguments[1])) {
      mlt::chaos::Checker checker(job);
      checker.run();
      for (const auto& [rule, text] : checker.broken()) std::printf("broken rule %d: %s\n", rule, text.c_str());
      broken += checker.broken().size();
      add(totals, checker.totals());
    }
    print("operations", totals.operations);
    print("lost", totals.lost);
    print("bytes", totals.bytes);
    print("missing_bytes", totals.missing_bytes);
    print("receives_without_drops", totals.receives_without_drops);
    for (const auto& [status, number] : totals.by_status) print("status." + status, number);
    for (const auto& [kind, worst] : totals.worst_end) print("worst." + kind, static_cast<std::uint64_t>(worst));
    print("broken", broken);
    return broken == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mlt_chaos_check: %s\n", error.what());
    return 2;
  }
}
