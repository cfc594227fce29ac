// A host's own clock: it starts at another time and runs slightly fast or slow.
#pragma once

#include "base/time.h"

namespace mlt::sim {

struct Clock {
  base::DurationNs offset_ns = 0;
  std::int64_t drift_ppb = 0;  // parts per billion; crystals are within 100,000

  base::TimeNs local(base::TimeNs virtual_ns) const {
    if (virtual_ns == base::kNever) return base::kNever;
    return virtual_ns + offset_ns + virtual_ns / kScale * drift_ppb + virtual_ns % kScale * drift_ppb / kScale;
  }
  // The first virtual time at which this clock shows `local_ns` or later.
  base::TimeNs virtual_time(base::TimeNs local_ns) const {
    if (local_ns == base::kNever) return base::kNever;
    base::TimeNs guess = local_ns - offset_ns;
    for (int i = 0; i < 4; ++i) guess += local_ns - local(guess);  // converges: the drift is small
    while (local(guess) < local_ns) ++guess;
    while (guess > 0 && local(guess - 1) >= local_ns) --guess;
    return guess;
  }

 private:
  static constexpr std::int64_t kScale = 1'000'000'000;
};

}  // namespace mlt::sim
