// Adaptive spinning: how long a waiting thread polls before it sleeps. It polls about as long as recent waits lasted,
// if they were short enough to benefit. The window grows and shrinks like the kernel's halt polling
// (Documentation/virt/kvm/halt-polling.rst).
//
// No thread polls while runnable threads outnumber the CPUs: waits are long then, so that the window closes by itself.
// A thread that lost its CPU while it polled does not poll for a while, nor one whose polling its peer waits for: where
// the kernel put the woken peer behind the polling thread, on its CPU, the reply comes as soon as that thread sleeps.
// That while doubles where the same happens again soon: each try costs the others, often the peers, a time slice.
// The host's count of runnable threads (/proc/loadavg) would also include those of other priorities and other
// containers. Not thread-safe: requires the loop's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::engine {

// Whether other threads compete for the CPU of the thread that polls: then the time between two of its polls is long.
// Makes no system call. Involuntary context switches alone do not show it: the brief turns of the parked I/O threads
// cause a thousand of them per second.
class Crowd {
 public:
  // Longer than the turn of an I/O thread, shorter than a time slice of the scheduler.
  static constexpr base::DurationNs kLostCpuNs = 500 * base::kMicrosecond;
  static constexpr base::DurationNs kRestNs = 8 * base::kMillisecond;
  // A rest is twice as long as the last one if that ended less than kSoon of its lengths ago.
  static constexpr base::DurationNs kMaxRestNs = 1024 * base::kMillisecond;
  static constexpr int kSoon = 4;

  // Whether to poll at `now`. `again`: the thread polled since its last work.
  bool is_there(base::TimeNs now, bool again) {
    if (is_due_ || (again && has_lost_cpu(now))) begin_rest(now);
    is_due_ = false;
    polled_at_ = now;
    return now < rests_until_;
  }

  // The thread polled until now, and work has arrived.
  void on_work(base::TimeNs now) {
    if (has_lost_cpu(now)) rest();
  }

  // Rests from the next poll on.
  void rest() { is_due_ = true; }

 private:
  bool has_lost_cpu(base::TimeNs now) const { return now - polled_at_ > kLostCpuNs; }

  void begin_rest(base::TimeNs now) {
    rest_ns_ = now - rests_until_ < kSoon * rest_ns_ ? std::min(2 * rest_ns_, kMaxRestNs) : kRestNs;
    rests_until_ = now + rest_ns_;
  }

  base::TimeNs polled_at_ = 0;
  base::TimeNs rests_until_ = 0;
  base::DurationNs rest_ns_ = kRestNs;
  bool is_due_ = false;
};

class AdaptiveSpin {
 public:
  static constexpr base::DurationNs kFirstNs = 10 * base::kMicrosecond;
  // After kRestWaits waits without polling, kTrialWaits waits with it. One would do if the peer were awake.
  static constexpr std::uint32_t kRestWaits = 64;
  static constexpr std::uint32_t kTrialWaits = 4;
  // Max time from a sleep to the reply of a peer that waited for this CPU.
  static constexpr base::DurationNs kReplyNs = 150 * base::kMicrosecond;
  // End polling for a while at this count: such a wait counts 2, and one that polling won takes 1 off.
  static constexpr std::uint32_t kHindered = 6;

  explicit AdaptiveSpin(base::DurationNs bound_ns) : bound_ns_(bound_ns), window_ns_(bound_ns) {}

  // Waits do not poll while `crowded`: so many ranks share the CPUs that a thread that polls delays its peers.
  void set_crowded(bool crowded) { crowded_ = crowded; }

  // Whether to continue polling, `idle_ns` after the last work was done. `again`: it continued at the last call, which
  // was no longer ago.
  bool goes_on(base::TimeNs now, base::DurationNs idle_ns, bool again) {
    return !crowded_ && idle_ns < window_ns_ && !crowd_.is_there(now, again);
  }

  // Ends a wait at `now`: work has arrived. `polled`: goes_on() returned true; `slept`: polling ended before that.
  void ended(base::TimeNs now, base::DurationNs idle_ns, bool polled, bool slept) {
    if (bound_ns_ == 0 || crowded_) return;
    if (polled) {
      // Where others compete for the CPU, most of what a thread waits for comes while they have it.
      if (!slept) crowd_.on_work(now);
      ++(slept ? lost_ : won_);
      count_hindrance(idle_ns, slept);
    }
    last_idle_ns_ = idle_ns;
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
  // A wait that polling as long as the last wait did not end, but a sleep did, soon.
  void count_hindrance(base::DurationNs idle_ns, bool slept) {
    if (!slept) {
      if (hindrances_ > 0) --hindrances_;
      return;
    }
    if (last_idle_ns_ > window_ns_ || idle_ns < window_ns_ || idle_ns > window_ns_ + kReplyNs) return;
    hindrances_ += 2;
    if (hindrances_ < kHindered) return;
    hindrances_ = 0;
    crowd_.rest();
  }

  bool crowded_ = false;
  base::DurationNs bound_ns_;
  base::DurationNs window_ns_;
  base::DurationNs last_idle_ns_ = 0;
  std::uint32_t hindrances_ = 0;
  std::uint32_t rests_ = 0;
  std::uint32_t trials_ = 0;
  std::uint64_t won_ = 0;
  std::uint64_t lost_ = 0;
  Crowd crowd_;
};

}  // namespace mlt::engine
