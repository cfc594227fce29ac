// Time and rate, as plain integers with their unit in the name.
//
// The core never reads a clock: every entry point takes `now`. Times are nanoseconds on any monotonic scale; the two
// drivers use CLOCK_MONOTONIC and virtual time. Absent on purpose: clocks, calendars, conversions to wall time.
#pragma once

#include <cstdint>
#include <limits>

namespace mlt::base {

using TimeNs = std::int64_t;      // a point on the driver's monotonic scale
using DurationNs = std::int64_t;  // a difference of two points

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
inline constexpr DurationNs kMicrosecond = 1'000;
inline constexpr DurationNs kMillisecond = 1'000'000;
inline constexpr DurationNs kSecond = 1'000'000'000;

// Time that `bytes` take at `rate_bytes_per_second`, which must be positive.
constexpr DurationNs serialisation_ns(std::uint64_t bytes, double rate_bytes_per_second) {
  return static_cast<DurationNs>(static_cast<double>(bytes) * 1e9 / rate_bytes_per_second);
}

// A saturating sum: kNever stays kNever.
constexpr TimeNs after(TimeNs now, DurationNs delay_ns) { return delay_ns > kNever - now ? kNever : now + delay_ns; }

}  // namespace mlt::base
