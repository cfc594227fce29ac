// Turns a rate into times: when may the next run leave? A driver that wakes late is given back at most `kCreditNs` of
// unused time, so that the mean rate holds without ever sending a longer burst.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class Pacer {
 public:
  // Waking a thread costs tens of microseconds; twice a run's length covers it.
  static constexpr base::DurationNs kCreditNs = 200 * base::kMicrosecond;
  // At low rates that is no packet's time. A thread that waits for its core comes milliseconds late, and a port that
  // holds some packets of each flow must not run dry meanwhile.
  static constexpr std::uint64_t kCreditBytes = 7'500;
  // A run is never longer than what the rate sends in this time (DESIGN.md section 4).
  static constexpr base::DurationNs kRunNs = 100 * base::kMicrosecond;

  base::TimeNs next_ns() const { return next_ns_; }
  bool may_send(base::TimeNs now) const { return now >= next_ns_; }

  // RECOVERY R1.3.2: A sender that is late MUST take back its unused time, but at most 200 us of it, or that of 7,500
  //     bytes if it is more, so that the mean rate holds and no burst grows.
  void on_sent(base::TimeNs now, std::uint64_t bytes, double rate_bytes_per_second) {
    const base::DurationNs credit_ns = std::max(kCreditNs, base::serialisation_ns(kCreditBytes, rate_bytes_per_second));
    // RECOVERY R1.3.1: After a run of n bytes the next MUST NOT leave before n / rate later, over all transfers to the
    //     peer, but for the credit of R1.3.2.
    next_ns_ = std::max(next_ns_, now - credit_ns) + base::serialisation_ns(bytes, rate_bytes_per_second);
  }

  // Longest run in bytes at this rate; the caller rounds to whole datagrams, one at least.
  static std::uint64_t run_bytes(double rate_bytes_per_second) {
    return static_cast<std::uint64_t>(rate_bytes_per_second * static_cast<double>(kRunNs) * 1e-9);
  }

 private:
  base::TimeNs next_ns_ = 0;
};

}  // namespace mlt::core
