// TIMELY-like rate control, paper section 4.2.3, with the holes of its text filled (DESIGN.md section 4):
//  - below T_low, or with a falling round-trip time: rate + alpha;
//  - above T_high, whatever the gradient: rate * (1 - beta * (1 - T_high / rtt));
//  - between, with a rising round-trip time: rate * (1 - beta * gradient), gradient normalised by the base RTT.
// Thresholds are offsets from the smallest round trip seen, and never below a few packets' serialisation time at the
// current rate. Our own runs make a queue that is no congestion: packets of one run wait for each other wherever they
// are serialised. Their length in time is added to the thresholds and bounds what the gradient is measured by (TIMELY
// subtracts a segment's serialisation time from its round trip for the same reason). Starts at line rate. A decrease is
// made at most once per round trip: the samples of one flight tell of the same queue. Source: Mittal et al., "TIMELY",
// SIGCOMM 2015, algorithm 1.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/datagram.h"
#include "base/time.h"
#include "core/pacer.h"

namespace mlt::core {

// PROTOCOL 16.2.1: Durations, counts and weights MUST be those of this table where a clause names them.
struct TimelyConfig {
  double line_rate_bytes_per_second = 1.25e9;
  double min_rate_bytes_per_second = 0;  // 0: a thousandth of the line rate
  double alpha_bytes_per_second = 5e6;   // 40 Mbit/s
  double beta = 0.8;
  double gradient_weight = 0.3;             // of the newest difference in the smoothed one
  base::DurationNs low_offset_ns = 12'500;  // T_low  = base + max(this, low_packets at the current rate)
  base::DurationNs high_offset_ns = 125'000;
  double low_packets = 3;
  double high_packets = 30;
  std::uint32_t packet_bytes = 1'500;
  base::DurationNs run_ns = Pacer::kRunNs;  // longest run in time and in bytes
  std::uint32_t run_bytes = base::kMaxRunBytes;
  base::DurationNs base_window_ns = 10 * base::kSecond;  // the smallest round trip of this long counts as base
};

class Timely {
 public:
  explicit Timely(const TimelyConfig& config)
      : config_(config),
        min_rate_(config.min_rate_bytes_per_second > 0 ? config.min_rate_bytes_per_second
                                                       : config.line_rate_bytes_per_second / 1'000),
        // PROTOCOL 11.2.1: A connection starts at line rate: the interface's, or what the user says.
        rate_(config.line_rate_bytes_per_second) {}

  double rate_bytes_per_second() const { return rate_; }
  base::DurationNs base_rtt_ns() const { return base_rtt_ns_; }
  base::DurationNs low_threshold_ns() const { return threshold(config_.low_offset_ns, config_.low_packets); }
  base::DurationNs high_threshold_ns() const { return threshold(config_.high_offset_ns, config_.high_packets); }

  void on_rtt_sample(base::TimeNs now, base::DurationNs rtt_ns) {
    update_base(now, rtt_ns);
    if (previous_rtt_ns_ == 0) previous_rtt_ns_ = rtt_ns;
    const double difference = static_cast<double>(rtt_ns - previous_rtt_ns_);
    previous_rtt_ns_ = rtt_ns;
    // PROTOCOL 11.2.2: The gradient is the smoothed difference of consecutive samples (weight 0.3 for the newest),
    //     divided by the larger of base and run.
    smoothed_difference_ns_ += config_.gradient_weight * (difference - smoothed_difference_ns_);
    const double gradient =
        smoothed_difference_ns_ / static_cast<double>(std::max<base::DurationNs>(base_rtt_ns_, run_ns()));

    const base::DurationNs low = low_threshold_ns();
    const base::DurationNs high = high_threshold_ns();
    // PROTOCOL 11.2.4: If rtt > T_high, whatever the gradient: rate = rate * (1 - 0.8 * (1 - T_high / rtt)).
    if (rtt_ns > high) {
      decrease(now, rtt_ns, 1.0 - config_.beta * (1.0 - static_cast<double>(high) / static_cast<double>(rtt_ns)));
      // PROTOCOL 11.2.5: Else, if rtt < T_low or the gradient is negative: rate = rate + 40 Mbit/s.
    } else if (rtt_ns < low || gradient < 0) {
      set_rate(rate_ + config_.alpha_bytes_per_second);
      // PROTOCOL 11.2.6: Else, if the gradient is positive: rate = rate * (1 - 0.8 * min(gradient, 1)).
    } else if (gradient > 0) {
      decrease(now, rtt_ns, 1.0 - config_.beta * std::min(gradient, 1.0));
    }
  }

 private:
  base::DurationNs threshold(base::DurationNs offset_ns, double packets) const {
    const double bytes = packets * config_.packet_bytes;
    const base::DurationNs serialised = base::serialisation_ns(static_cast<std::uint64_t>(bytes), rate_);
    // PROTOCOL 11.2.3: T_low is base + run + max(12.5 us, 3 packets at the current rate), and T_high is base + run +
    //     max(125 us, 30 packets at the current rate) ...
    return base_rtt_ns_ + run_ns() + std::max(offset_ns, serialised);
  }

  // How long the packets of one run stand in line behind each other, on an idle network too.
  base::DurationNs run_ns() const { return std::min(config_.run_ns, base::serialisation_ns(config_.run_bytes, rate_)); }

  // The minimum over the last one to two windows: two buckets, the older one dropped when the newer is full.
  void update_base(base::TimeNs now, base::DurationNs rtt_ns) {
    if (now - bucket_start_ns_ > config_.base_window_ns) {
      older_min_ns_ = newer_min_ns_;
      newer_min_ns_ = rtt_ns;
      bucket_start_ns_ = now;
    }
    newer_min_ns_ = newer_min_ns_ == 0 ? rtt_ns : std::min(newer_min_ns_, rtt_ns);
    base_rtt_ns_ = older_min_ns_ == 0 ? newer_min_ns_ : std::min(older_min_ns_, newer_min_ns_);
  }

  void decrease(base::TimeNs now, base::DurationNs rtt_ns, double factor) {
    // PROTOCOL 11.2.7: The rate MUST NOT be decreased twice within a round trip, because the samples of one flight tell
    //     of the same queue.
    if (now < no_decrease_before_ns_) return;
    no_decrease_before_ns_ = now + rtt_ns;
    set_rate(rate_ * factor);
  }

  // PROTOCOL 11.2.8: The rate stays between a thousandth of the line rate and the line rate.
  void set_rate(double rate) { rate_ = std::clamp(rate, min_rate_, config_.line_rate_bytes_per_second); }

  TimelyConfig config_;
  double min_rate_;
  double rate_;
  double smoothed_difference_ns_ = 0;
  base::DurationNs previous_rtt_ns_ = 0;
  base::DurationNs base_rtt_ns_ = 0;
  base::DurationNs newer_min_ns_ = 0;
  base::DurationNs older_min_ns_ = 0;
  base::TimeNs bucket_start_ns_ = 0;
  base::TimeNs no_decrease_before_ns_ = 0;
};

}  // namespace mlt::core
