// End of a wait of a user thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace mlt::engine {

using SteadyTime = std::chrono::steady_clock::time_point;

// Empty if timeout_ns < 0, or beyond what the clock can express: the wait has no end.
inline std::optional<SteadyTime> deadline_after(std::int64_t timeout_ns) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds timeout(timeout_ns);
  if (timeout_ns < 0 || timeout > SteadyTime::max() - now) return std::nullopt;
  return now + timeout;
}

}  // namespace mlt::engine
