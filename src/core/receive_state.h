// State of one receive in progress.
#pragma once

#include <cstdint>

#include "core/event.h"
#include "core/loss_budget.h"
#include "core/loss_detection.h"
#include "core/parity_store.h"
#include "core/placement.h"
#include "core/state_machine.h"
#include "core/tag_table.h"

namespace mlt::core {

struct ReceiveState {
  ReceiveMachine machine;
  ReceiveRequest request;
  std::uint32_t generation = 0;
  Placement placement;
  bool size_known = true;  // false: `request.data` is as long as the tensor may be at most
  std::uint64_t repaired_segments = 0;
  LossBudget budget;
  LossDetection loss;
  ParityStore::List parity;            // kept for its blocks that miss segments
  std::uint8_t block_segments = 0;     // of its blocks, from its first parity packet; 0: none came yet
  TimeNs data_over_ns = base::kNever;  // when that arrived, or a segment after it
  bool seen = false;                   // any packet of the transfer arrived
  std::uint32_t drops = 0;             // of Receiver::on_datagrams_dropped(), of which it knows
  std::uint32_t probe_timestamp_ns = 0;
  bool reply_by_control = false;  // the probe came over TCP

  TimeNs posted_ns = 0;
  TimeNs expires_ns = base::kNever;
  TimeNs deadline_ns = base::kNever;

  CompletionStatus status = CompletionStatus::kComplete;
  std::uint64_t remote_total_bytes = 0;
  wire::ElementType remote_element = wire::ElementType::kUint8;
  wire::AbortReason aborted;
  DurationNs elapsed_ns = 0;

  bool is_free() const { return machine.phase() == ReceivePhase::k_free; }
  bool is_in_progress() const {
    return machine.phase() != ReceivePhase::k_free && machine.phase() != ReceivePhase::k_done;
  }
  wire::TransferId transfer() const { return {request.tag, generation}; }
};

}  // namespace mlt::core
