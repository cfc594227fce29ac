// Rate control of one peer: TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1; paper section 4.2.3), with the rules of
// R1.2 of RECOVERY.md. It takes round trips and delivery rates, and yields a rate in bytes of header and payload per
// second. Hyper-active increase is an option.
//
// Departures from both papers, and why:
// - Between the thresholds, the error against a reference queue joins the gradient. A pure 1 - beta * gradient is
// stable at every queue length and every split (Zhu et al., "ECN or Delay", CoNEXT 2016, section 4).
// - The effect of a sample is scaled by the fraction of a round trip since the last one. ACKs come every ten packets,
// so faster flows would gain more.
// - Alpha follows the queueing delay: a fixed one is too small for a fast port and too large for a slow one behind a
// fast NIC.
// - The delivery rate (delivery_rate.h) bounds decreases, and only them: round trips show a queue of a far slower port
// too late, and a flow that sends little or loses much must not be limited.
// - A slowed flow measures the round trip of the control class (base_sample_due), because a flow that starts while a
// queue persists takes it for the base.
// - The sender's own batches and jitter are not queues: both are added to the thresholds.
// - What a reply waits for on its way back is no queue either (reply_wait.h).
// - A queue that stands whatever this sender does is that of others, who would starve it (standing_queue.h).
//
// Weakness: jitter that comes and goes between two samples, ten packets apart, looks like a queue. Absent on purpose:
// pacing (Pacer), clocks. Results: tests/sim/rate_control, tests/unit/core/rate_test.cc.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/datagram.h"
#include "base/time.h"
#include "core/delivery_rate.h"
#include "core/pacer.h"
#include "core/port_rate.h"
#include "core/reply_wait.h"
#include "core/standing_queue.h"

namespace mlt::core {

// RECOVERY R3.2.1: Durations, counts and weights MUST be those of this table where a clause names them.
struct TimelyConfig {
  double line_rate_bytes_per_second = 1.25e9;
  double min_rate_bytes_per_second = 0;  // 0: by min_rate_interval_ns
  // One packet per interval, or a thousandth of line rate.
  base::DurationNs min_rate_interval_ns = 5 * base::kMillisecond;
  double alpha_bytes_per_second = 0;  // per round trip; 0: by alpha_packets
  double alpha_packets = 1;           // per queueing delay; at most a two-hundredth of the line rate
  double alpha_delay_packets = 10;    // the delay is at least the time of this many packets at the current rate
  double calm_increase = 0.002;       // min increase per sample below T_low, as a fraction of the rate
  double beta = 0.8;
  double gradient_weight = 0.3;             // of the newest difference in the smoothed gradient
  base::DurationNs low_offset_ns = 12'500;  // T_low  = base + max(this, low_packets at the current rate)
  base::DurationNs high_offset_ns = 125'000;
  double low_packets = 3;
  double high_packets = 30;
  double jitter_weight = 0.015625;       // of the newest sample in the jitter
  double jitter_multiple = 20;           // thresholds are higher by so many times the jitter
  double reference_packets = 5;          // beyond T_low, at the current rate: above it the middle band decreases
  std::uint32_t hyper_active_after = 0;  // N falling samples in a row, then N * alpha; 0: off (TIMELY's N is 5)
  double delivery_packets = 20;  // min length of a delivery-rate window at the current rate; at least a round trip
  double kept = 0.85;            // a decrease in the middle band leaves at least this fraction of the delivery rate,
  double min_kept = 0.5;         // min fraction after a decrease above T_high
  double max_kept = 2;           // max fraction after it
  std::uint32_t packet_bytes = 1'500;
  base::DurationNs run_ns = Pacer::kRunNs;  // max batch in time and in bytes
  std::uint32_t run_bytes = base::kMaxRunBytes;
  base::DurationNs base_window_ns = 10 * base::kSecond;  // the smallest round trip of this window is the base
  // Between round trips of the control class.
  base::DurationNs base_sample_interval_ns = 50 * base::kMillisecond;
};

class Timely {
 public:
  explicit Timely(const TimelyConfig& config)
      : config_(config),
        min_rate_(min_rate_of(config)),
        // RECOVERY R1.2.1: A connection MUST start at line rate: the interface's, or what the user says.
        rate_(config.line_rate_bytes_per_second) {}

  // A quarter while it yields to see whose a queue is (standing_queue.h).
  double rate_bytes_per_second() const { return yields_ ? std::max(rate_ / kYield, min_rate_) : rate_; }
  base::DurationNs base_rtt_ns() const { return base_rtt_ns_; }
  base::DurationNs low_threshold_ns() const {
    return threshold(config_.low_offset_ns, config_.low_packets, kLowVariation);
  }
  base::DurationNs high_threshold_ns() const {
    return threshold(config_.high_offset_ns, config_.high_packets, kHighVariation);
  }

  // The line rate if nothing is known.
  double port_rate_bytes_per_second(base::TimeNs now) const {
    const double measured = port_rate_.bytes_per_second(now);
    return measured > 0 ? measured : config_.line_rate_bytes_per_second;
  }

  // The newest round trip shows packets that stand in a queue. False if there was none.
  bool is_queued() const { return previous_rtt_ns_ >= low_threshold_ns(); }

  // A slowed flow shares a queue with others and may never have seen it empty. True if a round trip of the control
  // class, which overtakes data, should be measured; true at most once per interval.
  bool base_sample_due(base::TimeNs now) {
    if (rate_ >= config_.line_rate_bytes_per_second || now < next_base_sample_ns_) return false;
    next_base_sample_ns_ = now + config_.base_sample_interval_ns;
    return true;
  }
  // Every round trip is at least the base: a smaller one corrects it.
  void on_base_sample(base::TimeNs now, base::DurationNs rtt_ns) {
    // RECOVERY R1.2.11: The network time of its reply, which overtook the data, lowers base if it is smaller.
    if (base_rtt_ns_ > 0) update_base(now, rtt_ns);
  }

  // The sender sends again after nothing was in flight.
  void on_resumed() { delivered_.on_resumed(); }
  // A report that arrived at `arrival_ns` acknowledges this many bytes, of headers and payload, for the first time.
  void on_delivered(base::TimeNs arrival_ns, std::uint64_t bytes) { delivered_.on_delivered(arrival_ns, bytes); }

  // RECOVERY R1.2.13: When a BITMAP requests again more than half of a round of 64 packets or more, a sender MUST halve
  //     the rate, once per round (rounds_lost).
  // A flow with so few acknowledged packets gets few samples, or none.
  void on_round_lost() { set_rate(rate_ / 2); }

  // `reply`: of the report that gave the sample. `rtt_ns` does not contain its wait.
  void on_rtt_sample(base::TimeNs now, base::DurationNs rtt_ns, const ReplyDelay& reply = {}) {
    update_base(now, rtt_ns);
    standing_.on_sample(now, rtt_ns, emptied_rtt_ns());
    yields_ = standing_.is_yielding(now);
    // What was delivered while it yielded says nothing about the port.
    if (yields_) no_decrease_before_ns_ = std::max(no_decrease_before_ns_, base::after(now, 2 * rtt_ns));
    base_rtt_ns_ = std::max(emptied_rtt_ns(), standing_.floor_ns());
    measure_jitter(now - reply.wait_ns, rtt_ns);
    reply_jitter_ns_ = reply.jitter_ns;
    // RECOVERY R1.2.12: delivered MUST be what acknowledgement blocks newly report as received, each packet counted as
    //     a full one, over at least a round trip and the time of 20 packets at the current rate, by the arrival of the
    //     reports; of the last two such windows the larger counts.
    const bool is_queued = rtt_ns >= low_threshold_ns();
    port_rate_.on_sample(is_queued);
    const DeliveryRate::Window window = delivered_.end_window(std::max(rtt_ns, packets_ns(config_.delivery_packets)));
    if (window.elapsed_ns > 0) port_rate_.on_window(now, window.bytes, window.elapsed_ns, is_queued);
    if (previous_rtt_ns_ == 0) previous_rtt_ns_ = rtt_ns;
    const double difference = static_cast<double>(rtt_ns - previous_rtt_ns_);
    previous_rtt_ns_ = rtt_ns;
    // RECOVERY R1.2.2: The gradient MUST be the smoothed difference of consecutive samples (weight 0.3 for the newest),
    //     divided by the larger of base and batch.
    smoothed_difference_ns_ += config_.gradient_weight * (difference - smoothed_difference_ns_);
    const double gradient =
        smoothed_difference_ns_ / static_cast<double>(std::max<base::DurationNs>(base_rtt_ns_, run_ns()));

    // The fraction of a round trip that this sample represents.
    const double share = std::clamp(static_cast<double>(now - sampled_ns_) / static_cast<double>(rtt_ns), 0.0, 1.0);
    sampled_ns_ = now;
    const base::DurationNs low = low_threshold_ns();
    const base::DurationNs high = high_threshold_ns();
    // RECOVERY R1.2.4: With delivered known, the result MUST be neither more than twice delivered nor less than half of
    //     it, and not less than 30 packets per queueing delay (rtt - base).
    if (rtt_ns > high) {
      falling_samples_ = 0;
      decrease(now, rtt_ns, high);
    } else if (rtt_ns < low) {
      falling_samples_ = 0;
      // No queue: regain rate lost to a burst within a few round trips, at any round-trip time.
      // RECOVERY R1.2.5: If rtt < T_low, a sender MUST set rate = rate + max(share * alpha, rate / 500).
      if (share > 0) set_rate(rate_ + std::max(share * alpha(rtt_ns), config_.calm_increase * rate_));
    } else {
      falling_samples_ = gradient < 0 ? falling_samples_ + 1 : 0;
      // RECOVERY R1.2.10: A sender MAY offer hyper-active increase: after N samples in a row between the thresholds
      //     with a negative gradient, alpha counts N times.
      const bool hyper_active = config_.hyper_active_after > 0 && falling_samples_ >= config_.hyper_active_after;
      const double increase = hyper_active ? config_.hyper_active_after * alpha(rtt_ns) : alpha(rtt_ns);
      // RECOVERY R1.2.6: Between the thresholds, a sender MUST set rate = rate + share * ((1 - w) * alpha - w * 0.8 *
      //     error * rate), where w = 1/2 + 2 * gradient, but at least 0 and at most 1, and error = 1 - reference / rtt,
      //     but at least 0.
      const double weight = std::clamp(0.5 + 2 * gradient, 0.0, 1.0);
      const double reference = static_cast<double>(low + packets_ns(packets_beside(config_.reference_packets)));
      const double error = std::max(0.0, 1.0 - reference / static_cast<double>(rtt_ns));
      const double next = rate_ + share * ((1.0 - weight) * increase - weight * config_.beta * error * rate_);
      // RECOVERY R1.2.6: A decrease leaves 0.85 * delivered.
      set_rate(std::max(next, std::min(rate_, config_.kept * delivered_.bytes_per_second())));
    }
  }

 private:
  static constexpr double kYield = 4;
  static constexpr double kBesideOthers = 2;
  // CUBIC leaves 0.7 of the buffer full when it has lost, so its queue varies by 0.3 / 0.7 of the least.
  static constexpr double kLowVariation = 0.3;
  static constexpr double kHighVariation = 0.5;
  static constexpr double kSteepFall = 0.95;  // of the time between departures; a queue of ours falls less

  // Increase of the rate per round trip.
  double alpha(base::DurationNs rtt_ns) const {
    if (config_.alpha_bytes_per_second > 0) return config_.alpha_bytes_per_second;
    // RECOVERY R1.2.9: Unless the user says otherwise, alpha MUST be one packet per queueing delay (rtt - base, but at
    //     least 100 us and the time of 10 packets at the current rate), and at most half a percent of the line rate.
    const base::DurationNs queueing_ns =
        std::max({rtt_ns - base_rtt_ns_, Pacer::kRunNs, packets_ns(config_.alpha_delay_packets)});
    const double packets = config_.alpha_packets * config_.packet_bytes * 1e9 / static_cast<double>(queueing_ns);
    return std::min(packets, config_.line_rate_bytes_per_second / 200);
  }

  base::DurationNs threshold(base::DurationNs offset_ns, double packets, double variation) const {
    // RECOVERY R1.2.3: T_low MUST be base + batch + 20 * jitter + max(12.5 us, 3 packets at the current rate), and
    //     T_high MUST be base + batch + 20 * jitter + max(125 us, 30 packets at the current rate).
    return base_rtt_ns_ + run_ns() +
           static_cast<base::DurationNs>(config_.jitter_multiple * (jitter_ns_ + reply_jitter_ns_)) +
           std::max({offset_ns, packets_ns(packets_beside(packets)), part_of_standing(variation)});
  }
  // RECOVERY R1.2.16: Meanwhile the packets of R1.2.3 and R1.2.6 count twice, and the offsets of T_low and T_high
  //     are at least 0.3 and 0.5 of the queue that stands (this base less the true one).
  double packets_beside(double packets) const { return standing_.floor_ns() > 0 ? kBesideOthers * packets : packets; }
  base::DurationNs part_of_standing(double part) const {
    if (standing_.floor_ns() == 0) return 0;
    return static_cast<base::DurationNs>(part * static_cast<double>(standing_.floor_ns() - emptied_rtt_ns()));
  }

  // Before previous_rtt_ns_ is replaced. A queue that is always served empties no faster than time passes, and slower
  // while this flow itself adds to it. Packets that something held back and then released arrive together: from one to
  // the next, delay falls by all of the time between their departures.
  void measure_jitter(base::TimeNs now, base::DurationNs rtt_ns) {
    const base::TimeNs sent_ns = now - rtt_ns;
    const base::DurationNs apart = sent_ns - previous_sent_ns_, fall = previous_rtt_ns_ - rtt_ns;
    previous_sent_ns_ = sent_ns;
    if (apart <= 0) return;
    // RECOVERY R1.2.14: jitter MUST be the smoothed fall of consecutive samples (weight 1/64 for the newest). The fall
    //     is that of rtt if it is at least 0.95 of the time between the departures of the two packets, else zero.
    const bool is_jitter = fall > 0 && static_cast<double>(fall) >= kSteepFall * static_cast<double>(apart);
    jitter_ns_ += config_.jitter_weight * ((is_jitter ? static_cast<double>(fall) : 0.0) - jitter_ns_);
  }

  // Time of this many packets at the current rate.
  base::DurationNs packets_ns(double packets) const {
    return base::serialisation_ns(static_cast<std::uint64_t>(packets * config_.packet_bytes), rate_);
  }

  static double min_rate_of(const TimelyConfig& config) {
    if (config.min_rate_bytes_per_second > 0) return config.min_rate_bytes_per_second;
    const double packet_rate = config.packet_bytes * 1e9 / static_cast<double>(config.min_rate_interval_ns);
    return std::min(packet_rate, config.line_rate_bytes_per_second / 1'000);
  }

  // Time that packets of one batch queue behind each other, even on an idle network.
  base::DurationNs run_ns() const { return std::min(config_.run_ns, base::serialisation_ns(config_.run_bytes, rate_)); }

  // Minimum over the last one to two windows: two buckets, the older one dropped when the newer is full.
  void update_base(base::TimeNs now, base::DurationNs rtt_ns) {
    if (now - bucket_start_ns_ > config_.base_window_ns) {
      older_min_ns_ = newer_min_ns_;
      newer_min_ns_ = rtt_ns;
      bucket_start_ns_ = now;
    }
    newer_min_ns_ = newer_min_ns_ == 0 ? rtt_ns : std::min(newer_min_ns_, rtt_ns);
    base_rtt_ns_ = std::max(emptied_rtt_ns(), standing_.floor_ns());
  }

  // The smallest round trip of the window.
  base::DurationNs emptied_rtt_ns() const {
    return older_min_ns_ == 0 ? newer_min_ns_ : std::min(older_min_ns_, newer_min_ns_);
  }

  void decrease(base::TimeNs now, base::DurationNs rtt_ns, base::DurationNs high_ns) {
    // RECOVERY R1.2.7: A sender MUST NOT make the decrease of R1.2.4 twice within a round trip, because the samples of
    //     one flight report the same queue.
    if (now < no_decrease_before_ns_) return;
    no_decrease_before_ns_ = now + rtt_ns;
    double next = rate_ * (1.0 - config_.beta * (1.0 - static_cast<double>(high_ns) / static_cast<double>(rtt_ns)));
    const double delivered = delivered_.bytes_per_second();
    if (delivered > 0) {
      // RECOVERY R1.2.4: With delivered known, the result MUST be neither more than twice delivered nor less than half
      //     of it, and not less than 30 packets per queueing delay (rtt - base).
      // Upper bound, twice: the port is far slower, and the delivery rate shows by how much; the sender may have paused
      // within the window, hence twice. Lower bound, half: the queue drains already, but samples show it only
      // afterwards. Packets: a flow whose first packets were all dropped gets few reports, and would recover slowly.
      const double packets =
          config_.high_packets * config_.packet_bytes * 1e9 / static_cast<double>(rtt_ns - base_rtt_ns_);
      next = std::clamp(next, std::max(config_.min_kept * delivered, packets),
                        std::max(config_.max_kept * delivered, packets));
      next = std::min(next, rate_);
    }
    set_rate(next);
  }

  // RECOVERY R1.2.8: The rate MUST stay between a packet per 5 ms, or a thousandth of the line rate if that is less,
  //     and the line rate.
  void set_rate(double rate) { rate_ = std::clamp(rate, min_rate_, config_.line_rate_bytes_per_second); }

  TimelyConfig config_;
  double min_rate_;
  double rate_;
  double smoothed_difference_ns_ = 0;
  base::DurationNs previous_rtt_ns_ = 0;
  base::TimeNs previous_sent_ns_ = 0;  // departure of the previous sample's packet
  double jitter_ns_ = 0;
  double reply_jitter_ns_ = 0;
  base::DurationNs base_rtt_ns_ = 0;
  base::DurationNs newer_min_ns_ = 0;
  base::DurationNs older_min_ns_ = 0;
  StandingQueue standing_;
  bool yields_ = false;
  DeliveryRate delivered_;
  PortRate port_rate_;
  std::uint32_t falling_samples_ = 0;  // in a row, in the middle band
  base::TimeNs sampled_ns_ = 0;        // arrival of the last sample
  base::TimeNs bucket_start_ns_ = 0;
  base::TimeNs no_decrease_before_ns_ = 0;
  base::TimeNs next_base_sample_ns_ = 0;
};

}  // namespace mlt::core
