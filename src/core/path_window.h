// How many bytes may be in flight to a peer (section 6.3 of PROTOCOL.md). The peer offers a window that its receive
// buffer holds, whatever it is doing. A path with a longer round trip than that fills at the current rate carries more:
// the window grows there, as in slow start, by what is acknowledged of a full window.
//
// Growth stops at twice the product of rate and base round trip: what a slow host or a queue adds to round trips makes
// no window larger. It ends with a lost round, and wherever the rate controller slows down, the product follows.
//
// Invariants: at least the offered window, and at most the larger of that and the configured limit. Absent on purpose:
// what is in flight (PathSpray), phases and timers of a full window (probe_state.h). Owned by a peer, used by one
// thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class PathWindow {
 public:
  // Of the product of rate and round trip: acknowledgements come in groups, and both hosts may be a little late.
  static constexpr double kProducts = 2;

  PathWindow() = default;
  PathWindow(std::uint64_t offered_bytes, std::uint64_t max_bytes)
      : offered_bytes_(offered_bytes), max_bytes_(max_bytes), grown_bytes_(offered_bytes) {}

  std::uint64_t bytes() const { return std::max(offered_bytes_, std::min(grown_bytes_, useful_bytes_)); }

  // The next batch does not fit.
  void on_full() { full_bytes_ = bytes(); }
  // A report acknowledged this many bytes for the first time. `base_rtt_ns`: 0 if it is not known yet.
  void on_report(std::uint64_t delivered_bytes, double rate_bytes_per_second, base::DurationNs base_rtt_ns) {
    // PROTOCOL 6.3.7: A sender MAY use a larger window than the peer offered, up to twice the product of the rate
    //     (R1.2) and base, the smallest round trip (R1.2), and up to a limit that its user sets.
    const double products = kProducts * rate_bytes_per_second * static_cast<double>(base_rtt_ns) * 1e-9;
    useful_bytes_ = products < static_cast<double>(max_bytes_) ? static_cast<std::uint64_t>(products) : max_bytes_;
    // PROTOCOL 6.3.8: A window MUST grow only by what is newly acknowledged of a full window, and MUST lose half of
    // what
    //     it has grown with every lost round (R1.2.13).
    const std::uint64_t more = std::min(delivered_bytes, full_bytes_);
    full_bytes_ -= more;
    if (grown_bytes_ < useful_bytes_) grown_bytes_ = std::min(grown_bytes_ + more, useful_bytes_);
  }

  void on_round_lost() {
    if (grown_bytes_ > offered_bytes_) grown_bytes_ -= (grown_bytes_ - offered_bytes_) / 2;
  }

 private:
  std::uint64_t offered_bytes_ = 0;
  std::uint64_t max_bytes_ = 0;
  std::uint64_t grown_bytes_ = 0;   // at least offered_bytes_
  std::uint64_t full_bytes_ = 0;    // of the window when it was full last, not acknowledged yet
  std::uint64_t useful_bytes_ = 0;  // by rate and round trip, up to max_bytes_
};

}  // namespace mlt::core
