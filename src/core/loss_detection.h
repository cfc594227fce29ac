// Loss detection of one receive: from when missing segments are known to be lost, and when to request them again.
// Paper section 4.2.3; section 7.5 of PROTOCOL.md.
//
// Packets of one transfer and path share a queue. Once the newest packet of a round, or a trailing probe sent after it,
// has arrived on every path, others can arrive only within the reordering observed from the peer. Without that evidence
// a silence leads to a request, never to a loss.
//
// Invariants: sequence numbers of a path only rise, among those that arrived as among those that the sender named;
// missing segments are declared lost only once every path that the newest end of a round names has evidence. Absent on
// purpose: the timer, what is missing, and whether it may be (LossBudget). Owned by a receive (ReceiveState), used by
// one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "core/path_spray.h"

namespace mlt::core {

// True if `sequence` becomes the newest; 0: none so far.
inline bool note_newest(std::uint32_t& newest, std::uint32_t sequence) {
  if (newest != 0 && !is_after(sequence, newest)) return false;
  newest = sequence;
  return true;
}

class LossDetection {
 public:
  using SequencePerPath = std::array<std::uint32_t, MLT_MAX_PATHS>;

  // ---- arrivals ----

  // Takes the newest packets that arrived before the post; their order is not the order of arrival.
  void begin_with(const SequencePerPath& newest) {
    newest_ = newest;
    newest_arrival_ns_.fill(base::kNever);
  }
  // A packet with data arrived.
  void on_data(base::TimeNs now) { last_data_ns_ = now; }
  // The packet brought a missing segment.
  void on_segment() {
    silent_rounds_ = 0;
    requested_in_silence_ = false;
  }
  // A trailing probe arrived: it may be the last missing evidence. Call before note_order().
  void on_trailing_probe(base::TimeNs now) {
    if (!is_proven()) proof_ns_ = now;
  }
  // Counts a packet of the transfer, or a trailing probe, as evidence. Returns how much later it arrived than a packet
  // sent after it; negative if it is the newest of its path, repeats it, or nothing is known.
  base::DurationNs note_order(std::uint8_t path, std::uint32_t sequence, base::TimeNs arrival_ns) {
    // PROTOCOL 7.4.6: It MUST NOT count packets of other transfers, and those that carry OVERTAKES: they may have
    //     overtaken what was sent before them.
    if (note_newest(newest_[path], sequence)) {
      newest_arrival_ns_[path] = arrival_ns;
      return -1;
    }
    if (sequence == newest_[path] || arrival_ns < newest_arrival_ns_[path]) return -1;
    return arrival_ns - newest_arrival_ns_[path];
  }

  // ---- ends of rounds ----

  // The sender's newest round whose end was received; 0 before the first.
  std::uint8_t round() const { return round_; }
  // When its end was received first; kNever before the first.
  base::TimeNs round_over_ns() const { return round_over_ns_; }
  bool is_newer_round(std::uint8_t other) const {
    return round_over_ns_ == base::kNever || static_cast<std::int8_t>(other - round_) > 0;
  }
  // Whether this end of a round, with the newest packet of each path, was sent before the newest one received. Rounds
  // are counted modulo 256, and more than that may pass while a stalled connection delays a probe; sequence numbers
  // only increase.
  bool names_older_packets(std::span<const std::uint32_t> newest_sent) const;
  // The end of a newer round was received.
  void begin_round(std::uint8_t round, base::TimeNs now) {
    if (requested_in_silence_) ++silent_rounds_;
    requested_in_silence_ = false;
    round_ = round;
    round_over_ns_ = now;
  }
  // The end of the round names the newest packet of the transfer on each path, and the paths (bit mask) on which the
  // sender no longer waits for packets.
  void take_newest_sent(std::span<const std::uint32_t> newest_sent, std::uint16_t suspended_paths);

  // ---- decisions ----

  // Paths named by the end of the round on which neither the newest packet of the transfer nor one sent after it has
  // arrived. One bit per path.
  std::uint32_t unproven_paths() const;
  bool is_proven() const { return path_count_ != 0 && unproven_paths() == 0; }
  // Time from which all missing segments of the sender's round are known to be lost; kNever without evidence.
  // `reorder_ns`: the reorder window of the peer.
  base::TimeNs known_lost_ns(base::DurationNs reorder_ns) const;
  // Time to request the missing segments: a wrong guess costs only a retransmission.
  base::TimeNs request_ns(base::DurationNs reorder_ns, std::uint32_t missing_segments) const;
  // The missing segments are requested without evidence of loss.
  void on_request_in_silence() { requested_in_silence_ = true; }

 private:
  std::uint8_t round_ = 0;
  std::uint8_t path_count_ = 0;        // 0: no end of a round was received yet
  bool requested_in_silence_ = false;  // in this round, without evidence of loss
  std::uint16_t suspended_paths_ = 0;  // bit per path on which the sender no longer waits for packets
  std::uint32_t silent_rounds_ = 0;    // rounds with such a request since the last segment arrived
  SequencePerPath last_sequence_{};    // newest per path, from the probe or the packet with END_OF_ROUND
  // Newest packet of this transfer on each path, trailing probes included, and its arrival. Excludes packets that may
  // have overtaken earlier ones: those of other transfers and of more urgent classes.
  SequencePerPath newest_{};
  std::array<base::TimeNs, MLT_MAX_PATHS> newest_arrival_ns_{};
  base::TimeNs round_over_ns_ = base::kNever;
  base::TimeNs last_data_ns_ = 0;
  base::TimeNs proof_ns_ = 0;  // newest arrival of a trailing probe that may have been the last missing evidence
};

}  // namespace mlt::core
