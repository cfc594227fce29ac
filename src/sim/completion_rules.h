// The oracle's rules over one transfer, on plain records: what was asked for, and how it ended. The oracle of simulated
// runs and the judge of runs on real sockets (tests/sim/chaos) hold completions against the same functions. Rules are
// numbered as in sim/oracle.h. Absent on purpose: networks, clocks and memory; the caller says what it knows of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/event.h"

namespace mlt::sim {

// One side of a transfer, as an application would ask for it.
struct Plan {
  std::uint16_t host = 0;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::uint32_t bytes = 0;
  wire::ElementType element = wire::ElementType::kFloat32;
  base::DurationNs timeout_ns = 0;
  // Sends.
  std::uint32_t order = 0;
  core::SegmentTag uniform_tag = core::SegmentTag::important(0);
  std::vector<core::SegmentTag> tags;
  // Segments become ready in so many parts: runs of `fed_run` segments, dealt out in turn. 0: all with the post.
  std::uint32_t fed_parts = 0;
  std::uint32_t fed_run = 1;
  // Receives.
  double loss_bound = 0;
  core::StopPolicy stop = core::StopPolicy::kPatient;
  core::Fill fill = core::Fill::kZero;
  base::DurationNs deadline_ns = 0;
  bool by_place_function = false;
};

// How one side of a transfer stands.
struct Side {
  const Plan* plan = nullptr;
  core::CompletionKind kind = core::CompletionKind::kSend;
  bool ended = false;
  bool lost = false;       // its process died: nothing is owed to it
  bool cancelled = false;  // by its application
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  std::uint64_t missing_bytes = 0;
};

// From the post to the end by its host's clock, and how late an end may be: what its host took to notice.
struct Duration {
  base::DurationNs took_ns = 0;
  base::DurationNs timeout_ns = 0;  // its own, or the endpoint's default
  base::DurationNs slack_ns = 0;
};

struct Violation {
  int rule = 0;
  std::string text;
};
using Finding = std::optional<Violation>;  // nothing: as promised

inline bool arrived(const core::Completion& completion, std::uint32_t segment) {
  return completion.received_bitmap.empty() || ((completion.received_bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
}

// Whether a side gives the other one a reason to end as cancelled.
inline bool gave_reason(const Side& side) {
  return side.cancelled || side.lost || (side.ended && core::is_failure(side.status));
}

// Rules 3 and 14: no later than its deadline and time-out, and not before them where they are the reason.
Finding check_duration(const Side& side, const Duration& duration);

// Rule 3: a failure that the other side (null: never posted) is a reason for. `outcome_forgotten`: the other side
// ended so many operations ago that it knows only that it ended.
Finding check_reason(const Side& side, const Side* other, bool outcome_forgotten);

// Rule 3: a send ends well only with its receive (null: never posted), and as that did.
Finding check_agreement(const Side& send, const Side* receive);

// Rule 1: what the status promises, by arithmetic of its own.
Finding check_bound(const Plan& receive, const core::Completion& completion);

// Rules 1 to 3: a receive ends well only with a send (null: never posted) of its size and type, and has all of that
// send's critical segments.
Finding check_source(const Plan& receive, const core::Completion& completion, const Plan* send);

// Rule 2: what each part of a receive's buffer must hold.
enum class Source : std::uint8_t {
  kSent,  // what was sent, at its place
  kZero,  //
  kKept,  // what was there at the post
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

// Rule 2: `missing_bytes` is what the bitmap lacks.
Finding check_missing_bytes(const Plan& receive, const core::Completion& completion);

}  // namespace mlt::sim
