#include "sim/chaos/checker.h"

#include <algorithm>

#include "core/config.h"
#include "sim/chaos/digest.h"

namespace mlt::chaos {

namespace {

using core::CompletionKind;
using core::CompletionStatus;

bool touches(const Fault& fault, std::uint16_t a, std::uint16_t b) {
  return fault.ranks.empty() || std::ranges::count(fault.ranks, a) != 0 || std::ranges::count(fault.ranks, b) != 0;
}

bool overlaps(const Fault& fault, base::TimeNs begin, base::TimeNs end) {
  return fault.begin_ns <= end && begin <= fault.end_ns;
}

std::vector<std::uint64_t> key_of(const Operation& operation) {
  const sim::Plan& plan = operation.plan;
  const bool is_send = operation.kind == CompletionKind::kSend;
  return {is_send ? plan.host : plan.peer, is_send ? plan.peer : plan.host, plan.tag, operation.generation};
}

}  // namespace

Checker::Checker(const Job& job) : job_(job) {}

void Checker::run() {
  match();
  for (const auto& [number, rank] : job_.ranks) {
    for (const std::string& fault : rank.faults)
      broken_.push_back({3, "rank " + std::to_string(number) + ": " + fault});
    const bool killed = std::ranges::any_of(job_.faults, [&](const Fault& fault) {
      return fault.kind == "kill" && std::ranges::count(fault.ranks, number) != 0;
    });
    if (!rank.said_goodbye && !killed) {
      broken_.push_back({3, "rank " + std::to_string(number) + " ended by itself (job " + job_.name + ")"});
    }
    for (const Refusal& refusal : rank.refusals) check_refusal(number, refusal);
    for (const auto& [id, operation] : rank.operations) {
      count(operation);
      check_ends(operation);
      check_memory(operation);
      if (operation.group.empty()) check_transfer(operation);
    }
  }
  check_collectives();
}

void Checker::match() {
  for (const auto& [number, rank] : job_.ranks) {
    for (const auto& [id, operation] : rank.operations) {
      if (!operation.group.empty()) continue;
      Pair& pair = pairs_[key_of(operation)];
      (operation.kind == CompletionKind::kSend ? pair.send : pair.receive) = &operation;
    }
  }
}

void Checker::violate(int rule, const Operation& operation, const std::string& text) {
  const sim::Plan& plan = operation.plan;
  std::string whose = operation.verb + " " + std::to_string(operation.id) + " of rank " + std::to_string(plan.host);
  if (operation.group.empty()) {
    whose += ", peer " + std::to_string(plan.peer) + ", tag " + std::to_string(plan.tag) + ", generation " +
             std::to_string(operation.generation);
  }
  broken_.push_back({rule, "job " + job_.name + ": " + whose + ", " + std::to_string(plan.bytes) + " bytes: " + text});
}

void Checker::hold(const Operation& operation, const sim::Finding& finding) {
  if (finding) violate(finding->rule, operation, finding->text);
}

bool Checker::is_lost(const Operation& operation) const {
  return operation.ends == 0 && !job_.ranks.at(operation.plan.host).said_goodbye;
}

sim::Side Checker::side_of(const Operation& operation) const {
  return {&operation.plan,
          operation.kind,
          operation.ends > 0,
          is_lost(operation),
          operation.cancelled_ns > 0,
          operation.status,
          operation.completion.missing_bytes};
}

// A post is refused only towards a peer that went down; a collective's, if any did.
void Checker::check_refusal(std::uint16_t rank, const Refusal& refusal) {
  bool excused = false;
  for (const auto& [other, unused] : job_.ranks) {
    if (refusal.peer < 0 || refusal.peer == other) excused = excused || is_cut(rank, other, refusal.at_ns);
  }
  if (refusal.code == "peer_failed" && excused) return;
  broken_.push_back({3, "job " + job_.name + ": rank " + std::to_string(rank) + ", peer " +
                            std::to_string(refusal.peer) + ": a post was refused (" + refusal.code + ")"});
}

// What its rank was stopped for, and the machine's own stalls, excuse an operation for coming late.
base::DurationNs Checker::slack(const Operation& operation) const {
  base::DurationNs sum = kSlackNs + job_.stall_ns;
  for (const Fault& fault : job_.faults) {
    if (fault.kind != "stop" || std::ranges::count(fault.ranks, operation.plan.host) == 0) continue;
    if (overlaps(fault, operation.posting_ns, operation.ended_ns)) sum += fault.end_ns - fault.begin_ns;
  }
  return sum;
}

void Checker::check_ends(const Operation& operation) {
  if (operation.ends > 1) return violate(3, operation, "completes again");
  if (operation.ends == 0) {
    if (!is_lost(operation)) violate(3, operation, "never ended");
    return;
  }
  if (operation.completion.total_bytes != operation.plan.bytes) {
    violate(3, operation, "the completion names another size");
  }
  const base::DurationNs took = operation.ended_ns - operation.posting_ns;
  if (operation.completion.elapsed_ns > took) violate(3, operation, "says that it took longer than it did");
  sim::Side side = side_of(operation);
  // A collective takes over how it ended at another member (22.1.7): check_collective() looks for one whose time it
  // was.
  if (!operation.group.empty()) side.status = CompletionStatus::kComplete;
  hold(operation, sim::check_duration(side, {took, operation.plan.timeout_ns, slack(operation)}));
  check_settled(operation);
}

// Rule 14, of what an application can see.
void Checker::check_settled(const Operation& operation) {
  const base::DurationNs late = operation.ended_ns - slack(operation);
  if (operation.cancelled_ns > 0 && late > operation.cancelled_ns) {
    violate(14, operation,
            "ended " + std::to_string(operation.ended_ns - operation.cancelled_ns) + " ns after it was cancelled");
  }
  if (!operation.group.empty()) return;
  for (const Fault& fault : job_.faults) {
    if (fault.kind != "kill" || std::ranges::count(fault.ranks, operation.plan.peer) == 0) continue;
    const base::TimeNs since = std::max(fault.begin_ns, operation.posting_ns);
    if (late > since + job_.peer_timeout_ns) {
      violate(14, operation, "ended " + std::to_string(operation.ended_ns - since) + " ns after its peer was killed");
    }
  }
}

// Rule 4.
void Checker::check_memory(const Operation& operation) {
  if (operation.ends == 0) return;
  if (operation.guards != guards_digest()) violate(4, operation, "written outside its buffer");
  if (operation.verb == "send" && operation.digest != digest_of(operation.id, 0, 0, operation.plan.bytes)) {
    violate(4, operation, "a send's memory was written");
  }
  if (!operation.is_used_again) return;
  if (operation.later_guards != guards_digest()) violate(4, operation, "written outside its buffer after its end");
  if (operation.later_digest != digest_of(operation.id, 1, 0, operation.plan.bytes)) {
    violate(4, operation, "memory was written after the operation's end");
  }
}

void Checker::check_transfer(const Operation& operation) {
  if (operation.ends == 0) return;
  const Pair& pair = pairs_.at(key_of(operation));
  const bool is_send = operation.kind == CompletionKind::kSend;
  const Operation* other = is_send ? pair.receive : pair.send;
  const sim::Side own = side_of(operation);
  const sim::Side other_side = other == nullptr ? sim::Side{} : side_of(*other);
  // An outcome is remembered for so many receives; a trace does not show how many ended before it was asked for.
  const bool forgotten = other != nullptr && other->ends > 0 &&
                         job_.ranks.at(operation.plan.peer).operations.size() > core::EndpointConfig{}.finished_log;
  hold(operation, sim::check_reason(own, other == nullptr ? nullptr : &other_side, forgotten));
  if (operation.status == CompletionStatus::kPeerFailed) check_peer_failed(operation, operation.ended_ns);
  if (operation.status == CompletionStatus::kTimedOut) check_progress(operation, other);
  if (!is_send) return check_receive(operation, other);
  hold(operation, sim::check_agreement(own, other == nullptr ? nullptr : &other_side));
  if (!core::is_failure(operation.status) && other != nullptr && other->ends > 0 &&
      operation.ended_ns < other->posting_ns + other->completion.elapsed_ns) {
    violate(3, operation, "succeeded before its receive ended");
  }
}

void Checker::check_receive(const Operation& receive, const Operation* send) {
  if (receive.off_grid) return violate(2, receive, "what is missing are no whole segments");
  hold(receive, sim::check_bound(receive.plan, receive.completion));
  hold(receive, sim::check_source(receive.plan, receive.completion, send == nullptr ? nullptr : &send->plan));
  check_contents(receive, send);
  if (receive.plan.stop != core::StopPolicy::kPatient || send == nullptr || core::is_failure(receive.status)) return;
  if (dropped_between(send->posting_ns, receive.ended_ns)) return;
  ++totals_.receives_without_drops;
  if (receive.status == CompletionStatus::kWithinBound) {
    violate(8, receive, std::to_string(receive.completion.missing_bytes) + " bytes lost while nothing was dropped");
  }
}

// Rule 2. After a failure the buffer is unspecified, but holds nothing that was neither there nor sent: the trace has
// what arrived and what is missing apart.
void Checker::check_contents(const Operation& receive, const Operation* send) {
  hold(receive, sim::check_missing_bytes(receive.plan, receive.completion));
  if (core::is_failure(receive.status)) return;
  std::uint64_t sent = 0;
  std::uint64_t gaps = 0;
  sim::for_each_part(receive.plan, receive.completion, [&](const sim::Part& part) {
    if (part.source == sim::Source::kSent && send != nullptr) sent += digest_of(send->id, 0, part.begin, part.end);
    if (part.source == sim::Source::kKept) gaps += digest_of(receive.id, 0, part.begin, part.end);
    return true;
  });
  if (sent != receive.digest) violate(2, receive, "what arrived is not what was sent");
  if (gaps != receive.gaps_digest) violate(2, receive, "what is missing is not filled as promised");
}

void Checker::check_peer_failed(const Operation& operation, base::TimeNs at) {
  if (is_cut(operation.plan.host, operation.plan.peer, at)) return;
  violate(3, operation, "the peer is said to have failed, but nothing cut it off");
}

// Rule 7.
void Checker::check_progress(const Operation& operation, const Operation* other) {
  if (other == nullptr || sim::gave_reason(side_of(*other)) || is_disturbed(operation)) return;
  if (operation.ended_ns - std::max(operation.posted_ns, other->posted_ns) < kProgressNs) return;
  violate(7, operation, "timed out, although its other side was posted and nothing disturbed it");
}

bool Checker::is_disturbed(const Operation& operation) const {
  return std::ranges::any_of(
      job_.faults, [&](const Fault& fault) { return overlaps(fault, operation.posting_ns, operation.ended_ns); });
}

bool Checker::dropped_between(base::TimeNs begin, base::TimeNs end) const {
  return std::ranges::any_of(job_.drops, [&](const Fault& drop) { return overlaps(drop, begin, end); });
}

bool Checker::is_cut(std::uint16_t a, std::uint16_t b, base::TimeNs at) const {
  for (const Fault& fault : job_.faults) {
    if (fault.begin_ns <= at && touches(fault, a, b) && (fault.cuts || fault.kind == "kill")) return true;
  }
  const auto left = [&](std::uint16_t rank) {
    const auto found = job_.ranks.find(rank);
    return found != job_.ranks.end() && found->second.said_goodbye && found->second.goodbye_ns <= at;
  };
  return left(a) || left(b);
}

void Checker::count(const Operation& operation) {
  static const char* const names[] = {"complete",      "within_bound", "deadline",  "size_mismatch",
                                      "type_mismatch", "peer_failed",  "timed_out", "cancelled"};
  ++totals_.operations;
  if (operation.ends == 0) {
    ++totals_.lost;
    return;
  }
  ++totals_.by_status[operation.verb + "." + names[static_cast<int>(operation.status)]];
  if (operation.verb == "receive" && !core::is_failure(operation.status)) {
    totals_.bytes += operation.plan.bytes;
    if (operation.status == CompletionStatus::kWithinBound) totals_.missing_bytes += operation.completion.missing_bytes;
  }
  for (const Fault& fault : job_.faults) {
    if (!overlaps(fault, operation.posting_ns, operation.ended_ns)) continue;
    base::DurationNs& worst = totals_.worst_end[fault.kind];
    worst = std::max(worst, operation.ended_ns - std::max(fault.begin_ns, operation.posting_ns));
  }
}

}  // namespace mlt::chaos
