// Smoothed round trip and its variation (RFC 6298's filter), and the time after which an unanswered control datagram is
// sent again. Microseconds matter here, so the floor is far below TCP's 200 ms.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class RttEstimator {
 public:
  // Before the first sample: longer than any rack's round trip, short enough that a first loss costs little.
  static constexpr base::DurationNs kInitialNs = 2 * base::kMillisecond;
  // Two thread wake-ups on a busy host; a shorter timer would only repeat what is being answered.
  static constexpr base::DurationNs kMinTimeoutNs = 250 * base::kMicrosecond;
  // Beyond it repeating more slowly helps nobody; 1,000 waiting transfers send 20,000 probes a second at most.
  static constexpr base::DurationNs kMaxTimeoutNs = 50 * base::kMillisecond;

  void on_sample(base::DurationNs rtt_ns) {
    if (smoothed_ns_ == 0) {
      smoothed_ns_ = rtt_ns;
      variation_ns_ = rtt_ns / 2;
    } else {
      const base::DurationNs error = rtt_ns > smoothed_ns_ ? rtt_ns - smoothed_ns_ : smoothed_ns_ - rtt_ns;
      // RECOVERY R1.1.1: The smoothed round trip and its variation MUST follow RFC 6298 from samples of the answer
      //     time: weights 1/8 and 1/4, the first sample and half of it to begin with.
      variation_ns_ += (error - variation_ns_) / 4;
      smoothed_ns_ += (rtt_ns - smoothed_ns_) / 8;
    }
    min_ns_ = min_ns_ == 0 ? rtt_ns : std::min(min_ns_, rtt_ns);
  }

  base::DurationNs smoothed_ns() const { return smoothed_ns_; }
  base::DurationNs variation_ns() const { return variation_ns_; }
  base::DurationNs min_ns() const { return min_ns_; }

  // Time to wait for an answer that was not repeated yet (`repeats` = 0), then doubling.
  base::DurationNs timeout_ns(std::uint32_t repeats) const {
    // RECOVERY R1.1.2: The retransmission timeout MUST be the smoothed round trip plus four variations, 2 ms before the
    //     first sample, and 250 us at least.
    const base::DurationNs once = smoothed_ns_ == 0 ? kInitialNs : smoothed_ns_ + 4 * variation_ns_;
    // RECOVERY R1.1.3: The retransmission timeout MUST double with every repetition, up to 50 ms.
    return std::min(std::max(once, kMinTimeoutNs) << std::min<std::uint32_t>(repeats, 10), kMaxTimeoutNs);
  }

 private:
  base::DurationNs smoothed_ns_ = 0;
  base::DurationNs variation_ns_ = 0;
  base::DurationNs min_ns_ = 0;
};

}  // namespace mlt::core
