// The micro-swarm: every combination of a few faults in worlds small enough to try them all (sim/micro_world.h).
//
// A run follows the default (what is due happens) except for a bounded number of choices; exhaustive() tries every set
// of them up to that number, random_run() draws long ones from a seed. After its last choice every run continues
// without faults until nothing is left, and the oracle checks it. Absent on purpose: files, clocks, processes
// (tests/sim/micro_main.cc, tools/micro.py).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/micro_memory.h"
#include "sim/micro_world.h"

namespace mlt::sim {

// One run: a scenario and its choices, by choice number; all others are the default.
struct MicroRun {
  struct Step {
    std::uint32_t point = 0;
    MicroChoice choice;
    bool operator==(const Step&) const = default;
  };
  std::uint32_t scenario = 0;
  std::vector<Step> steps;

  // "17/4:drop,9:cancel=1": the scenario's number, then choice numbers with their choices.
  std::string text() const;
  // False if `text` is not a run of an existing scenario. The scenario's name may replace its number, which changes
  // when scenarios are added.
  static bool parse(const std::string& text, MicroRun& run);
};

struct MicroVerdict {
  std::string fault;  // empty: no rule was violated
  std::uint64_t digest = 0;
  std::uint64_t steps = 0;
};

struct MicroTotals {
  std::uint64_t runs = 0;
  std::uint64_t steps = 0;
  std::uint64_t failed = 0;
  std::uint64_t replayed = 0;
};

struct MicroLimits {
  std::uint32_t depth = 2;                  // maximum number of non-default choices in a run
  std::uint32_t horizon = 80;               // the last choice that may be non-default
  MicroActions actions = ~MicroActions{0};  // permitted actions
  std::uint64_t replay_every = 1'000;       // every this many runs, replay one from its beginning and compare
};

class Micro {
 public:
  Micro();

  // Every run of a scenario within the limits. Calls `failed` for each that violates a rule; false ends the search.
  using Failed = std::function<bool(const MicroRun&, const std::string& fault)>;
  void exhaustive(std::uint32_t scenario, const MicroLimits& limits, const Failed& failed);
  // One run with a scenario and choices drawn from a seed.
  MicroVerdict random_run(std::uint64_t seed, MicroActions actions, MicroRun& run);
  MicroVerdict replay(const MicroRun& run, const std::function<void(const TraceRecord&)>* trace = nullptr);
  // The shortest run that still violates a rule, found by removing choices and making them milder.
  MicroRun shrink(const MicroRun& run);

  const MicroTotals& totals() const { return totals_; }
  // The current run, for the report when an assertion of the product ends the process.
  const MicroRun& current() const { return current_; }
  std::size_t world_bytes() const { return memory_.used(); }

 private:
  void open(std::uint32_t scenario);
  void explore(std::uint32_t depth);
  void end_run();
  MicroVerdict verdict();

  WorldMemory memory_;
  MicroWorld* world_ = nullptr;  // in memory_
  std::vector<WorldMemory::Copy> copies_;
  MicroRun current_;
  MicroLimits limits_;
  const Failed* failed_ = nullptr;
  bool stopped_ = false;
  std::uint64_t steps_before_ = 0;  // of the world, when last restored to a counted point
  MicroTotals totals_;
};

}  // namespace mlt::sim
