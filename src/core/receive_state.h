// One receive under way.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "core/event.h"
#include "core/segmenter.h"
#include "core/tag_table.h"

namespace mlt::core {

// Transitions (events in brackets):
//   free --[post]--> active
//   active --[last segment | within bound and known lost | deadline | timeout | mismatch | cancel | peer down]--> done
//   done --[completion polled]--> free
// Within active, per sending round: filling --[marker or probe]--> judging --[known lost, beyond bound]--> answered
enum class ReceivePhase : std::uint8_t { kFree, kActive, kDone };

struct ReceiveState {
  ReceivePhase phase = ReceivePhase::kFree;
  ReceiveRequest request;
  std::uint32_t generation = 0;
  SegmentGrid grid;
  std::span<std::uint64_t> words;  // the arena's block behind `received`
  base::BitmapView received;
  std::uint32_t received_segments = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t allowed_missing_bytes = 0;
  std::uint64_t repaired_segments = 0;

  bool has_critical = false;    // the sender said so
  bool critical_known = false;  // its number is known (from a probe)
  std::uint32_t critical_total = 0;
  std::uint32_t critical_received = 0;

  // The sender's newest round whose end was seen.
  bool round_over = false;
  bool round_answered = false;
  std::uint8_t round = 0;
  TimeNs round_over_ns = 0;
  DurationNs grace_ns = 0;      // how long packets of the round may still come
  std::uint8_t path_count = 0;  // of the probe; 0 if only the marker was seen
  std::array<std::uint32_t, MLT_MAX_PATHS> last_sequence{};
  std::uint32_t probe_timestamp_ns = 0;
  bool answer_by_control = false;  // the probe came over TCP

  TimeNs posted_ns = 0;
  TimeNs last_data_ns = 0;
  TimeNs expires_ns = base::kNever;
  TimeNs deadline_ns = base::kNever;

  CompletionStatus status = CompletionStatus::kComplete;
  std::uint64_t remote_total_bytes = 0;
  wire::ElementType remote_element = wire::ElementType::kUint8;
  DurationNs elapsed_ns = 0;

  std::uint32_t next_same_tag = kNil;

  std::uint64_t missing_bytes() const { return grid.total_bytes() - received_bytes; }
  wire::TransferId transfer() const { return {request.tag, generation}; }
};

}  // namespace mlt::core
