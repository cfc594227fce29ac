// Delivery rate to a peer, measured from its reports. While the sender exceeds it, this is the rate of the slowest port
// on the route. Like BBR's delivery rate (Cardwell et al., ACM Queue 2016), but over windows of time instead of per
// packet.
//
// The estimate is the larger of the last two windows, because a window may span a pause of the sender. After a pause
// that the sender knows of (on_resumed), the first report starts a new window. A flow that sends so little that no
// window ends soon gets no estimate, and the older one expires.
//
// Absent on purpose: clocks, the use of the rate (timely.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class DeliveryRate {
 public:
  static constexpr base::DurationNs kForgottenAfter = 8;  // in window lengths

  // The sender sends again after nothing was in flight.
  void on_resumed() { resumed_ = true; }
  // A report that arrived at `arrival_ns` acknowledges bytes for the first time.
  void on_delivered(base::TimeNs arrival_ns, std::uint64_t bytes) {
    newest_ns_ = std::max(newest_ns_, arrival_ns);
    window_bytes_ += bytes;
  }

  // A window that ended.
  struct Window {
    std::uint64_t bytes = 0;
    base::DurationNs elapsed_ns = 0;  // 0: none has
  };
  // After on_delivered(): ends the window if it is `length_ns` long, and returns it.
  Window end_window(base::DurationNs length_ns) {
    if (newest_ns_ - ended_ns_ > kForgottenAfter * length_ns) newer_ = older_ = 0;
    if (resumed_) {
      resumed_ = false;
      begin();
      return {};
    }
    const Window window{window_bytes_, newest_ns_ - start_ns_};
    if (window.elapsed_ns < length_ns || window.elapsed_ns <= 0) return {};
    older_ = newer_;
    newer_ = static_cast<double>(window.bytes) * 1e9 / static_cast<double>(window.elapsed_ns);
    ended_ns_ = newest_ns_;
    begin();
    return window;
  }

  // 0: unknown.
  double bytes_per_second() const { return std::max(older_, newer_); }

 private:
  void begin() {
    window_bytes_ = 0;
    start_ns_ = newest_ns_;
  }

  bool resumed_ = true;
  base::TimeNs newest_ns_ = 0;  // arrival of the newest report
  base::TimeNs start_ns_ = 0;   // of the window
  base::TimeNs ended_ns_ = 0;   // end of the last window
  std::uint64_t window_bytes_ = 0;
  double newer_ = 0;
  double older_ = 0;
};

}  // namespace mlt::core
