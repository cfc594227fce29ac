// The micro-swarm's program (docs/simulator.md): runs every pattern of a few faults in tiny worlds, or random long
// ones, and prints for each way in which a rule breaks the shortest run found and one command that shows it again.
//   mlt_micro --list                                  the scenarios with their numbers
//   mlt_micro --depth 2 [--first 0 --count 10]        every run of up to two choices in these scenarios
//   mlt_micro --random --first 1 --count 100000       one run of many choices from each seed
//   mlt_micro --replay 17/4:drop,9:late_30 [--trace]  one run
//   mlt_micro --runs FILE                             the runs in FILE, one per line ('#' begins a comment)
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cpu_limit.h"
#include "sim/micro.h"
#include "sim/swarm.h"

namespace {

using namespace mlt;
using sim::MicroRun;

const char* program = "mlt_micro";
sim::Micro* running = nullptr;

// The kinds of faults a run may have: without them the rest of the run is as it was.
constexpr sim::MicroActions kFew =
    sim::micro_bit(sim::MicroAction::k_drop) | sim::micro_bit(sim::MicroAction::k_copy_late) |
    sim::micro_bit(sim::MicroAction::k_swap) | sim::micro_bit(sim::MicroAction::k_late_30) |
    sim::micro_bit(sim::MicroAction::k_stall_30) | sim::micro_bit(sim::MicroAction::k_cancel) |
    sim::micro_bit(sim::MicroAction::k_disconnect);

void say_how_to_see(const MicroRun& run) {
  std::fprintf(stderr, "to see it again: %s --replay %s --trace\n", program, run.text().c_str());
}

// A broken assertion of the product ends the process; say which run did it first.
void on_abort(int) {
  if (running != nullptr) say_how_to_see(running->current());
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

// Rule 7's last resort: a run that loops inside one choice.
void on_limit(int) {
  static std::uint64_t before = ~std::uint64_t{0};
  if (running != nullptr && running->totals().runs == before) {
    std::fprintf(stderr, "rule 7: the run does not continue\n");
    say_how_to_see(running->current());
    _exit(1);
  }
  before = running == nullptr ? 0 : running->totals().runs;
  test::signal_after_cpu_time(20);
}

// Faults that differ in numbers only are one.
std::string kind_of(const std::string& fault) {
  std::string kind;
  for (const char c : fault) {
    if (c >= '0' && c <= '9') {
      if (kind.empty() || kind.back() != '#') kind += '#';
    } else {
      kind += c;
    }
  }
  return fault.substr(0, 7) + kind;
}

struct Found {
  MicroRun run;
  std::string fault;
  std::uint64_t times = 0;
};
using Faults = std::map<std::string, Found>;

void report(sim::Micro& micro, const Faults& faults) {
  for (const auto& [kind, found] : faults) {
    const MicroRun shortest = micro.shrink(found.run);
    const std::string fault = micro.replay(shortest).fault;
    std::fprintf(stderr, "%s\nscenario %u: %s\n%llu runs; found as %s\n", fault.c_str(), shortest.scenario,
                 sim::micro_scenarios()[shortest.scenario].name.c_str(), static_cast<unsigned long long>(found.times),
                 found.run.text().c_str());
    say_how_to_see(shortest);
    const std::string text = shortest.text();
    std::fprintf(stderr, "to keep it, a line of a file in tests/sim/regressions/micro: %s%s\n",
                 sim::micro_scenarios()[shortest.scenario].name.c_str(), text.c_str() + text.find('/'));
  }
}

bool replay(sim::Micro& micro, const std::string& text, bool trace) {
  MicroRun run;
  if (!MicroRun::parse(text, run)) {
    std::fprintf(stderr, "mlt_micro: '%s' is no run; expected SCENARIO/POINT:ACTION,... (--list shows scenarios)\n",
                 text.c_str());
    std::exit(2);
  }
  const std::function<void(const sim::TraceRecord&)> sink = [](const sim::TraceRecord& record) {
    std::puts(sim::trace_line(record).c_str());
  };
  if (trace) std::printf("scenario %u: %s\n", run.scenario, sim::micro_scenarios()[run.scenario].name.c_str());
  const sim::MicroVerdict verdict = micro.replay(run, trace ? &sink : nullptr);
  if (trace)
    std::printf("%llu steps, digest %016llx\n", static_cast<unsigned long long>(verdict.steps),
                static_cast<unsigned long long>(verdict.digest));
  if (verdict.fault.empty()) return true;
  std::fprintf(stderr, "%s\n", verdict.fault.c_str());
  say_how_to_see(run);
  return false;
}

std::vector<std::string> read_runs(const char* path) {
  std::ifstream file(path);
  if (!file) {
    std::fprintf(stderr, "mlt_micro: cannot read %s\n", path);
    std::exit(2);
  }
  std::vector<std::string> runs;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') runs.push_back(line);
  }
  return runs;
}

struct Options {
  std::uint64_t first = 0, count = ~std::uint64_t{0};
  bool random = false, trace = false, keep_going = false, list = false;
  sim::MicroLimits limits;
  std::vector<std::string> runs;
};

// "drop,late_30" as bits.
sim::MicroActions named_actions(const std::string& names) {
  sim::MicroActions bits = 0;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    std::size_t action = 0;
    while (action < static_cast<std::size_t>(sim::MicroAction::kCount) &&
           names.substr(at, end - at) != sim::micro_action_name(static_cast<sim::MicroAction>(action))) {
      ++action;
    }
    if (action == static_cast<std::size_t>(sim::MicroAction::kCount)) {
      std::fprintf(stderr, "mlt_micro: '%s' is no action\n", names.substr(at, end - at).c_str());
      std::exit(2);
    }
    bits |= sim::micro_bit(static_cast<sim::MicroAction>(action));
    at = end + 1;
  }
  return bits;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&]() -> const char* {
      if (++i < argc) return argv[i];
      std::fprintf(stderr, "mlt_micro: %s wants a value\n", option.c_str());
      std::exit(2);
    };
    const auto number = [&] { return std::strtoull(value(), nullptr, 10); };
    if (option == "--first") {
      options.first = number();
    } else if (option == "--count") {
      options.count = number();
    } else if (option == "--depth") {
      options.limits.depth = static_cast<std::uint32_t>(number());
    } else if (option == "--horizon") {
      options.limits.horizon = static_cast<std::uint32_t>(number());
    } else if (option == "--without") {
      options.limits.actions &= ~named_actions(value());
    } else if (option == "--few") {
      options.limits.actions = kFew;
    } else if (option == "--replay-every") {
      options.limits.replay_every = number();
    } else if (option == "--random") {
      options.random = true;
    } else if (option == "--replay") {
      options.runs.push_back(value());
    } else if (option == "--runs") {
      options.runs = read_runs(value());
    } else if (option == "--list") {
      options.list = true;
    } else if (option == "--trace") {
      options.trace = true;
    } else if (option == "--keep-going") {
      options.keep_going = true;
    } else {
      std::fprintf(stderr,
                   "usage: mlt_micro [--depth N [--first N --count N] [--few] [--without ACTION,...] "
                   "[--horizon N] [--replay-every N] | "
                   "--random --first N --count N | --replay RUN | --runs FILE] [--trace] [--keep-going] [--list]\n");
      std::exit(2);
    }
  }
  return options;
}

void explore(sim::Micro& micro, const Options& options, Faults& faults) {
  const std::uint64_t scenarios = sim::micro_scenarios().size();
  for (std::uint64_t i = options.first; i < scenarios && i - options.first < options.count; ++i) {
    micro.exhaustive(static_cast<std::uint32_t>(i), options.limits, [&](const MicroRun& run, const std::string& fault) {
      Found& found = faults[kind_of(fault)];
      if (found.times++ == 0) {
        found.run = run;
        found.fault = fault;
      }
      return options.keep_going;
    });
    if (!faults.empty() && !options.keep_going) return;
  }
}

void draw(sim::Micro& micro, const Options& options, Faults& faults) {
  for (std::uint64_t i = 0; i < options.count; ++i) {
    MicroRun run;
    const std::string fault = micro.random_run(options.first + i, options.limits.actions, run).fault;
    if (fault.empty()) continue;
    Found& found = faults[kind_of(fault)];
    if (found.times++ == 0) {
      found.run = run;
      found.fault = fault;
      std::fprintf(stderr, "seed %llu failed\n", static_cast<unsigned long long>(options.first + i));
    }
    if (!options.keep_going) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  program = argv[0];
  const Options options = parse(argc, argv);
  const std::vector<sim::MicroScenario>& scenarios = sim::micro_scenarios();
  if (options.list) {
    for (std::size_t i = 0; i < scenarios.size(); ++i) std::printf("%zu: %s\n", i, scenarios[i].name.c_str());
    return 0;
  }
  sim::Micro micro;
  running = &micro;
  std::signal(SIGABRT, on_abort);
  std::signal(SIGPROF, on_limit);
  test::signal_after_cpu_time(20);
  if (!options.runs.empty()) {
    bool clean = true;
    for (const std::string& run : options.runs) clean = replay(micro, run, options.trace) && clean;
    return clean ? 0 : 1;
  }
  Faults faults;
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  options.random ? draw(micro, options, faults) : explore(micro, options, faults);
  const double cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const sim::MicroTotals totals = micro.totals();
  report(micro, faults);
  std::printf(
      "{\"runs\": %llu, \"failed\": %llu, \"seconds\": %.2f, \"cpu_seconds\": %.2f, \"steps\": %llu, \"replayed\": "
      "%llu, "
      "\"steps_per_cpu_hour\": %.3g, \"world_bytes\": %zu}\n",
      static_cast<unsigned long long>(totals.runs), static_cast<unsigned long long>(totals.failed), seconds,
      cpu_seconds, static_cast<unsigned long long>(totals.steps), static_cast<unsigned long long>(totals.replayed),
      static_cast<double>(totals.steps) / cpu_seconds * 3600, micro.world_bytes());
  return faults.empty() ? 0 : 1;
}
