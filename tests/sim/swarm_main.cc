// The swarm's program: runs seeds and stops at the first that breaks a rule, printing one command that shows it again.
//   mlt_swarm --first 1 --count 2000          one seed after another; a line of JSON at the end
//   mlt_swarm --seed 77 --trace               one seed, with its scenario and every event
//   mlt_swarm --first-draw ...                as the seeds of tests/sim/regressions/first_draw were drawn
//   mlt_swarm --second-draw ...               as those of tests/sim/regressions itself were
//   mlt_swarm --third-draw ...                as those of third_draw were; --fourth-draw to --tenth-draw likewise
//   mlt_swarm --seeds FILE                    the seeds in FILE, one per line ('#' begins a comment)
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cpu_limit.h"
#include "sim/swarm.h"

namespace {

using namespace mlt;

volatile std::sig_atomic_t has_seed = 0;
char replay[512];
const char* program = "mlt_swarm";

// A broken assertion of the product ends the process; say which seed did it first.
void on_abort(int) {
  if (has_seed != 0) std::fputs(replay, stderr);
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

// Rule 7's last resort: a seed that loops inside one event.
void on_limit(int) {
  constexpr char kText[] = "rule 7: the run does not continue\n";
  const bool written = write(2, kText, sizeof kText - 1) >= 0 && write(2, replay, std::strlen(replay)) >= 0;
  _exit(written ? 1 : 2);
}

struct Totals {
  std::uint64_t seeds = 0, events = 0, hops = 0, operations = 0, completions = 0, dropped = 0;
  double virtual_seconds = 0;
};

const char* option_of(sim::Draw draw) {
  if (draw == sim::Draw::kFirst) return " --first-draw";
  if (draw == sim::Draw::kThird) return " --third-draw";
  if (draw == sim::Draw::kFourth) return " --fourth-draw";
  if (draw == sim::Draw::kFifth) return " --fifth-draw";
  if (draw == sim::Draw::kSixth) return " --sixth-draw";
  if (draw == sim::Draw::kSeventh) return " --seventh-draw";
  if (draw == sim::Draw::kEighth) return " --eighth-draw";
  if (draw == sim::Draw::kNinth) return " --ninth-draw";
  if (draw == sim::Draw::kTenth) return " --tenth-draw";
  return draw == sim::Draw::kSecond ? " --second-draw" : "";
}

bool run_seed(std::uint64_t seed, sim::Draw draw, bool trace, bool quiet, unsigned limit_s, Totals& totals) {
  test::signal_after_cpu_time(limit_s);
  std::snprintf(replay, sizeof replay, "seed %llu failed; to see it again: %s%s --seed %llu --trace\n",
                static_cast<unsigned long long>(seed), program, option_of(draw), static_cast<unsigned long long>(seed));
  has_seed = 1;
  const sim::Scenario scenario = sim::draw_scenario(seed, draw);
  if (trace) std::fputs(scenario.text().c_str(), stdout);
  std::function<void(const sim::TraceRecord&)> sink;
  if (trace) sink = [](const sim::TraceRecord& record) { std::puts(sim::trace_line(record).c_str()); };
  const sim::Verdict verdict = sim::run_scenario(scenario, sink);
  has_seed = 0;
  test::signal_after_cpu_time(0);
  ++totals.seeds;
  totals.events += verdict.events;
  totals.hops += verdict.hops;
  totals.operations += verdict.operations;
  totals.completions += verdict.completions;
  totals.dropped += verdict.dropped;
  totals.virtual_seconds += static_cast<double>(verdict.virtual_ns) * 1e-9;
  if (verdict.fault.empty()) {
    if (!quiet)
      std::printf("seed %llu: clean, %llu events, digest %016llx\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(verdict.events), static_cast<unsigned long long>(verdict.digest));
    return true;
  }
  std::fprintf(stderr, "%s%s\n", scenario.text().c_str(), verdict.fault.c_str());
  std::fputs(replay, stderr);
  return false;
}

std::vector<std::uint64_t> read_seeds(const char* path) {
  std::ifstream file(path);
  if (!file) {
    std::fprintf(stderr, "mlt_swarm: cannot read %s\n", path);
    std::exit(2);
  }
  std::vector<std::uint64_t> seeds;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') seeds.push_back(std::strtoull(line.c_str(), nullptr, 10));
  }
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  program = argv[0];
  std::uint64_t first = 1, count = 100;
  bool trace = false, quiet = true, keep_going = false;
  sim::Draw draw = sim::Draw::kEleventh;
  unsigned limit_s = 300;  // a seed takes milliseconds
  std::vector<std::uint64_t> seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&]() -> const char* {
      if (++i < argc) return argv[i];
      std::fprintf(stderr, "mlt_swarm: %s wants a value\n", option.c_str());
      std::exit(2);
    };
    if (option == "--first") {
      first = std::strtoull(value(), nullptr, 10);
    } else if (option == "--count") {
      count = std::strtoull(value(), nullptr, 10);
    } else if (option == "--seed") {
      seeds.push_back(std::strtoull(value(), nullptr, 10));
      quiet = false;
    } else if (option == "--seeds") {
      seeds = read_seeds(value());
      count = 0;
    } else if (option == "--limit-s") {
      limit_s = static_cast<unsigned>(std::strtoul(value(), nullptr, 10));
    } else if (option == "--first-draw") {
      draw = sim::Draw::kFirst;
    } else if (option == "--second-draw") {
      draw = sim::Draw::kSecond;
    } else if (option == "--third-draw") {
      draw = sim::Draw::kThird;
    } else if (option == "--fourth-draw") {
      draw = sim::Draw::kFourth;
    } else if (option == "--fifth-draw") {
      draw = sim::Draw::kFifth;
    } else if (option == "--sixth-draw") {
      draw = sim::Draw::kSixth;
    } else if (option == "--seventh-draw") {
      draw = sim::Draw::kSeventh;
    } else if (option == "--eighth-draw") {
      draw = sim::Draw::kEighth;
    } else if (option == "--ninth-draw") {
      draw = sim::Draw::kNinth;
    } else if (option == "--tenth-draw") {
      draw = sim::Draw::kTenth;
    } else if (option == "--trace") {
      trace = true;
    } else if (option == "--verbose") {
      quiet = false;
    } else if (option == "--keep-going") {
      keep_going = true;
    } else {
      std::fprintf(stderr,
                   "usage: mlt_swarm [--first N --count N | --seed N | --seeds FILE] [--trace] [--verbose] "
                   "[--keep-going] [--limit-s S] [--first-draw | --second-draw | ...]\n");
      return 2;
    }
  }
  if (seeds.empty()) {
    for (std::uint64_t seed = first; seed < first + count; ++seed) seeds.push_back(seed);
  }
  std::signal(SIGABRT, on_abort);
  std::signal(SIGPROF, on_limit);
  Totals totals;
  std::uint64_t failed = 0;
  const auto start = std::chrono::steady_clock::now();
  for (const std::uint64_t seed : seeds) {
    if (run_seed(seed, draw, trace, quiet, limit_s, totals)) continue;
    ++failed;
    if (!keep_going) break;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "{\"seeds\": %llu, \"failed\": %llu, \"seconds\": %.2f, \"events\": %llu, \"packet_hops\": %llu, "
      "\"operations\": %llu, \"completions\": %llu, \"data_packets_dropped\": %llu, \"virtual_seconds\": %.1f}\n",
      static_cast<unsigned long long>(totals.seeds), static_cast<unsigned long long>(failed), seconds,
      static_cast<unsigned long long>(totals.events), static_cast<unsigned long long>(totals.hops),
      static_cast<unsigned long long>(totals.operations), static_cast<unsigned long long>(totals.completions),
      static_cast<unsigned long long>(totals.dropped), totals.virtual_seconds);
  return failed == 0 ? 0 : 1;
}
