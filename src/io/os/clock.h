// The real driver's clock: CLOCK_MONOTONIC in nanoseconds, the time scale of every `now` in this layer. Nothing else in
// src/io reads a clock.
#pragma once

#include <time.h>

#include "base/time.h"

namespace mlt::io {

inline base::TimeNs nanoseconds(const timespec& t) {
  return static_cast<base::TimeNs>(t.tv_sec) * base::kSecond + static_cast<base::TimeNs>(t.tv_nsec);
}

inline base::TimeNs monotonic_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);  // cannot fail: the clock exists and the pointer is valid
  return nanoseconds(t);
}

// The kernel stamps arrivals in wall-clock time, which may be set at any time: read again for every batch.
inline base::DurationNs monotonic_minus_realtime_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return monotonic_now() - nanoseconds(t);
}

}  // namespace mlt::io
