// The accidents of a scenario, as they happen to a simulator's hosts and network.
//
// Absent on purpose: when (the run's), and what else the run must know of them. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/scenario.h"
#include "sim/simulator.h"

namespace mlt::sim {

class Accidents {
 public:
  // Between connections of `connect_spread_ns` apart on both sides, where they are set up again: not where ranks
  // connect on first use, and, without `restarts`, not after a process has died.
  Accidents(Simulator& simulator, const Scenario& scenario, bool restarts)
      : simulator_(simulator), scenario_(scenario), restarts_(restarts) {}

  // Instead of the simulator's own.
  std::function<void(std::uint16_t host, base::DurationNs length_ns)> pause;
  // A link drops what is longer than this from now on.
  std::function<void(std::uint32_t mtu_bytes)> on_short_link = [](std::uint32_t) {};

  void begin(const Accident& accident);
  void end(const Accident& accident);
  // Ends all impairments of the network for good.
  void heal();

 private:
  void slow_down(const Accident& accident);

  Simulator& simulator_;
  const Scenario& scenario_;
  const bool restarts_;
};

}  // namespace mlt::sim
