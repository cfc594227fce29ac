// Rate of the slowest port on the way to a peer, as this sender's packets find it: what is delivered while they queue.
// Flows that share the port share its rate.
//
// A sender that leaves the port idle at times delivers less than the port carries, so that without a queue more counts,
// and less does not. Not every queue is on the way there: what reply_wait.h leaves of a wait on the way back looks like
// one. So less counts little even with a queue: a full queue on the way there, now and then, outweighs it. Rate control
// has its own use of deliveries (delivery_rate.h). Absent on purpose: clocks, and what a queue is (timely.h).
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class PortRate {
 public:
  // A sample of the network time shows a queue, or none.
  void on_sample(bool is_queued) { all_queued_ = all_queued_ && is_queued; }
  // A window of deliveries ends with the newest sample, which begins the next.
  // RECOVERY R1.4.1: The port rate of a peer SHOULD be what is delivered in four windows of R1.2.12 in a row, if all
  //     their samples are at least T_low, or if it is more than the port rate that is known. More counts with
  //     weight 1/4, less with 1/32, the first with 1.
  void on_window(base::TimeNs now, std::uint64_t bytes, base::DurationNs elapsed_ns, bool is_queued) {
    bytes_ += bytes;
    elapsed_ns_ += elapsed_ns;
    if (++windows_ < kWindows) return;
    const double rate = static_cast<double>(bytes_) * 1e9 / static_cast<double>(elapsed_ns_);
    const double known = bytes_per_second(now);
    if (all_queued_ || (known > 0 && rate > known)) {
      const double weight = known > 0 ? (rate > known ? kRise : kFall) : 1;
      bytes_per_second_ = known + weight * (rate - known);
      measured_ns_ = now;
    }
    windows_ = 0;
    bytes_ = 0;
    elapsed_ns_ = 0;
    all_queued_ = is_queued;
  }
  // 0: nothing queued of late.
  double bytes_per_second(base::TimeNs now) const { return is_forgotten(now) ? 0 : bytes_per_second_; }

 private:
  static constexpr std::uint32_t kWindows = 4;
  static constexpr double kRise = 0.25;
  static constexpr double kFall = 0.03125;
  static constexpr base::DurationNs kForgottenNs = 10 * base::kSecond;

  bool is_forgotten(base::TimeNs now) const { return now - measured_ns_ > kForgottenNs; }

  // Of the measurement in progress.
  bool all_queued_ = false;
  std::uint32_t windows_ = 0;
  std::uint64_t bytes_ = 0;
  base::DurationNs elapsed_ns_ = 0;
  double bytes_per_second_ = 0;
  base::TimeNs measured_ns_ = 0;
};

}  // namespace mlt::core
