// State of one send in progress.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "core/event.h"
#include "core/parity_plan.h"
#include "core/probe_state.h"
#include "core/repair_rounds.h"
#include "core/segmenter.h"
#include "core/send_queue.h"
#include "core/state_machine.h"
#include "core/tag_table.h"

namespace mlt::core {

struct SendState {
  SendMachine machine;
  SendRequest request;
  std::uint32_t generation = 0;
  SegmentGrid grid;
  std::span<std::uint64_t> words;  // memory of `pending`, from the arena
  base::BitmapView pending;        // 1: to be sent in this round
  std::uint32_t pending_count = 0;
  std::uint32_t withheld = 0;    // segments not ready yet (SendRequest::feed)
  std::uint32_t cursor = 0;      // position in the current pass
  std::uint8_t pass = 0;         // 0 critical, 1 important, 2 others
  std::uint32_t classified = 0;  // segments with valid priorities
  RepairRounds repair;
  std::uint32_t critical_segments = 0;
  ParityPlan parity;  // behind round 0
  std::uint32_t parity_sent = 0;
  bool parity_planned = false;
  std::uint64_t repaired_segments = 0;

  bool receiver_ready = false;       // the receive is known to be posted: no early-data limit
  std::uint32_t early_segments = 0;  // segments of early data
  bool in_work = false;              // in its peer's queue
  bool waits_for_space = false;      // in its peer's other queue, at the early-data limit
  ProbeState probe;
  std::uint8_t last_class = 0;    // least urgent class sent: trailing probes follow in it
  bool unconfirmed = false;       // started before anything arrived from the peer
  std::uint16_t round_paths = 0;  // bit per path with a packet of this round
  bool overtakes = false;         // a packet of this round has a more urgent class than last_class
  // Newest packet of this transfer on each path; 0: none.
  std::array<std::uint32_t, MLT_MAX_PATHS> newest{};

  TimeNs posted_ns = 0;
  TimeNs expires_ns = base::kNever;
  TimeNs probe_ns = base::kNever;  // when to probe, or to send ABORT again
  bool has_probe_turn = false;     // waits for its turn among the probes to the peer
  std::uint32_t aborts = 0;        // how often ABORT was due
  std::uint32_t path_bytes = 0;    // aborted because of a path limit: the payload that arrives

  CompletionStatus status = CompletionStatus::kComplete;
  std::uint64_t missing_bytes = 0;
  std::uint64_t remote_total_bytes = 0;
  wire::ElementType remote_element = wire::ElementType::kUint8;
  DurationNs elapsed_ns = 0;

  SendQueueLinks queue;           // of its peer; valid while in_work or waits_for_space
  std::uint64_t post_number = 0;  // breaks ties of `order`

  bool goes_before(const SendState& other) const {
    // PROTOCOL 6.1.2: Of the transfers to a peer, a sender MUST send the one with the smallest order first (front
    //     layers before back layers), and of equal ones the one that was posted first.
    if (request.order != other.request.order) return request.order < other.request.order;
    return post_number < other.post_number;
  }
  std::uint32_t parity_left() const { return parity.packets() - parity_sent; }
  bool are_segments_sent() const { return pending_count == 0 && withheld == 0; }
  bool is_round_sent() const { return are_segments_sent() && parity_left() == 0; }
  // Whether something may leave now.
  bool has_work() const { return pending_count > 0 || (withheld == 0 && parity_left() > 0); }
  // Restarts the search for the next segment in send order.
  void restart_passes() {
    cursor = 0;
    pass = critical_segments > 0 ? 0 : 1;
  }
  bool is_free() const { return machine.phase() == SendPhase::k_free; }
  bool is_in_progress() const {
    return machine.phase() == SendPhase::k_sending || machine.phase() == SendPhase::k_awaiting;
  }
  // Ended here, but the receiver may still buffer its early data.
  bool is_aborted() const {
    return machine.phase() == SendPhase::k_aborting || machine.phase() == SendPhase::k_lingering;
  }
  SegmentPriority priority_of(std::uint32_t segment) const {
    return request.priorities.empty() ? request.uniform_priority : request.priorities[segment];
  }
  wire::TransferId transfer() const { return {request.tag, generation}; }
};

}  // namespace mlt::core
