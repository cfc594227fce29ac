// Over which path does the next run to a peer go? Counts per path what was sent and what the receiver reports,
// estimates loss and delay from that, and sprays less over a path that loses or delays more than its siblings (gray
// failures). DESIGN.md section 5; the paper sprays blindly.
//
// Estimates. Loss: of the packets that an acknowledgement tells of, those that did not arrive, smoothed over the last
// kLossHorizon packets of the path (fewer where the path is little used, so that it is not forgiven too late). Delay:
// the network's round trip (arrival stamps, without the receiver's hold), smoothed as in RFC 6298. Both are judged
// against the best sibling: what all paths suffer alike is congestion, which is the rate controller's business.
//
// Weights. 1,024 for a path as good as the best; less by the factor 1 / (1 + excess loss / 1 %), and by the square of
// tolerated over measured delay; never below a thirty-second, so that every path is measured on. The choice is a smooth
// weighted round robin counted in packets: deterministic, and interleaved as evenly as the runs allow.
//
// Silence. A path on which nothing arrives while its siblings deliver is given up: what is outstanding there leaves the
// window, the path carries one packet after 20 ms, 40 ms and so on up to every 640 ms, and the first that is
// acknowledged brings it back at the weight of a path that loses 5 %.
//
// Recovery. Loss can only be counted in packets, so it is stated in packets to the peer; divide by the packets of one
// round trip for round trips. Of four paths one that lost 5 % has half its fair share back within 6,500 packets and all
// of it within 10,500; one that lost 90 % within 38,000 and 41,000 (of 40 seeds; paths_test.cc holds some to that).
//
// Rate stays per peer. A path's constant extra delay is taken off its samples, and a path that has less than half the
// largest weight, or a queue of more than twice the shortest, gives none: one slow or lossy path must not slow what
// goes over the others. Its trouble is answered by its weight instead; what all paths suffer alike leaves all weights
// equal, and then all samples count. Samples are comparable only if their answers took the same path back: with a new
// control path the measurements start anew, and its other length is no congestion.
//
// Absent on purpose: what a path is (a port, a flow label, a NIC: the driver's), clocks, allocation. Owned by the
// peer's Sender; one object per peer.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "base/time.h"
#include "core/rtt_estimator.h"
#include "wire/control.h"

namespace mlt::core {

// Sequence numbers wrap: a is after b if it lies within half the circle ahead of it.
constexpr bool is_after(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

// Packets numbered after `from` up to `to`, which is not before it: 0 is no number, so that it can say "none".
constexpr std::uint32_t packets_between(std::uint32_t from, std::uint32_t to) {
  return to - from - (to < from ? 1 : 0);
}

// The state of one path to a peer, for callers.
struct PathView {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_reported = 0;  // arrived, by the receiver's account; repetitions count
  double loss = 0;                     // estimate, [0, 1]
  base::DurationNs rtt_ns = 0;         // smoothed; 0: no sample yet
  std::uint32_t weight = 0;            // of 1,024; the path's share is its part of the sum over all paths
  bool silent = false;                 // given up for now; only probed
  bool narrow = false;                 // carries shorter packets only; only probed
  std::uint64_t in_flight = 0;         // packets
};

class PathSpray {
 public:
  static constexpr std::uint32_t kFullWeight = 1'024;
  static constexpr std::uint32_t kMinWeight = kFullWeight / 32;
  static constexpr double kLossHorizon = 512;    // packets
  static constexpr double kMinLoss = 0.000001;   // less is none: 3,900 packets after a single loss
  static constexpr double kCongestedLoss = 0.1;  // more is a queue that overflows
  static constexpr double kRevivedLoss = 0.05;   // what a path is thought to lose when it was silent and is heard again
  static constexpr double kHalvingLoss = 0.01;   // excess loss that halves the weight
  static constexpr double kLossMargin = 0.005;   // below it, and below half the best sibling's, a difference is noise
  static constexpr std::uint32_t kSilentPackets = 4;  // given up in a row, on two occasions at least
  static constexpr base::DurationNs kSilentProbeNs = 20 * base::kMillisecond;  // doubles up to
  static constexpr base::DurationNs kMaxSilentProbeNs = 640 * base::kMillisecond;
  // How much later than its siblings' packets those of a path may arrive before they are given up.
  static constexpr base::DurationNs kLatenessNs = base::kMillisecond;  // beyond its measured delay and jitter
  static constexpr base::DurationNs kUnknownLatenessNs = 5 * base::kMillisecond;  // without a measurement
  // A delay below twice the best sibling's and this is tolerated: a few runs' length on a 10 Gbit/s path.
  static constexpr base::DurationNs kDelayMarginNs = 50 * base::kMicrosecond;
  // Time without probes on a path after an unanswered one; doubles up to
  static constexpr base::DurationNs kProbeBackoffNs = 100 * base::kMillisecond;
  static constexpr base::DurationNs kMaxProbeBackoffNs = 3'200 * base::kMillisecond;

  PathSpray() = default;  // one path
  // `first_sequence`: of the first packet on each path; not 0.
  explicit PathSpray(std::uint8_t paths, std::uint32_t first_sequence = 1) : paths_(paths) {
    for (PathOut& out : paths_out_) out.last_sequence = out.resolved = out.checkpoint = first_sequence - 1;
  }

  // ---- sending ----

  // The path of the next run, and at most how many packets it may carry there.
  std::uint8_t choose(base::TimeNs now, std::uint32_t& limit);
  // The sequence number of a packet that leaves on `path` now; sent() closes its run of `packets`.
  std::uint32_t next_sequence(std::uint8_t path) {
    std::uint32_t& last = paths_out_[path].last_sequence;
    // PROTOCOL 4.4.4: After 2^32 - 1 comes 1: no packet has the number 0, which means "none".
    if (++last == 0) last = 1;
    return last;
  }
  void sent(base::TimeNs now, std::uint8_t path, std::uint32_t packets);

  std::uint64_t packets_in_flight() const;
  // Nothing but a packet now and then goes there: the path is silent, and there is another that is not.
  bool is_given_up(std::uint8_t path) const { return paths_out_[path].silent && any_heard(); }

  // The path of probes and of their replies: not silent, with short delay in both directions, and another one after
  // each unanswered probe.
  std::uint8_t control_path() const { return control_path_; }
  void try_another_control_path(base::TimeNs now);
  void on_probe_reply(std::uint32_t reply_path, base::DurationNs rtt_ns);
  // One of its last few thousand packets was lost, and no more than errors explain.
  bool loses_some(std::uint8_t path) const {
    const double loss = paths_out_[path].loss;
    return loss > 0 && loss < kCongestedLoss;
  }
  bool is_silent(std::uint8_t path) const { return paths_out_[path].silent; }
  // A narrow path carries no data as long as there is another.
  void set_narrow(std::uint8_t path, bool narrow);

  // ---- what the receiver says ----

  // True if it tells of packets that were in flight. `sent_ns`: when the newest packet it echoes left; kNever if the
  // echo is not fresh. Call after_report() once all blocks of a datagram were taken.
  bool on_block(std::uint8_t path, const wire::AckBlock& block, base::TimeNs sent_ns);
  // A round-trip sample of a packet that went over `path` and of its answer, which came back over `reply_path`.
  // Returns what the peer's rate controller may see of it; 0: nothing.
  base::DurationNs on_sample(std::uint8_t path, std::uint32_t reply_path, base::DurationNs rtt_ns);
  // Packets reported as arrived since the last call.
  std::uint64_t take_delivered_packets() { return std::exchange(delivered_packets_, 0); }
  // Gives up what must have arrived by now if its path worked; true if something was. Renews weights and control path.
  bool after_report(base::TimeNs now);
  // Nothing that is in flight will arrive any more.
  void give_up_all();

  PathView view(std::uint8_t path) const;
  // Paths that became silent or active again since the last call.
  struct Changes {
    std::uint32_t suspended = 0;
    std::uint32_t resumed = 0;
  };
  Changes take_changes();
  // Bit per path on which packets were lost since the last call.
  std::uint32_t take_lossy_paths() { return std::exchange(lossy_paths_, 0); }

 private:
  // RECOVERY R2.1.3: Sequence numbers, loss, delay and acknowledgement blocks MUST be counted per path; window and rate
  //     are the peer's.
  struct PathOut {
    std::uint32_t last_sequence = 0;  // newest sent
    std::uint32_t resolved = 0;       // everything up to here arrived or is given up: not in flight
    // Everything up to here left by `checkpoint_ns`; equal to `resolved` if nothing is in flight.
    std::uint32_t checkpoint = 0;
    base::TimeNs checkpoint_ns = 0;
    base::TimeNs last_sent_ns = 0;
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_reported = 0;
    std::uint32_t reported = 0;  // the receiver's counter at its latest report; wraps
    double loss = 0;
    RttEstimator rtt;                         // with answers over `reply_path_`
    base::DurationNs probe_rtt_ns = 0;        // of probes over this path; 0: none was answered yet, or the last was not
    base::TimeNs probe_backoff_until_ns = 0;  // after one stayed unanswered
    base::DurationNs probe_backoff_ns = 0;
    double loss_gain = 1 / kLossHorizon;  // of one packet in the estimate
    std::uint32_t weight = kFullWeight;
    std::int64_t credit = 0;           // packets times weights that the path is owed
    std::uint32_t silent_packets = 0;  // given up since anything arrived
    std::uint32_t silent_times = 0;    // on so many occasions
    bool silent = false;
    bool narrow = false;
    std::uint32_t silenced_sequence = 0;  // the last sent before it became silent
    base::TimeNs silent_probe_ns = 0;     // when the next packet may try it
    base::DurationNs silent_wait_ns = 0;  // and how long after that the one after
  };

  static void count_loss(PathOut& out, std::int64_t packets, std::int64_t lost);
  void give_up(PathOut& out, std::uint32_t until);
  void hear(PathOut& out);
  static void set_checkpoint(PathOut& out);
  base::DurationNs best_rtt_ns() const;
  void renew_weights(base::DurationNs best_rtt_ns);
  void renew_control_path(base::TimeNs now);
  // Of a path that works as well as any: its queue is the peer's queue.
  bool is_typical(const PathOut& out) const;
  bool any_heard() const;
  bool any_wide() const;

  std::uint8_t paths_ = 1;
  std::uint32_t lossy_paths_ = 0;
  std::uint8_t control_path_ = 0;
  std::uint32_t reply_path_ = 0;      // the path back of all round-trip samples that are kept
  base::DurationNs base_rtt_ns_ = 0;  // smallest sample ever
  base::DurationNs base_probe_rtt_ns_ = 0;
  base::TimeNs newest_arrived_ns_ = 0;  // when the newest packet left of which any path's report tells
  std::uint32_t max_weight_ = kFullWeight;
  std::uint64_t delivered_packets_ = 0;
  Changes changes_;
  std::array<PathOut, MLT_MAX_PATHS> paths_out_;
};

}  // namespace mlt::core
