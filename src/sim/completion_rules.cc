#include "sim/completion_rules.h"

namespace mlt::sim {

using core::Completion;
using core::CompletionKind;
using core::CompletionStatus;

Finding check_duration(const Side& side, const Duration& duration) {
  const base::DurationNs deadline = side.plan->deadline_ns;
  const base::DurationNs late = duration.took_ns - deadline;
  if (deadline > 0 && late > duration.slack_ns) {
    return Violation{3, "ended " + std::to_string(late) + " ns after its deadline"};
  }
  const base::DurationNs beyond = duration.took_ns - duration.timeout_ns;
  if (beyond > duration.slack_ns) {
    return Violation{14, "ended " + std::to_string(beyond) + " ns after its timeout"};
  }
  if (!side.ended) return std::nullopt;
  // Clause 7.1.6
  const bool without_size = side.plan->up_to && deadline > 0 && late >= 0;
  if (side.status == CompletionStatus::kTimedOut && beyond < 0 && !without_size) {
    return Violation{3, "timed out before its time"};
  }
  if (side.status == CompletionStatus::kDeadline && side.kind == CompletionKind::kReceive &&
      (deadline == 0 || late < 0)) {
    return Violation{3, "ended by a deadline that has not passed"};
  }
  return std::nullopt;
}

Finding check_reason(const Side& side, const Side* other, bool outcome_forgotten) {
  switch (side.status) {
    case CompletionStatus::kCancelled:
      if (!side.cancelled && (other == nullptr || !(gave_reason(*other) || outcome_forgotten))) {
        return Violation{3, "cancelled without a cancel"};
      }
      return std::nullopt;
    case CompletionStatus::kSizeMismatch:
      if (other == nullptr || sizes_agree(*other->plan, *side.plan)) return Violation{3, "sizes do not differ"};
      return std::nullopt;
    case CompletionStatus::kTypeMismatch:
      if (other == nullptr || other->plan->element == side.plan->element) return Violation{3, "types do not differ"};
      return std::nullopt;
    case CompletionStatus::kTimedOut:
    case CompletionStatus::kPeerFailed:
    case CompletionStatus::kDeadline:
    case CompletionStatus::kComplete:
    case CompletionStatus::kWithinBound:
      return std::nullopt;
  }
  return std::nullopt;
}

Finding check_agreement(const Side& send, const Side* receive) {
  if (core::is_failure(send.status)) return std::nullopt;
  if (receive == nullptr) return Violation{3, "succeeded, but no host posted its receive"};
  if (receive->lost) return std::nullopt;  // it completed there, and then its process died
  // A failed receive must not be reported as a success here.
  if (!receive->ended) return Violation{3, "succeeded before its receive ended"};
  if (receive->status != send.status || receive->missing_bytes != send.missing_bytes) {
    return Violation{3, "ends with status " + std::to_string(static_cast<int>(send.status)) + " and " +
                            std::to_string(send.missing_bytes) + " bytes missing, its receive with " +
                            std::to_string(static_cast<int>(receive->status)) + " and " +
                            std::to_string(receive->missing_bytes)};
  }
  return std::nullopt;
}

Finding check_bound(const Plan& receive, const Completion& completion) {
  const std::uint64_t element = wire::element_bytes(receive.element);
  const std::uint64_t elements = receive.bytes / element;
  const std::uint64_t missing = completion.missing_bytes;
  if (missing % element != 0) return Violation{1, "part of an element is missing"};
  // The definition itself: the maximum number of elements whose fraction is within the bound, in double precision.
  const auto within = [&](std::uint64_t lost) {
    return lost == 0 || static_cast<double>(lost) / static_cast<double>(elements) <= receive.loss_bound;
  };
  const std::uint64_t allowed = completion.allowed_missing_bytes / element;
  if (receive.shared_budget != 0) {
    // Its own bound, or of a patient one a segment if that is more; less if the others have drawn.
    const bool is_patient = receive.stop == core::StopPolicy::kPatient;
    const std::uint64_t segment = is_patient ? std::min<std::uint64_t>(receive.bytes, completion.segment_bytes) : 0;
    const bool is_own = completion.allowed_missing_bytes % element == 0 && within(allowed);
    if (!is_own && completion.allowed_missing_bytes > segment) {
      return Violation{1, std::to_string(allowed) + " elements may be missing, more than its own bound allows"};
    }
    if (completion.status == CompletionStatus::kComplete && missing != 0) {
      return Violation{1, "complete, but something is missing"};
    }
    if (completion.status != CompletionStatus::kWithinBound) return std::nullopt;
    if (missing == 0) return Violation{1, "within its bound, but nothing is missing"};
    if (missing > completion.allowed_missing_bytes) {
      return Violation{1, std::to_string(missing) + " bytes are missing, beyond what it may draw"};
    }
    return std::nullopt;
  }
  if (completion.allowed_missing_bytes % element != 0 || !within(allowed) || (elements > 0 && within(allowed + 1))) {
    return Violation{1, std::to_string(allowed) + " elements may be missing, which is not what the bound allows"};
  }
  if (completion.status == CompletionStatus::kComplete && missing != 0) {
    return Violation{1, "complete, but something is missing"};
  }
  if (completion.status != CompletionStatus::kWithinBound) return std::nullopt;
  if (missing == 0) return Violation{1, "within its bound, but nothing is missing"};
  if (!within(missing / element)) {
    return Violation{1, std::to_string(missing) + " bytes are missing, beyond the bound"};
  }
  return std::nullopt;
}

Finding check_source(const Plan& receive, const Completion& completion, const Plan* send) {
  if (completion.status != CompletionStatus::kComplete && completion.status != CompletionStatus::kWithinBound) {
    return std::nullopt;
  }
  if (send == nullptr) return Violation{2, "succeeded, but no host sent it"};
  if (send->bytes != receive.bytes || send->element != receive.element) {
    return Violation{3, "succeeded with a send of another size or type"};
  }
  for (std::uint32_t segment = 0; segment < completion.segment_count; ++segment) {
    const bool critical = send->priorities.size() == completion.segment_count ? send->priorities[segment].is_critical()
                                                                              : send->uniform_priority.is_critical();
    if (critical && !arrived(completion, segment) && receive.bytes > 0) {
      return Violation{1, "critical segment " + std::to_string(segment) + " is missing"};
    }
  }
  return std::nullopt;
}

Finding check_missing_bytes(const Plan& receive, const Completion& completion) {
  std::uint64_t missing = 0;
  for_each_part(receive, completion, [&](const Part& part) {
    if (part.source != Source::kSent) missing += part.end - part.begin;
    return true;
  });
  if (missing != completion.missing_bytes) return Violation{2, "missing_bytes does not agree with the bitmap"};
  return std::nullopt;
}

}  // namespace mlt::sim
