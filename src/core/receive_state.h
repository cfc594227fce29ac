// State of one receive in progress.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "base/stream_copy.h"
#include "core/event.h"
#include "core/segmenter.h"
#include "core/state_machine.h"
#include "core/tag_table.h"

namespace mlt::core {

struct ReceiveState {
  ReceiveMachine machine;
  ReceiveRequest request;
  std::uint32_t generation = 0;
  SegmentGrid grid;
  std::span<std::uint64_t> words;  // memory of `received`, from the arena
  base::BitmapView received;
  std::uint32_t received_segments = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t allowed_missing_bytes = 0;
  std::uint64_t repaired_segments = 0;

  // A segment of its first round may have been dropped before the post, for lack of space.
  bool segment_dropped = false;
  bool seen = false;            // any packet of the transfer arrived
  bool has_critical = false;    // as stated by the sender
  bool critical_known = false;  // the number of critical segments is known (from a probe)
  std::uint32_t critical_total = 0;
  std::uint32_t critical_received = 0;

  // The sender's newest round whose end was received; invalid in phase filling.
  std::uint8_t round = 0;
  TimeNs round_over_ns = base::kNever;
  std::uint8_t path_count = 0;
  std::array<std::uint32_t, MLT_MAX_PATHS>
      last_sequence{};                // newest per path, from the probe or the packet with END_OF_ROUND
  std::uint16_t given_up_paths = 0;   // bit per path on which the sender no longer waits for packets
  bool requested_in_silence = false;  // in this round, without evidence of loss
  std::uint32_t silent_rounds = 0;    // rounds with such a request since the last segment arrived
  // Newest packet of this transfer on each path, trailing probes included, and its arrival. Excludes packets that may
  // have overtaken earlier ones: those of other transfers and of more urgent classes.
  std::array<std::uint32_t, MLT_MAX_PATHS> newest{};
  std::array<TimeNs, MLT_MAX_PATHS> newest_arrival_ns{};
  TimeNs proof_ns = 0;  // newest arrival of a trailing probe that may have been the last missing evidence
  std::uint32_t probe_timestamp_ns = 0;
  bool reply_by_control = false;  // the probe came over TCP

  TimeNs posted_ns = 0;
  TimeNs last_data_ns = 0;
  TimeNs expires_ns = base::kNever;
  TimeNs deadline_ns = base::kNever;

  CompletionStatus status = CompletionStatus::kComplete;
  std::uint64_t remote_total_bytes = 0;
  wire::ElementType remote_element = wire::ElementType::kUint8;
  DurationNs elapsed_ns = 0;

  bool is_under_way() const {
    return machine.phase() != ReceivePhase::k_free && machine.phase() != ReceivePhase::k_done;
  }
  void begin_loss_detection(std::uint8_t of_round, TimeNs now) {
    if (requested_in_silence) ++silent_rounds;
    requested_in_silence = false;
    round = of_round;
    round_over_ns = now;
  }
  bool is_newer_round(std::uint8_t other) const {
    return machine.phase() == ReceivePhase::k_filling || static_cast<std::int8_t>(other - round) > 0;
  }
  // Whether this end of a round, with the newest packet of each path, was sent before the newest one received. Rounds
  // are counted modulo 256, and more than that may pass while a stalled connection delays a probe; sequence numbers
  // only increase.
  bool names_older_packets(std::span<const std::uint32_t> newest_sent) const {
    for (std::size_t path = 0; path < std::min<std::size_t>(path_count, newest_sent.size()); ++path) {
      if (last_sequence[path] == 0) continue;
      if (newest_sent[path] == 0 || is_after(last_sequence[path], newest_sent[path])) return true;
    }
    return false;
  }
  std::uint64_t missing_bytes() const { return grid.total_bytes() - received_bytes; }
  // Too large for a core's caches: written with non-temporal stores.
  bool streams() const { return grid.total_bytes() >= base::kStreamedBytes; }
  wire::TransferId transfer() const { return {request.tag, generation}; }
};

}  // namespace mlt::core
