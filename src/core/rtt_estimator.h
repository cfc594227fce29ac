// Smoothed round trip and its variation (RFC 6298), and the timeout for unanswered control-class packets. The min
// timeout is far below TCP's 200 ms, because microseconds matter here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class RttEstimator {
 public:
  // Before the first sample: longer than any rack's round trip, short enough that an early loss costs little.
  static constexpr base::DurationNs kInitialNs = 2 * base::kMillisecond;
  // Two thread wake-ups on a busy host; a shorter timer would repeat probes whose replies are in flight.
  static constexpr base::DurationNs kMinTimeoutNs = 250 * base::kMicrosecond;
  // Slower repetition brings no benefit: 1,000 waiting transfers send at most 20,000 probes per second. On a long path
  // this is less than a round trip, and the limit is a multiple of that.
  static constexpr base::DurationNs kMaxTimeoutNs = 50 * base::kMillisecond;
  static constexpr base::DurationNs kMaxTimeoutRoundTrips = 4;
  static constexpr base::DurationNs kMaxLongPathTimeoutNs = 2 * base::kSecond;
  // Fewer may all be late by chance.
  static constexpr std::uint32_t kLongPathSamples = 8;
  // Where nothing is lost, a late reply comes from a process that waits for its CPU or has a ring full of other work:
  // many time slices. Probes would only add to its work. The max is below the times in receiver.cc.
  static constexpr base::DurationNs kMinLosslessTimeoutNs = 100 * base::kMillisecond;
  static constexpr base::DurationNs kMaxLosslessTimeoutNs = 800 * base::kMillisecond;

  RttEstimator() = default;
  // `lossless`: the path has flow control of its own.
  explicit RttEstimator(bool lossless) : lossless_(lossless) {}

  void on_sample(base::DurationNs rtt_ns) {
    if (smoothed_ns_ == 0) {
      smoothed_ns_ = rtt_ns;
      variation_ns_ = rtt_ns / 2;
    } else {
      const base::DurationNs error = rtt_ns > smoothed_ns_ ? rtt_ns - smoothed_ns_ : smoothed_ns_ - rtt_ns;
      // RECOVERY R1.1.1: The smoothed round trip and its variation MUST follow RFC 6298 from samples of the reply time:
      //     weights 1/8 and 1/4, the first sample and half of it to begin with.
      variation_ns_ += (error - variation_ns_) / 4;
      smoothed_ns_ += (rtt_ns - smoothed_ns_) / 8;
    }
    min_ns_ = min_ns_ == 0 ? rtt_ns : std::min(min_ns_, rtt_ns);
    if (samples_ < kLongPathSamples) ++samples_;
  }

  // The next sample is the average, as the first one was; the smallest is kept.
  void restart_average() { smoothed_ns_ = variation_ns_ = 0; }

  // Counted up to 8.
  std::uint32_t samples() const { return samples_; }
  base::DurationNs smoothed_ns() const { return smoothed_ns_; }
  base::DurationNs variation_ns() const { return variation_ns_; }
  base::DurationNs min_ns() const { return min_ns_; }

  // Time to wait for a reply: the base timeout (`repeats` = 0), doubled for each repetition.
  base::DurationNs timeout_ns(std::uint32_t repeats) const {
    // RECOVERY R1.1.2: The retransmission timeout MUST be the smoothed round trip plus four variations, but at least
    //     250 us, and 2 ms before the first sample.
    const base::DurationNs once = smoothed_ns_ == 0 ? kInitialNs : smoothed_ns_ + 4 * variation_ns_;
    // RECOVERY R1.1.3: The retransmission timeout MUST double with every repetition, up to 50 ms, or four times the
    //     smallest of eight samples or more if that is more, but at most 2 s.
    // The smallest, because samples of a busy host are no reason to wait longer for a lost reply.
    const base::DurationNs long_path_ns = samples_ < kLongPathSamples ? 0 : kMaxTimeoutRoundTrips * min_ns_;
    // RECOVERY R1.1.4: To a peer that shares memory, the retransmission timeout MUST be at least 100 ms, and double up
    //     to 800 ms.
    const base::DurationNs min = lossless_ ? kMinLosslessTimeoutNs : kMinTimeoutNs;
    const base::DurationNs max =
        lossless_ ? kMaxLosslessTimeoutNs : std::clamp(long_path_ns, kMaxTimeoutNs, kMaxLongPathTimeoutNs);
    return std::min(std::max(once, min) << std::min<std::uint32_t>(repeats, 10), max);
  }

 private:
  bool lossless_ = false;
  base::DurationNs smoothed_ns_ = 0;
  base::DurationNs variation_ns_ = 0;
  base::DurationNs min_ns_ = 0;
  std::uint32_t samples_ = 0;  // up to kLongPathSamples
};

}  // namespace mlt::core
