// One send under way, and the slots that hold them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "core/event.h"
#include "core/probe_state.h"
#include "core/segmenter.h"
#include "core/send_queue.h"
#include "core/state_machine.h"
#include "core/tag_table.h"

namespace mlt::core {

// Chunks of a bitmap that one round may consist of; bounds a transfer to 4.2 M segments.
inline constexpr std::uint32_t kMaxBitmapChunks = 512;

struct SendState {
  SendMachine machine;
  SendRequest request;
  std::uint32_t generation = 0;
  SegmentGrid grid;
  std::span<std::uint64_t> words;  // the arena's block behind `pending`
  base::BitmapView pending;        // 1: to be sent in this round
  std::uint32_t pending_count = 0;
  std::uint32_t withheld = 0;    // not ready yet (SendRequest::feed)
  std::uint32_t cursor = 0;      // where the current pass goes on
  std::uint8_t pass = 0;         // 0 critical, 1 important, 2 the rest
  std::uint32_t classified = 0;  // segments whose tags are there
  std::uint8_t round = 0;
  std::uint32_t critical_segments = 0;
  std::uint64_t repaired_segments = 0;
  std::uint32_t sent_in_round = 0;     // packets
  std::uint32_t sent_in_previous = 0;  // packets of the round before; 0: its loss has been acted on
  std::uint32_t requested_again = 0;   // segments of these that its bitmap requests
  std::array<std::uint64_t, kMaxBitmapChunks / 64> merged_chunks{};  // of the bitmap that started this round

  bool receiver_ready = false;       // known to be posted: no limit on what is sent blindly
  std::uint32_t blind_segments = 0;  // sent before that was known
  bool in_work = false;              // in its peer's queue
  bool waits_blind = false;          // at the blind limit: in its peer's other queue
  ProbeState probe;
  std::uint8_t last_class = 0;  // the least urgent class of what was sent: trailing probes stand behind it
  bool unconfirmed = false;     // it began before anything came from the peer
  bool overtakes = false;       // a packet of this round is of a more urgent class than that
  // Newest packet of this transfer on each path; 0: none.
  std::array<std::uint32_t, MLT_MAX_PATHS> newest{};

  TimeNs posted_ns = 0;
  TimeNs expires_ns = base::kNever;
  TimeNs probe_ns = base::kNever;  // when to probe, or to send ABORT again
  bool has_probe_turn = false;     // it waits for its turn among the probes to the peer
  std::uint32_t aborts = 0;        // how often ABORT was due

  CompletionStatus status = CompletionStatus::kComplete;
  std::uint64_t missing_bytes = 0;
  std::uint64_t remote_total_bytes = 0;
  wire::ElementType remote_element = wire::ElementType::kUint8;
  DurationNs elapsed_ns = 0;

  SendQueueLinks queue;           // of its peer, while in_work or waits_blind
  std::uint64_t post_number = 0;  // breaks ties of `order`

  bool goes_before(const SendState& other) const {
    // PROTOCOL 6.1.2: Of the transfers to a peer, a sender MUST send the one with the smallest order first (front
    //     layers before back layers), and of equal ones the one that was posted first.
    if (request.order != other.request.order) return request.order < other.request.order;
    return post_number < other.post_number;
  }
  bool is_round_sent() const { return pending_count == 0 && withheld == 0; }
  // The next segment in send order is to be looked for from the beginning.
  void restart_passes() {
    cursor = 0;
    pass = critical_segments > 0 ? 0 : 1;
  }
  bool is_under_way() const {
    return machine.phase() == SendPhase::k_sending || machine.phase() == SendPhase::k_awaiting;
  }
  // Over here, but the receiver may still keep early data of it.
  bool is_given_up() const {
    return machine.phase() == SendPhase::k_aborting || machine.phase() == SendPhase::k_lingering;
  }
  SegmentTag tag_of(std::uint32_t segment) const {
    return request.tags.empty() ? request.uniform_tag : request.tags[segment];
  }
  wire::TransferId transfer() const { return {request.tag, generation}; }
};

}  // namespace mlt::core
