// End of a wait of a user thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace mlt::engine {

using SteadyTime = std::chrono::steady_clock::time_point;

// Empty if timeout_ns < 0: the wait has no end.
inline std::optional<SteadyTime> deadline_after(std::int64_t timeout_ns) {
  if (timeout_ns < 0) return std::nullopt;
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
}

}  // namespace mlt::engine
