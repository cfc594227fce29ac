// Whether a queue stands on the way to a peer that this sender's rate control cannot empty: TCP that fills a deep
// buffer until it loses (cubic) never lets it drain. A sender that takes all of its delay for its own would give way
// for ever.
//
// It asks before it believes: after every sample of a while has shown the queue, the sender yields, at a quarter of its
// rate for two round trips. Senders of this transport that share a port began together, yield together, and find the
// base again; what stands all the same is another's, and counts with the base as long as it stands. Absent on purpose:
// rates and thresholds (timely.h), clocks.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace mlt::core {

class StandingQueue {
 public:
  // RECOVERY R1.2.16: A sender SHOULD take a queue as standing when no rtt was below base and 2 ms for 32 round trips,
  //     at least 250 ms, in which samples came.
  static constexpr base::DurationNs kDelayNs = 2 * base::kMillisecond;
  static constexpr int kRoundTrips = 32;
  static constexpr base::DurationNs kMinNs = 250 * base::kMillisecond;
  static constexpr int kYieldRoundTrips = 2;

  // A network time of data. `base`: the smallest of the last seconds.
  void on_sample(base::TimeNs now, base::DurationNs rtt_ns, base::DurationNs base_ns) {
    const base::DurationNs passed = std::clamp<base::DurationNs>(now - sampled_ns_, 0, rtt_ns);
    sampled_ns_ = now;
    if (rtt_ns < base_ns + kDelayNs) {
      *this = StandingQueue();
      sampled_ns_ = now;
      return;
    }
    if (yields_until_ns_ > 0) return end_yield(now, rtt_ns);
    if (floor_ns_ > 0) floor_ns_ = std::min(floor_ns_, rtt_ns);
    stood_ns_ += passed;
    if (stood_ns_ < std::max(kRoundTrips * rtt_ns, kMinNs)) return;
    // RECOVERY R1.2.16: It SHOULD then send at a quarter of the rate for two round trips.
    yields_until_ns_ = base::after(now, kYieldRoundTrips * rtt_ns);
    emptied_from_ns_ = base::after(now, rtt_ns);
    smallest_ns_ = 0;
  }

  bool is_yielding(base::TimeNs now) const { return now < yields_until_ns_; }
  // What counts as base at least; 0: no queue of another stands.
  base::DurationNs floor_ns() const { return floor_ns_; }

 private:
  // The first round trip of a yield reports the queue of before.
  void end_yield(base::TimeNs now, base::DurationNs rtt_ns) {
    if (now >= emptied_from_ns_ && now - rtt_ns < yields_until_ns_) {
      smallest_ns_ = smallest_ns_ == 0 ? rtt_ns : std::min(smallest_ns_, rtt_ns);
    }
    if (now < yields_until_ns_) return;
    yields_until_ns_ = 0;
    stood_ns_ = 0;
    // RECOVERY R1.2.16: The smallest rtt of the second round trip counts as base until it yields again, a smaller one
    //     comes, or one is below the true base and 2 ms.
    if (smallest_ns_ > 0) floor_ns_ = smallest_ns_;
  }

  base::TimeNs sampled_ns_ = 0;
  base::DurationNs stood_ns_ = 0;     // with samples
  base::TimeNs yields_until_ns_ = 0;  // 0: does not yield
  base::TimeNs emptied_from_ns_ = 0;
  base::DurationNs smallest_ns_ = 0;  // of this yield
  base::DurationNs floor_ns_ = 0;
};

}  // namespace mlt::core
