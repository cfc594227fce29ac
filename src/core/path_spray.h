// Chooses the path of the next batch to a peer. It counts per path the packets sent and those that the receiver
// reports, estimates loss and delay, and sends less over paths with more loss or delay than their siblings (gray
// failures). Section R2.2 of RECOVERY.md has estimates and weights, R2.3 suspension; the paper sprays without feedback.
//
// Loss and delay are compared with the best sibling: what is common to all paths is congestion, and left to the rate
// controller. The choice is a smooth weighted round robin counted in packets: deterministic, and interleaved as evenly
// as the batches allow.
//
// The rate is per peer (R2.5): one slow or lossy path must not slow the others, and its weight already responds.
// Samples are comparable only if their replies took the same path back: measurements restart with a new control path,
// so that its different delay does not count as congestion.
//
// Loss is counted in packets, so recovery time is given in packets to the peer. With four paths, one that lost 5 %
// regains half its fair share within 6,500 packets and all of it within 10,500; one that lost 90 % within 38,000 and
// 41,000 (of 40 seeds; paths_test.cc checks some).
//
// Absent on purpose: what a path is (a port, a flow label, a NIC: the driver's), clocks, allocation. Owned by the
// peer's Sender; one object per peer.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/time.h"
#include "core/rtt_estimator.h"
#include "wire/control.h"

namespace mlt::core {

// Sequence numbers wrap: a is after b if it is within half the number range ahead of b.
constexpr bool is_after(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

// Packets numbered after `from` up to `to`; `to` must not be before `from`. 0 is no sequence number: it stands for
// "none".
constexpr std::uint32_t packets_between(std::uint32_t from, std::uint32_t to) {
  return to - from - (to < from ? 1 : 0);
}

// State of one path to a peer, for callers.
struct PathView {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_reported = 0;  // arrived, by the receiver's reports; duplicates count
  double loss = 0;                     // estimate, [0, 1]
  base::DurationNs rtt_ns = 0;         // smoothed; 0: no sample yet
  std::uint32_t weight = 0;            // of 1,024; the path's share is its part of the sum over all paths
  bool suspended = false;              // suspended: carries retries only
  bool resting = false;                // far too late: carries retries only
  bool narrow = false;                 // carries only shorter packets; probed only
  std::uint64_t in_flight = 0;         // packets
};

class PathSpray {
 public:
  static constexpr std::uint32_t kFullWeight = 1'024;
  static constexpr std::uint32_t kMinWeight = kFullWeight / 32;
  static constexpr double kLossHorizon = 512;              // packets
  static constexpr std::uint32_t kLastingHorizon = 8'192;  // packets
  static constexpr double kMinLoss = 0.000001;   // a smaller estimate becomes 0: 3,900 packets after a single loss
  static constexpr double kCongestedLoss = 0.1;  // more means a queue that overflows
  static constexpr double kRevivedLoss = 0.05;   // estimate of a path that was suspended and resumes
  static constexpr double kHalvingLoss = 0.01;   // excess loss that halves the weight
  // Differences below it, and below half the best sibling's loss, are noise.
  static constexpr double kLossMargin = 0.005;
  static constexpr std::uint32_t kSuspendPackets = 4;  // declared lost in a row, on at least two occasions
  // A path rests, and a control path is left for being late, only by as many samples of it.
  static constexpr std::uint32_t kLatenessSamples = 4;
  // How long a control path that was chosen for its delay is kept, though late: measurements begin anew with a change.
  static constexpr base::DurationNs kControlPathNs = base::kSecond;
  // Between the packets that a suspended or resting path carries; doubles up to
  static constexpr base::DurationNs kSuspendedProbeNs = 20 * base::kMillisecond;
  static constexpr base::DurationNs kMaxSuspendedProbeNs = 640 * base::kMillisecond;
  // How much later than its siblings' packets those of a path may arrive before they are declared lost.
  static constexpr base::DurationNs kLatenessNs = base::kMillisecond;  // beyond its measured delay and jitter
  static constexpr base::DurationNs kUnknownLatenessNs = 5 * base::kMillisecond;  // without a measurement
  // A delay below twice the best sibling's plus this is tolerated: the length of a few batches on a 10 Gbit/s path.
  static constexpr base::DurationNs kDelayMarginNs = 50 * base::kMicrosecond;
  // Time without probes on a path after an unanswered one; doubles up to
  static constexpr base::DurationNs kProbeBackoffNs = 100 * base::kMillisecond;
  static constexpr base::DurationNs kMaxProbeBackoffNs = 3'200 * base::kMillisecond;

  PathSpray() = default;  // without a path, and without memory: to be assigned
  // `first_sequence`: of the first packet on each path; not 0.
  explicit PathSpray(std::uint8_t paths, std::uint32_t first_sequence = 1) : own_(paths) {
    restart(own_, first_sequence);
  }
  PathSpray(PathSpray&&) = default;
  PathSpray& operator=(PathSpray&&) = default;

  // RECOVERY R2.1.3: Sequence numbers, loss, delay and acknowledgement blocks MUST be counted per path; window and rate
  //     are the peer's.
  struct PathOut {
    std::uint32_t last_sequence = 0;  // newest sent
    std::uint32_t resolved = 0;       // all packets up to here arrived or were declared lost: not in flight
    // All packets up to here left by `checkpoint_ns`; equal to `resolved` if nothing is in flight.
    std::uint32_t checkpoint = 0;
    base::TimeNs checkpoint_ns = 0;
    base::TimeNs last_sent_ns = 0;
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_reported = 0;
    std::uint32_t reported = 0;  // the counter in the receiver's latest report; wraps
    double loss = 0;
    double lasting_loss = 0;            // mean of the last kLastingHorizon packets, or of fewer
    std::uint32_t lasting_packets = 0;  // of which it is the mean
    RttEstimator rtt;                   // of replies over `reply_path_`
    base::DurationNs probe_rtt_ns =
        0;  // of probes over this path; 0: no probe was answered yet, or the last one was not
    base::TimeNs probe_backoff_until_ns = 0;  // end of the backoff after an unanswered probe
    base::DurationNs probe_backoff_ns = 0;
    double loss_gain = 1 / kLossHorizon;  // of one packet in the estimate
    std::uint32_t weight = kFullWeight;
    std::int64_t credit = 0;         // deficit in packets times weights
    std::uint32_t lost_packets = 0;  // declared lost since the last arrival
    std::uint32_t lost_times = 0;    // occasions of these losses
    bool suspended = false;
    bool resting = false;
    bool narrow = false;
    std::uint32_t suspended_sequence = 0;    // the newest when it was suspended
    base::TimeNs retry_ns = 0;               // time of the next retry
    base::DurationNs retry_interval_ns = 0;  // interval from that retry to the following one
  };
  // As constructed, with memory of the caller's, one record for each path; neither allocates nor frees.
  void restart(std::span<PathOut> memory, std::uint32_t first_sequence) {
    paths_out_ = memory;
    paths_ = static_cast<std::uint8_t>(memory.size());
    for (PathOut& out : paths_out_) {
      out = PathOut{};
      out.last_sequence = out.resolved = out.checkpoint = first_sequence - 1;
    }
    lossy_paths_ = reply_path_ = 0;
    control_path_ = 0;
    control_kept_until_ns_ = 0;
    base_rtt_ns_ = base_probe_rtt_ns_ = 0;
    newest_arrived_ns_ = 0;
    max_weight_ = kFullWeight;
    delivered_packets_ = 0;
    changes_ = {};
  }
  // ---- sending ----

  // Returns the path of the next batch; `limit` receives the max number of packets in it.
  std::uint8_t choose(base::TimeNs now, std::uint32_t& limit);
  // The sequence number of a packet that leaves on `path` now; call sent() after the `packets` of a batch.
  std::uint32_t next_sequence(std::uint8_t path) {
    std::uint32_t& last = paths_out_[path].last_sequence;
    // PROTOCOL 4.4.4: After 2^32 - 1 comes 1: no packet has the number 0, which means "none".
    if (++last == 0) last = 1;
    return last;
  }
  void sent(base::TimeNs now, std::uint8_t path, std::uint32_t packets);

  std::uint64_t packets_in_flight() const;
  // The path is suspended, and another one is active.
  bool is_excluded(std::uint8_t path) const { return paths_out_[path].suspended && any_active(); }

  // The path of probes and of their replies: not suspended, with short delay in both directions. Changes after each
  // unanswered probe.
  std::uint8_t control_path() const { return control_path_; }
  void try_another_control_path(base::TimeNs now);
  void on_probe_reply(std::uint32_t reply_path, base::DurationNs rtt_ns);
  // True if packets were lost recently (the last few thousand), but no more than transmission errors explain: fewer
  // than a tenth where packets queue (`queued`).
  bool loses_some(std::uint8_t path, bool queued) const {
    const double loss = paths_out_[path].loss;
    return loss > 0 && (loss < kCongestedLoss || !queued);
  }
  // Loss against which parity is sent; 0: no packet was lost recently.
  double parity_loss(std::uint8_t path) const {
    const PathOut& out = paths_out_[path];
    return out.loss > 0 ? std::max(out.loss, out.lasting_loss) : 0;
  }
  bool is_suspended(std::uint8_t path) const { return paths_out_[path].suspended; }
  // A narrow path carries no data while another path is usable.
  void set_narrow(std::uint8_t path, bool narrow);

  // ---- reports of the receiver ----

  // True if the block resolves packets that were in flight. `sent_ns`: when the newest packet it echoes left; kNever if
  // the echo is not fresh. Call after_report() once all blocks of a datagram were processed.
  bool on_block(std::uint8_t path, const wire::AckBlock& block, base::TimeNs sent_ns);
  // Takes a round-trip sample of a packet over `path` whose reply came back over `reply_path`. Returns the sample for
  // the peer's rate controller; 0: none.
  base::DurationNs on_sample(std::uint8_t path, std::uint32_t reply_path, base::DurationNs rtt_ns);
  // Packets reported as arrived since the last call.
  std::uint64_t take_delivered_packets() { return std::exchange(delivered_packets_, 0); }
  // Declares overdue packets lost; true if any was. Updates weights and control path.
  bool after_report(base::TimeNs now);
  // Resolves all packets in flight: none of them will arrive any more.
  void declare_all_lost();

  PathView view(std::uint8_t path) const;
  // Paths that were suspended or resumed since the last call.
  struct Changes {
    std::uint32_t suspended = 0;
    std::uint32_t resumed = 0;
  };
  Changes take_changes();
  // Bit per path on which packets were lost since the last call.
  std::uint32_t take_lossy_paths() { return std::exchange(lossy_paths_, 0); }

 private:
  static void count_loss(PathOut& out, std::int64_t packets, std::int64_t lost);
  void declare_lost(PathOut& out, std::uint32_t until);
  void resume(PathOut& out);
  static void set_checkpoint(PathOut& out);
  static void begin_retries(PathOut& out, base::TimeNs from);
  base::DurationNs best_rtt_ns() const;
  void renew_weights(base::TimeNs now);
  void renew_control_path(base::TimeNs now);
  bool is_quick(const PathOut& out) const;
  bool leave_late_control_path(base::TimeNs now);
  void retry_resting_paths();
  // Carries retries only.
  static bool is_out(const PathOut& out) { return out.suspended || out.resting; }
  // Active, with at least half the largest weight: its queue represents the queue to the peer.
  bool is_typical(const PathOut& out) const;
  bool any_active() const;
  bool any_wide() const;

  std::uint8_t paths_ = 0;
  std::uint32_t lossy_paths_ = 0;
  std::uint8_t control_path_ = 0;
  base::TimeNs control_kept_until_ns_ = 0;
  std::uint32_t reply_path_ = 0;      // return path of all round-trip samples that are kept
  base::DurationNs base_rtt_ns_ = 0;  // smallest sample ever
  base::DurationNs base_probe_rtt_ns_ = 0;
  base::TimeNs newest_arrived_ns_ = 0;  // send time of the newest packet reported on any path
  std::uint32_t max_weight_ = kFullWeight;
  std::uint64_t delivered_packets_ = 0;
  Changes changes_;
  std::vector<PathOut> own_;      // or the memory is the caller's
  std::span<PathOut> paths_out_;  // by path
};

}  // namespace mlt::core
