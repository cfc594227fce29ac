// The oracle as a judge of single operations.
#include "sim/oracle.h"

#include <algorithm>
#include <cstring>

#include "sim/oracle_contents.h"

namespace mlt::sim {

namespace {

using core::Completion;
using core::CompletionKind;
using core::CompletionStatus;
using core::Counter;

// Between the end of one side of a transfer and that of the other, whatever the network does meanwhile.
constexpr base::DurationNs kTellNs = 3 * base::kSecond;
// Between a deadline and the end of its receive: a host that is awake needs no more.
constexpr base::DurationNs kDeadlineSlackNs = 10 * base::kMicrosecond;

bool arrived(const Completion& completion, std::uint32_t segment) {
  return completion.received_bitmap.empty() || ((completion.received_bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
}

}  // namespace

Oracle::Oracle(VirtualDriver& driver, bool faultless)
    : simulator_(driver),
      faultless_(faultless),
      retired_(core::kCounterNames.size()),
      receives_ended_(driver.hosts()),
      paused_(driver.hosts()),
      limits_found_(driver.hosts()) {
  if (driver.shows_everything()) {
    watches_ = std::make_unique<Watches>(Watches{SendWatch(driver), ReceiveWatch(driver), {}});
    watches_->due.resize(driver.hosts());
    driver.observer = this;
  }
  simulator_.on_completion = [this](std::uint16_t rank, const Completion& c) { on_completion(rank, c); };
  simulator_.on_crash = [this](std::uint16_t rank, const core::Endpoint& endpoint) {
    for (std::size_t i = 0; i < retired_.size(); ++i) retired_[i] += endpoint.counters().values()[i];
    unwatch_host(rank);
    for (const auto& operation : operations_) {
      if (operation->plan.host != rank || operation->ended || operation->lost) continue;
      operation->lost = true;
      --open_;
    }
  };
}

Oracle::~Oracle() {
  simulator_.observer = nullptr;
  simulator_.on_completion = nullptr;
  simulator_.on_crash = nullptr;
}

void Oracle::violate(int rule, const Operation& operation, const std::string& text) {
  simulator_.fail("rule " + std::to_string(rule) + ": " + kind_name(operation.kind) + " " +
                  std::to_string(operation.id) + " of rank " + std::to_string(operation.plan.host) + ", peer " +
                  std::to_string(operation.plan.peer) + ", tag " + std::to_string(operation.plan.tag) + ", " +
                  std::to_string(operation.plan.bytes) + " bytes: " + text);
}

// ---- completions ---------------------------------------------------------------------------------------------------

void Oracle::on_completion(std::uint16_t rank, const Completion& completion) {
  ++completions_;
  if (completion.operation == 0 || completion.operation > operations_.size()) {
    return simulator_.fail("rule 3: rank " + std::to_string(rank) + " completes operation " +
                           std::to_string(completion.operation) + ", which nobody posted");
  }
  Operation& operation = *operations_[completion.operation - 1];
  check_common(operation, completion);
  if (operation.ended || operation.lost) return violate(3, operation, "completes again");
  if (operation.plan.host != rank || operation.kind != completion.kind) {
    return violate(3, operation, "completes at rank " + std::to_string(rank) + " as a " + kind_name(completion.kind));
  }
  operation.status = completion.status;
  operation.missing_bytes = completion.missing_bytes;
  if (operation.kind == CompletionKind::kReceive) operation.ended_at = ++receives_ended_[rank];
  operation.ended_ns = simulator_.now();
  operation.ended = true;  // what is checked below may look at both sides
  --open_;
  unwatch(operation);
  mix_contents(operation, completion);
  check_memory(operation);
  check_end(operation, completion);
  if (operation.kind == CompletionKind::kSend) {
    check_send(operation, completion);
  } else {
    check_receive(operation, completion);
  }
  end(operation);
}

void Oracle::check_common(Operation& operation, const Completion& completion) {
  const Plan& plan = operation.plan;
  if (completion.tag != plan.tag || completion.peer != plan.peer || completion.total_bytes != plan.bytes) {
    violate(3, operation, "the completion names another transfer");
  }
  if (completion.missing_bytes > plan.bytes && !core::is_failure(completion.status)) {
    violate(1, operation, "more is missing than there is");
  }
}

// Failures need a reason, and a deadline or timeout must have passed.
void Oracle::check_end(const Operation& operation, const Completion& completion) {
  const Plan& plan = operation.plan;
  const HostConfig& host = simulator_.host(plan.host).config();
  const base::TimeNs now = host.clock.local(simulator_.now());
  const base::DurationNs late = now - operation.posted_ns - plan.deadline_ns;
  if (plan.deadline_ns > 0 && late > kDeadlineSlackNs + host.wake_up_ns && !paused_[plan.host]) {
    violate(3, operation, "ended " + std::to_string(late) + " ns after its deadline");
  }
  const base::DurationNs timeout = plan.timeout_ns > 0 ? plan.timeout_ns : host.endpoint.operation_timeout_ns;
  const base::DurationNs beyond = now - operation.posted_ns - timeout;
  if (beyond > kDeadlineSlackNs + host.wake_up_ns && !paused_[plan.host]) {
    violate(14, operation, "ended " + std::to_string(beyond) + " ns after its timeout");
  }
  const auto match = matches_.find(operation.key);
  const core::OperationId other_id =
      operation.kind == CompletionKind::kSend ? match->second.receive : match->second.send;
  const Operation* other = other_id == 0 ? nullptr : operations_[other_id - 1].get();
  switch (completion.status) {
    case CompletionStatus::kTimedOut:
      if (now < operation.posted_ns + timeout) violate(3, operation, "timed out before its time");
      // Both sides are there, and the faults are over long before a default timeout: nothing excuses it.
      if (plan.timeout_ns == 0 && other != nullptr && !other_failed(*other)) {
        violate(3, operation, "timed out, although its other side was posted");
      }
      // Who gives up tells the other side over a connection that loses nothing.
      if (plan.timeout_ns == 0 && other != nullptr && other->ended && other->ended_ns > operation.posted_virtual_ns &&
          simulator_.now() - other->ended_ns > kTellNs &&
          simulator_.connection(plan.host, plan.peer) == operation.key.connection) {
        violate(3, operation, "timed out long after its other side had given up");
      }
      return;
    case CompletionStatus::kDeadline:
      if (operation.kind == CompletionKind::kReceive &&
          (plan.deadline_ns == 0 || now < operation.posted_ns + plan.deadline_ns)) {
        violate(3, operation, "ended by a deadline that has not passed");
      }
      return;
    case CompletionStatus::kPeerFailed:
      if (simulator_.connection(plan.host, plan.peer) == operation.key.connection && !operation.too_long &&
          !may_be_too_long(operation)) {
        violate(3, operation, "the peer is said to have failed, but the connection is up");
      }
      // A path limit may end it before it reads how its receiver did (18.1.5).
      if (operation.told && !operation.too_long && !may_be_too_long(operation)) {
        violate(3, operation, "its receiver ended it well and left in order, and it failed");
      }
      return;
    case CompletionStatus::kCancelled:
      if (!operation.cancelled && (other == nullptr || !(other_failed(*other) || outcome_forgotten(*other)))) {
        violate(3, operation, "cancelled by nobody");
      }
      return;
    case CompletionStatus::kSizeMismatch:
      if (other == nullptr || other->plan.bytes == plan.bytes) violate(3, operation, "sizes do not differ");
      return;
    case CompletionStatus::kTypeMismatch:
      if (other == nullptr || other->plan.element == plan.element) violate(3, operation, "types do not differ");
      return;
    case CompletionStatus::kComplete:
    case CompletionStatus::kWithinBound:
      return;
  }
}

// Whether some link ever lost this send's longest datagram for its length (12.6.5, 18.1.5).
bool Oracle::may_be_too_long(const Operation& operation) const {
  return operation.kind == CompletionKind::kSend && longest_datagram(operation) > shortest_link_bytes_;
}

std::uint32_t Oracle::longest_datagram(const Operation& operation) const {
  const std::uint32_t segment = simulator_.host(operation.plan.host).config().endpoint.max_segment_bytes;
  return std::min(operation.plan.bytes, segment) + MLT_DATA_HEADER_BYTES;
}

// Whether an operation gives its other side a reason to end as cancelled.
bool Oracle::other_failed(const Operation& operation) const {
  return operation.cancelled || operation.lost || (operation.ended && core::is_failure(operation.status));
}

// A sender that asks for an outcome so late that as many others were logged since is told "finished before", and claims
// no success.
bool Oracle::outcome_forgotten(const Operation& operation) const {
  const std::uint16_t host = operation.plan.host;
  return operation.kind == CompletionKind::kReceive && operation.ended &&
         receives_ended_[host] - operation.ended_at >= simulator_.host(host).config().endpoint.finished_log;
}

void Oracle::check_send(Operation& operation, const Completion& completion) {
  if (core::is_failure(completion.status)) return;
  const Match& match = matches_.at(operation.key);
  if (match.receive == 0) return violate(3, operation, "succeeded, but nobody posted its receive");
  const Operation& receive = *operations_[match.receive - 1];
  if (receive.lost) return;  // it ended there, and then its process died
  // A receive that ended without success never reads as success here.
  if (!receive.ended) return violate(3, operation, "succeeded before its receive ended");
  if (receive.status != completion.status || receive.missing_bytes != completion.missing_bytes) {
    violate(3, operation,
            "ends with status " + std::to_string(static_cast<int>(completion.status)) + " and " +
                std::to_string(completion.missing_bytes) + " bytes missing, its receive with " +
                std::to_string(static_cast<int>(receive.status)) + " and " + std::to_string(receive.missing_bytes));
  }
}

void Oracle::check_receive(Operation& operation, const Completion& completion) {
  operation.segment_bytes = completion.segment_bytes;
  check_status(operation, completion);
  if (!simulator_.fault().empty()) return;
  check_contents(operation, completion);
}

// Rule 1, and 8: what the status promises, by arithmetic of its own.
void Oracle::check_status(const Operation& receive, const Completion& completion) {
  const Plan& plan = receive.plan;
  const std::uint64_t element = wire::element_bytes(plan.element);
  const std::uint64_t elements = plan.bytes / element;
  const std::uint64_t missing = completion.missing_bytes;
  if (missing % element != 0) violate(1, receive, "part of an element is missing");
  // The definition itself: the most elements that are no larger a fraction than the bound, in double precision.
  const auto within = [&](std::uint64_t lost) {
    return lost == 0 || static_cast<double>(lost) / static_cast<double>(elements) <= plan.loss_bound;
  };
  const std::uint64_t allowed = completion.allowed_missing_bytes / element;
  if (completion.allowed_missing_bytes % element != 0 || !within(allowed) || (elements > 0 && within(allowed + 1))) {
    violate(1, receive, std::to_string(allowed) + " elements may be missing, which is not what the bound allows");
  }
  switch (completion.status) {
    case CompletionStatus::kComplete:
      if (missing != 0) violate(1, receive, "complete, but something is missing");
      break;
    case CompletionStatus::kWithinBound:
      if (missing == 0) violate(1, receive, "within its bound, but nothing is missing");
      if (!within(missing / element)) {
        violate(1, receive, std::to_string(missing) + " bytes are missing, beyond the bound");
      }
      if (faultless_ && plan.stop == core::StopPolicy::kPatient && plan.peer != overrunning_) {
        violate(8, receive, std::to_string(missing) + " bytes lost on a network without faults");
      }
      break;
    default:
      return;
  }
  const Match& match = matches_.at(receive.key);
  if (match.send == 0) return violate(2, receive, "succeeded, but nobody sent it");
  const Operation& send = *operations_[match.send - 1];
  if (send.plan.bytes != plan.bytes || send.plan.element != plan.element) {
    return violate(3, receive, "succeeded with a send of another size or type");
  }
  for (std::uint32_t segment = 0; segment < completion.segment_count; ++segment) {
    const bool critical = send.plan.tags.size() == completion.segment_count ? send.plan.tags[segment].is_critical()
                                                                            : send.plan.uniform_tag.is_critical();
    if (critical && !arrived(completion, segment) && plan.bytes > 0) {
      return violate(1, receive, "critical segment " + std::to_string(segment) + " is missing");
    }
  }
}

// Rule 2: what arrived is what was sent, at its place; what did not is filled, or as it was.
void Oracle::check_contents(const Operation& receive, const Completion& completion) {
  const Plan& plan = receive.plan;
  const std::span<const std::byte> data = std::span(receive.memory).subspan(kCanaryBytes, plan.bytes);
  const Match& match = matches_.at(receive.key);
  const bool failed = core::is_failure(completion.status);
  std::uint64_t missing = 0;
  for (std::uint32_t segment = 0; segment < completion.segment_count; ++segment) {
    const std::size_t begin = std::min<std::size_t>(std::size_t{segment} * completion.segment_bytes, plan.bytes);
    const std::size_t end = std::min<std::size_t>(plan.bytes, begin + completion.segment_bytes);
    const std::span<const std::byte> got = data.subspan(begin, end - begin);
    if (arrived(completion, segment)) {
      // A segment that arrived must have been sent; of a failed transfer too.
      if (got.empty()) continue;
      if (match.send == 0) return violate(2, receive, "a segment arrived that nobody sent");
      const std::size_t at = first_difference(match.send, 0, begin, got);
      if (at != end) return violate(2, receive, "wrong bytes from " + std::to_string(at));
      continue;
    }
    missing += end - begin;
    const bool zero = !failed && plan.fill == core::Fill::kZero && !plan.by_place_function;
    const bool right = zero ? std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0}; })
                            : first_difference(receive.id, 0, begin, got) == end;
    if (!right) return violate(2, receive, "missing segment " + std::to_string(segment) + " is not filled as promised");
  }
  if (missing != completion.missing_bytes) violate(2, receive, "missing_bytes does not agree with the bitmap");
}

// The application has its memory back, and uses it for something else.
void Oracle::end(Operation& operation) {
  operation.epoch = 1;
  fill_contents(operation.id, operation.epoch, std::span(operation.memory).subspan(kCanaryBytes, operation.plan.bytes));
}

// Rule 4. A send's memory is never written; a receive's not after its end.
void Oracle::check_memory(const Operation& operation) {
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  const std::span<const std::byte> memory = operation.memory;
  if (!std::ranges::all_of(memory.first(kCanaryBytes), is_canary) ||
      !std::ranges::all_of(memory.last(kCanaryBytes), is_canary)) {
    violate(4, operation, "written outside its buffer");
  }
  if (operation.kind == CompletionKind::kReceive && operation.epoch == 0) return;
  const std::span<const std::byte> data = memory.subspan(kCanaryBytes, operation.plan.bytes);
  if (first_difference(operation.id, operation.epoch, 0, data) != data.size()) {
    violate(4, operation,
            operation.kind == CompletionKind::kSend ? "a send's memory was written"
                                                    : "memory of an ended receive was written");
  }
}

}  // namespace mlt::sim
