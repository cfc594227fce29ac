// How long the replies of a peer wait on their way, and their jitter (R1.2.14 and R1.2.15 of RECOVERY.md). Where the
// interface of a host knows no classes, its replies wait behind the data that it sends itself: in a ring at every host.
// That is no queue of the data that they report. Rate control that took it for one would slow both directions down for
// the queue of either, and never find out which it is.
//
// A reply says when it was made, by its sender's clock. From then to its arrival it takes its way and the difference of
// two clocks; what exceeds the smallest of the last 100 to 200 ms is its wait. Clocks drift by less than the allowance
// meanwhile. Of a queue that is never empty for so long a part is missed: round trips then seem longer, never shorter.
//
// Where the network holds packets back (R1.2.14), the way there does so too, and shows it less: ACKs are further apart.
// Rate control knows how to live with both, or with none, so that jitter hides the wait except for a few packets.
//
// Absent on purpose: clocks, what a path is. One object per peer, of its Sender.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

// What the rate controller learns of a reply.
struct ReplyDelay {
  base::DurationNs wait_ns = 0;
  double jitter_ns = 0;
};

class ReplyWait {
 public:
  static constexpr base::DurationNs kReplyWindowNs = 100 * base::kMillisecond;
  static constexpr base::DurationNs kClockAllowanceNs = 20 * base::kMicrosecond;  // 100 ppm of two windows
  static constexpr double kReplyJitterMultiple = 50;
  static constexpr double kSurePackets = 15;
  static constexpr double kJitterWeight = 0.015625;  // of the newest reply, as of the newest sample (timely.h)
  static constexpr double kSteepFall = 0.95;

  // A reply that arrived at `arrival_ns` over `path`, and was made at `made_ns` of the peer's clock (0: unknown).
  // `sure_ns`: how much of its wait counts despite jitter.
  ReplyDelay on_reply(base::TimeNs arrival_ns, std::uint32_t path, std::uint32_t made_ns, base::DurationNs sure_ns) {
    if (made_ns == 0) return {0, jitter_ns_};
    const std::uint32_t way = static_cast<std::uint32_t>(arrival_ns) - made_ns;
    const base::DurationNs age = arrival_ns - window_start_ns_;
    if (window_start_ns_ == 0 || path != path_ || age > 2 * kReplyWindowNs) {
      path_ = path;
      older_min_ = newer_min_ = previous_way_ = way;
      window_start_ns_ = arrival_ns;
    } else if (age > kReplyWindowNs) {
      older_min_ = newer_min_;
      newer_min_ = way;
      window_start_ns_ = arrival_ns;
    }
    measure_jitter(way, made_ns);
    // RECOVERY R1.2.15: The wait is what the time from the making of the reply (4.5.3) to its arrival exceeds the
    //     smallest of the last 100 to 200 ms on its path, less 20 us.
    newer_min_ = after(newer_min_, way) ? way : newer_min_;
    const std::uint32_t min = after(older_min_, newer_min_) ? newer_min_ : older_min_;
    const base::DurationNs wait = std::max<base::DurationNs>(0, base::DurationNs{way - min} - kClockAllowanceNs);
    // RECOVERY R1.2.15: It MUST NOT subtract more than the wait less 50 times the jitter of replies and less the
    // largest
    //     run, or than the time of 15 packets at the current rate if that is more.
    const auto hidden = static_cast<base::DurationNs>(kReplyJitterMultiple * jitter_ns_ + largest_run_ns_);
    return {std::max(std::min(wait, sure_ns), wait - hidden), jitter_ns_};
  }

 private:
  void measure_jitter(std::uint32_t way, std::uint32_t made_ns) {
    const std::uint32_t apart = made_ns - previous_made_ns_;
    const double fall = after(previous_way_, way) ? static_cast<double>(previous_way_ - way) : 0.0;
    previous_way_ = way;
    previous_made_ns_ = made_ns;
    // RECOVERY R1.2.14: To it MUST be added the jitter of replies: the same of the time from the making of a reply to
    //     its arrival, and between the times at which replies were made.
    const double jitter = fall >= kSteepFall * static_cast<double>(apart) ? fall : 0.0;
    jitter_ns_ += kJitterWeight * (jitter - jitter_ns_);
    // RECOVERY R1.2.15: A run is the sum of consecutive falls that are jitter, and the largest loses 1/64 with every
    //     reply.
    run_ns_ = jitter > 0 ? run_ns_ + jitter : 0.0;
    largest_run_ns_ = std::max(run_ns_, (1 - kJitterWeight) * largest_run_ns_);
  }
  // Both are modulo 2^32, less than half of that apart.
  static bool after(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

  std::uint32_t path_ = 0;
  std::uint32_t older_min_ = 0;  // of the window before
  std::uint32_t newer_min_ = 0;
  std::uint32_t previous_way_ = 0;
  std::uint32_t previous_made_ns_ = 0;
  base::TimeNs window_start_ns_ = 0;
  double jitter_ns_ = 0;
  double run_ns_ = 0;
  double largest_run_ns_ = 0;
};

}  // namespace mlt::core
