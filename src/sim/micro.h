// The micro-swarm: every pattern of a few faults in worlds so small that they can all be tried (sim/micro_world.h).
//
// A run follows the default, what is due happens, but for a bounded number of choices; exhaustive() tries every set of
// them up to that number, random_run() draws long ones from a seed. After its last choice every run goes on without
// faults until nothing is left, and is judged by the oracle. Absent on purpose: files, clocks, processes
// (tests/sim/micro_main.cc, tools/micro.py).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/micro_memory.h"
#include "sim/micro_world.h"

namespace mlt::sim {

// One run: a scenario and what is chosen in it, by the number of the choice; all others are the default.
struct MicroRun {
  struct Step {
    std::uint32_t point = 0;
    MicroChoice choice;
    bool operator==(const Step&) const = default;
  };
  std::uint32_t scenario = 0;
  std::vector<Step> steps;

  // "17/4:drop,9:cancel=1": the scenario's number, and what is chosen at which choice.
  std::string text() const;
  // False if `text` is no run of a scenario there is. The scenario's name may stand for its number, which changes when
  // scenarios are added.
  static bool parse(const std::string& text, MicroRun& run);
};

struct MicroVerdict {
  std::string fault;  // empty: every rule held
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
  std::uint32_t depth = 2;                  // choices other than the default in a run
  std::uint32_t horizon = 80;               // none of them later than this one
  MicroActions actions = ~MicroActions{0};  // that may be chosen
  std::uint64_t replay_every = 1'000;  // so many runs: the run again from its beginning, which must go the same way
};

class Micro {
 public:
  Micro();

  // Every run of a scenario within the limits. `failed` is called for each that breaks a rule; false ends it.
  using Failed = std::function<bool(const MicroRun&, const std::string& fault)>;
  void exhaustive(std::uint32_t scenario, const MicroLimits& limits, const Failed& failed);
  // One run of choices drawn from a seed, its scenario too.
  MicroVerdict random_run(std::uint64_t seed, MicroActions actions, MicroRun& run);
  MicroVerdict replay(const MicroRun& run, const std::function<void(const TraceRecord&)>* trace = nullptr);
  // The shortest run found by leaving choices out and making them milder that still breaks a rule.
  MicroRun shrink(const MicroRun& run);

  const MicroTotals& totals() const { return totals_; }
  // What is being run: for whoever must say so when an assertion of the product ends the process.
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
  std::uint64_t steps_before_ = 0;  // of the world, when it was last brought to a point that was counted
  MicroTotals totals_;
};

}  // namespace mlt::sim
