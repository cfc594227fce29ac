// How much arrives at a peer, by its own reports: the rate that the slowest port on the way carries of us, as long as
// we send more than it. BBR's delivery rate (Cardwell et al., ACM Queue 2016), over windows of time instead of per
// packet.
//
// The larger of the last two windows counts, as a window may lie across a pause of the sender. After a pause of which
// the sender knows (on_resumed) a window begins anew, with the first report. Absent on purpose: clocks, what the rate
// is used for (timely.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class DeliveryRate {
 public:
  // Something is sent, and nothing was in flight.
  void on_resumed() { resumed_ = true; }
  // The peer reports bytes that it was not known to have.
  void on_delivered(std::uint64_t bytes) { window_bytes_ += bytes; }

  // At every report, after on_delivered(): true if a window of `length_ns` at least ends here.
  bool end_window(base::TimeNs now, base::DurationNs length_ns) {
    if (resumed_) {
      resumed_ = false;
      begin(now);
      return false;
    }
    const base::DurationNs elapsed = now - window_start_ns_;
    if (elapsed < length_ns || elapsed <= 0) return false;
    older_ = newer_;
    newer_ = static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(elapsed);
    begin(now);
    return true;
  }

  // 0: no window has ended yet.
  double bytes_per_second() const { return std::max(older_, newer_); }

 private:
  void begin(base::TimeNs now) {
    window_bytes_ = 0;
    window_start_ns_ = now;
  }

  bool resumed_ = true;
  base::TimeNs window_start_ns_ = 0;
  std::uint64_t window_bytes_ = 0;
  double newer_ = 0;
  double older_ = 0;
};

}  // namespace mlt::core
