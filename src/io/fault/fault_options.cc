#include "io/fault/fault_options.h"

#include <string>

namespace mlt::io {

OsError validate(const FaultOptions& options) {
  const struct {
    const char* name;
    double value;
  } probabilities[] = {
      {"drop", options.drop},
      {"duplicate", options.duplicate},
      {"reorder", options.reorder},
      {"corrupt", options.corrupt},
      {"delay", options.delay},
      {"burst_enter", options.burst_enter},
      {"burst_leave", options.burst_leave},
      {"burst_drop", options.burst_drop},
  };
  for (const auto& [name, value] : probabilities) {
    if (value >= 0 && value <= 1) continue;  // false for a NaN, too
    return bad_argument("fault option " + std::string(name) + " is " + std::to_string(value) +
                        ", but a probability lies in [0, 1].");
  }
  if (options.burst_enter > 0 && options.burst_leave <= 0) {
    return bad_argument("fault option burst_leave is 0, so that a burst would never end; give a positive probability.");
  }
  const struct {
    const char* name;
    base::DurationNs value;
  } times[] = {
      {"reorder_hold_ns", options.reorder_hold_ns},
      {"delay_ns", options.delay_ns},
      {"delay_jitter_ns", options.delay_jitter_ns},
  };
  for (const auto& [name, value] : times) {
    if (value >= 0) continue;
    return bad_argument("fault option " + std::string(name) + " is " + std::to_string(value) +
                        ", but a time is 0 or more nanoseconds.");
  }
  const bool holds = options.reorder > 0 || options.delay > 0;
  if (options.reorder > 0 && options.reorder_distance == 0) {
    return bad_argument("fault option reorder_distance is 0, so that nothing would be reordered; give 1 or more.");
  }
  if (holds && (options.holding_datagrams == 0 || options.holding_datagram_bytes == 0)) {
    return bad_argument(
        "fault options holding_datagrams and holding_datagram_bytes must be positive where datagrams "
        "are delayed or reordered.");
  }
  return {};
}

}  // namespace mlt::io
