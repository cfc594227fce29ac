// The oracle's rules over one transfer, on plain records: what was posted, and how it ended. The oracle of simulated
// runs and the checks of runs on real sockets (tests/sim/chaos) share these functions. Rules are numbered as in
// sim/oracle.h. Absent on purpose: networks, clocks and memory; the caller supplies what it knows of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/event.h"

namespace mlt::sim {

// One side of a transfer, as an application would post it.
struct Plan {
  std::uint16_t host = 0;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::uint32_t bytes = 0;
  wire::ElementType element = wire::ElementType::kFloat32;
  base::DurationNs timeout_ns = 0;
  // Sends.
  std::uint32_t order = 0;
  core::SegmentPriority uniform_priority = core::SegmentPriority::important(0);
  std::vector<core::SegmentPriority> priorities;
  // Segments become ready in this many parts: runs of `fed_run` segments, dealt out in turn. 0: all at the post.
  std::uint32_t fed_parts = 0;
  std::uint32_t fed_run = 1;
  // Receives.
  bool up_to = false;  // `bytes` is a maximum
  double loss_bound = 0;
  std::uint32_t shared_budget = 0;  // number of the one that it shares with other receives of its host; 0: none
  core::StopPolicy stop = core::StopPolicy::kPatient;
  core::Fill fill = core::Fill::kZero;
  base::DurationNs deadline_ns = 0;
  bool by_place_function = false;
  bool places_in_data = false;  // if so: core::ReceiveRequest::places_in_data
};

// Whether the sizes of a transfer's two sides agree.
inline bool sizes_agree(const Plan& one, const Plan& other) {
  if (one.up_to) return other.bytes <= one.bytes;
  return other.up_to ? one.bytes <= other.bytes : one.bytes == other.bytes;
}

// State of one side of a transfer.
struct Side {
  const Plan* plan = nullptr;
  core::CompletionKind kind = core::CompletionKind::kSend;
  bool ended = false;
  bool lost = false;       // its process died: no rule requires its completion
  bool cancelled = false;  // by its application
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  std::uint64_t missing_bytes = 0;
};

// Time from the post to the end by its host's clock, and the tolerance: how late its host may notice.
struct Duration {
  base::DurationNs took_ns = 0;
  base::DurationNs timeout_ns = 0;  // its own, or the endpoint's default
  base::DurationNs slack_ns = 0;
};

struct Violation {
  int rule = 0;
  std::string text;
};
using Finding = std::optional<Violation>;  // empty: no violation

inline bool arrived(const core::Completion& completion, std::uint32_t segment) {
  return completion.received_bitmap.empty() || ((completion.received_bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
}

// Whether a side gives the other a reason to end as cancelled.
inline bool gave_reason(const Side& side) {
  return side.cancelled || side.lost || (side.ended && core::is_failure(side.status));
}

// Rules 3 and 14: an operation ends no later than its deadline and timeout, and not before them if they are the reason.
Finding check_duration(const Side& side, const Duration& duration);

// Rule 3: the other side (null: never posted) must be a reason for this failure. `outcome_forgotten`: the other side
// has ended so many operations since that it no longer knows the outcome.
Finding check_reason(const Side& side, const Side* other, bool outcome_forgotten);

// Rule 3: a send succeeds only with its receive (null: never posted), and with the same status.
Finding check_agreement(const Side& send, const Side* receive);

// Rule 1: checks the loss that the status permits, with independent arithmetic. Of receives that share a budget the
// caller checks the sum.
Finding check_bound(const Plan& receive, const core::Completion& completion);

// Rules 1 to 3: a receive succeeds only with a send (null: never posted) of its size and type, and has all of that
// send's critical segments.
Finding check_source(const Plan& receive, const core::Completion& completion, const Plan* send);

// Rule 2: expected content of each part of a receive's buffer.
enum class Source : std::uint8_t {
  kSent,  // what was sent, at its offset
  kZero,  //
  kKept,  // the content at the time of the post
};
struct Part {
  std::uint32_t segment = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  Source source = Source::kSent;
};

// Calls `visit(part)` for each segment, until it returns false.
template <typename Visit>
void for_each_part(const Plan& receive, const core::Completion& completion, Visit visit) {
  const bool zero =
      !core::is_failure(completion.status) && receive.fill == core::Fill::kZero && !receive.by_place_function;
  for (std::uint32_t segment = 0; segment < completion.segment_count; ++segment) {
    Part part;
    part.segment = segment;
    part.begin = std::size_t{segment} * completion.segment_bytes;
    part.end = part.begin + completion.segment_bytes;
    if (part.begin > receive.bytes) part.begin = receive.bytes;
    if (part.end > receive.bytes) part.end = receive.bytes;
    part.source = arrived(completion, segment) ? Source::kSent : zero ? Source::kZero : Source::kKept;
    if (!visit(part)) return;
  }
}

// Rule 2: `missing_bytes` must equal what the bitmap lacks.
Finding check_missing_bytes(const Plan& receive, const core::Completion& completion);

}  // namespace mlt::sim
