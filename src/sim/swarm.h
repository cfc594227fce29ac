// Runs one seed's scenario from beginning to end and checks it. The same seed gives the same result, event for event.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/scenario.h"

namespace mlt::sim {

struct Verdict {
  std::string fault;  // empty: no rule was violated
  std::uint64_t events = 0;
  std::uint64_t hops = 0;
  std::uint64_t operations = 0;
  std::uint64_t completions = 0;
  std::uint64_t dropped = 0;
  std::uint64_t digest = 0;
  base::DurationNs virtual_ns = 0;
};

Verdict run_scenario(const Scenario& scenario, const std::function<void(const TraceRecord&)>& trace = nullptr);

// A line of a trace: time, rank, what happened; with the packet's fields where there is one.
std::string trace_line(const TraceRecord& record);

}  // namespace mlt::sim
