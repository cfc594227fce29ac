// How long a thread that waits polls before it sleeps: as long as waits were lately, if they were short enough to gain
// by it. The window grows and shrinks as the kernel's halt polling does (Documentation/virt/kvm/halt-polling.rst).
//
// Nobody polls where runnable threads outnumber the CPUs: waits are long there, so that the window closes by itself,
// and a thread whose CPU the scheduler gave to another one (an involuntary switch) does not poll for a while. The count
// of the machine's runnable threads (/proc/loadavg) would also count those of other priorities and other containers.
// Not thread-safe: with the loop's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::engine {

// Whether others want the CPU of the calling thread; asks the system every millisecond at most.
class Crowd {
 public:
  static constexpr base::DurationNs kLookNs = base::kMillisecond;
  static constexpr base::DurationNs kRestNs = 8 * base::kMillisecond;

  bool is_there(base::TimeNs now);

 private:
  long switches_ = -1;
  long thread_ = 0;  // whose they are
  base::TimeNs next_look_ = 0;
  base::TimeNs rests_until_ = 0;
};

class AdaptiveSpin {
 public:
  static constexpr base::DurationNs kFirstNs = 10 * base::kMicrosecond;
  // After so many waits without polling, so many with it: both sides of an exchange have to poll to see it be short.
  static constexpr std::uint32_t kRestWaits = 64;
  static constexpr std::uint32_t kTrialWaits = 8;

  explicit AdaptiveSpin(base::DurationNs bound_ns) : bound_ns_(bound_ns), window_ns_(bound_ns) {}

  // Whether to poll on, `idle_ns` after there was nothing more to do.
  bool goes_on(base::TimeNs now, base::DurationNs idle_ns) { return idle_ns < window_ns_ && !crowd_.is_there(now); }

  // There is something to do again. `polled`: goes_on() said yes; `slept`: polling did not last until now.
  void ended(base::DurationNs idle_ns, bool polled, bool slept) {
    if (bound_ns_ == 0) return;
    if (polled) ++(slept ? lost_ : won_);
    if (idle_ns <= bound_ns_) {
      if (idle_ns > window_ns_) window_ns_ = std::min(bound_ns_, std::max(kFirstNs, 2 * window_ns_));
      rests_ = 0;
      return;
    }
    if (trials_ > 0 && --trials_ > 0) return;
    window_ns_ = window_ns_ / 2 < kFirstNs / 2 ? 0 : window_ns_ / 2;
    if (window_ns_ > 0 || ++rests_ < kRestWaits) return;
    rests_ = 0;
    trials_ = kTrialWaits;
    window_ns_ = bound_ns_;
  }

  base::DurationNs window_ns() const { return window_ns_; }
  std::uint64_t won() const { return won_; }
  std::uint64_t lost() const { return lost_; }

 private:
  base::DurationNs bound_ns_;
  base::DurationNs window_ns_;
  std::uint32_t rests_ = 0;
  std::uint32_t trials_ = 0;
  std::uint64_t won_ = 0;
  std::uint64_t lost_ = 0;
  Crowd crowd_;
};

}  // namespace mlt::engine
