// The oracle's checks of single operations.
#include "sim/oracle.h"

#include <algorithm>
#include <cstring>

#include "core/mtu_search.h"
#include "sim/oracle_contents.h"

namespace mlt::sim {

namespace {

using core::Completion;
using core::CompletionKind;
using core::CompletionStatus;
using core::Counter;

// Maximum time between the ends of the two sides of a transfer, whatever the network's faults.
constexpr base::DurationNs kTellNs = 3 * base::kSecond;
// Maximum time between a deadline and the end of its receive, on a host that is awake.
constexpr base::DurationNs kDeadlineSlackNs = 10 * base::kMicrosecond;

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

void Oracle::hold(const Operation& operation, const Finding& verdict) {
  if (verdict) violate(verdict->rule, operation, verdict->text);
}

Side Oracle::side_of(const Operation& operation) {
  return {&operation.plan,     operation.kind,   operation.ended,        operation.lost,
          operation.cancelled, operation.status, operation.missing_bytes};
}

// ---- completions ---------------------------------------------------------------------------------------------------

void Oracle::on_completion(std::uint16_t rank, const Completion& completion) {
  ++completions_;
  if (completion.operation == 0 || completion.operation > operations_.size()) {
    return simulator_.fail("rule 3: rank " + std::to_string(rank) + " completes operation " +
                           std::to_string(completion.operation) + ", which no host posted");
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
  operation.ended = true;  // the checks below may look at both sides
  --open_;
  unwatch(operation);
  mix_contents(operation, completion);
  check_not_fed(operation);
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
  if (completion.tag != plan.tag || completion.peer != plan.peer || !names_size(operation, completion)) {
    violate(3, operation, "the completion names another transfer");
  }
  if (completion.missing_bytes > plan.bytes && !core::is_failure(completion.status)) {
    violate(1, operation, "more is missing than there is");
  }
}

// Clause 7.1.5: of a receive up to a size it is the sender's, but where it failed before one was named.
bool Oracle::names_size(const Operation& operation, const Completion& completion) const {
  const Plan& plan = operation.plan;
  if (!plan.up_to) return completion.total_bytes == plan.bytes;
  if (completion.total_bytes == plan.bytes && core::is_failure(completion.status)) return true;
  const core::OperationId send = matches_.at(operation.key).send;
  return send != 0 && completion.total_bytes == operations_[send - 1]->plan.bytes &&
         completion.total_bytes <= plan.bytes;
}

// Failures need a reason, and a deadline or timeout must have passed.
void Oracle::check_end(const Operation& operation, const Completion& completion) {
  const Plan& plan = operation.plan;
  const HostConfig& host = simulator_.host(plan.host).config();
  Duration duration;
  duration.took_ns = host.clock.local(simulator_.now()) - operation.posted_ns;
  duration.timeout_ns = plan.timeout_ns > 0 ? plan.timeout_ns : host.endpoint.operation_timeout_ns;
  duration.slack_ns = paused_[plan.host] ? base::kNever : kDeadlineSlackNs + host.wake_up_ns;
  hold(operation, check_duration(side_of(operation), duration));
  const auto match = matches_.find(operation.key);
  const core::OperationId other_id =
      operation.kind == CompletionKind::kSend ? match->second.receive : match->second.send;
  const Operation* other = other_id == 0 ? nullptr : operations_[other_id - 1].get();
  const Side other_side = other == nullptr ? Side{} : side_of(*other);
  hold(operation, check_reason(side_of(operation), other == nullptr ? nullptr : &other_side,
                               other != nullptr && outcome_forgotten(*other)));
  const bool connected = simulator_.connection(plan.host, plan.peer) == operation.key.connection;
  const bool may_lack_size = plan.up_to && plan.deadline_ns > 0;  // 7.1.6
  if (completion.status == CompletionStatus::kTimedOut && plan.timeout_ns == 0 && other != nullptr && !may_lack_size) {
    // Both sides are posted, and the faults end long before a default timeout: nothing excuses it.
    if (!gave_reason(other_side)) violate(3, operation, "timed out, although its other side was posted");
    // A side that fails notifies the other over a connection that loses nothing.
    if (other->ended && other->ended_ns > operation.posted_virtual_ns && simulator_.now() - other->ended_ns > kTellNs &&
        connected) {
      violate(3, operation, "timed out long after the other rank aborted it");
    }
  }
  if (completion.status == CompletionStatus::kPeerFailed && !operation.too_long && !may_be_too_long(operation)) {
    if (connected) violate(3, operation, "the peer is said to have failed, but the connection is up");
    // A path limit may end it before it reads its receiver's outcome (18.1.5).
    if (operation.told) violate(3, operation, "its receiver ended it well and left in order, and it failed");
  }
}

// Whether some link ever dropped this send's longest datagram because of its length, or carried it although the search,
// whose steps are 8 bytes, found a smaller limit (R2.6.5, 18.1.5).
bool Oracle::may_be_too_long(const Operation& operation) const {
  const std::uint32_t found = shortest_link_bytes_ - shortest_link_bytes_ % core::MtuSearch::kStepBytes;
  return operation.kind == CompletionKind::kSend && longest_datagram(operation) > found;
}

std::uint32_t Oracle::longest_datagram(const Operation& operation) const {
  const std::uint32_t segment = simulator_.host(operation.plan.host).config().endpoint.max_segment_bytes;
  return std::min(operation.plan.bytes, segment) + MLT_DATA_HEADER_BYTES;
}

// A sender that requests an outcome after that many later ones were logged receives "finished before", and does not
// report success.
bool Oracle::outcome_forgotten(const Operation& operation) const {
  const std::uint16_t host = operation.plan.host;
  return operation.kind == CompletionKind::kReceive && operation.ended &&
         receives_ended_[host] - operation.ended_at >= simulator_.host(host).config().endpoint.finished_log;
}

void Oracle::check_send(Operation& operation, const Completion&) {
  const Match& match = matches_.at(operation.key);
  const Side receive = match.receive == 0 ? Side{} : side_of(*operations_[match.receive - 1]);
  hold(operation, check_agreement(side_of(operation), match.receive == 0 ? nullptr : &receive));
}

void Oracle::check_receive(Operation& operation, const Completion& completion) {
  operation.segment_bytes = completion.segment_bytes;
  check_status(operation, completion);
  if (!simulator_.fault().empty()) return;
  check_contents(operation, completion);
}

// Rules 1 and 8, and that a success was sent.
void Oracle::check_status(const Operation& receive, const Completion& completion) {
  Plan plan = receive.plan;
  plan.bytes = static_cast<std::uint32_t>(completion.total_bytes);  // of a receive up to a size
  hold(receive, check_bound(plan, completion));
  check_shared_budget(receive, completion);
  if (completion.status == CompletionStatus::kWithinBound && faultless_ && plan.stop == core::StopPolicy::kPatient &&
      plan.peer != overrunning_) {
    violate(8, receive, std::to_string(completion.missing_bytes) + " bytes lost on a network without faults");
  }
  const core::OperationId send = matches_.at(receive.key).send;
  hold(receive, check_source(plan, completion, send == 0 ? nullptr : &operations_[send - 1]->plan));
}

std::uint32_t Oracle::share_budget(std::uint64_t elements, std::uint32_t element_bytes, double bound) {
  budgets_.push_back({core::SharedLossBudget(elements, element_bytes, bound), elements, element_bytes, bound, 0});
  return static_cast<std::uint32_t>(budgets_.size());
}

// Rule 1 over all receives that share a budget.
void Oracle::check_shared_budget(const Operation& receive, const Completion& completion) {
  if (receive.plan.shared_budget == 0 || completion.status != CompletionStatus::kWithinBound) return;
  Budget& budget = budgets_[receive.plan.shared_budget - 1];
  budget.missing_bytes += completion.missing_bytes;
  const std::uint64_t missing = budget.missing_bytes / budget.element_bytes;
  if (static_cast<double>(missing) / static_cast<double>(budget.elements) > budget.bound) {
    violate(1, receive,
            std::to_string(missing) + " elements are missing of all that share its budget, beyond the bound");
  }
}

// Rule 2: what arrived equals what was sent, at its offset; missing parts are filled, or unchanged.
void Oracle::check_contents(const Operation& receive, const Completion& completion) {
  Plan plan = receive.plan;
  const std::span<const std::byte> data = std::span(receive.memory).subspan(kCanaryBytes, plan.bytes);
  plan.bytes = static_cast<std::uint32_t>(completion.total_bytes);  // of a receive up to a size
  const Match& match = matches_.at(receive.key);
  Finding wrong;
  const std::size_t beyond = std::min<std::size_t>((plan.bytes + 7U) & ~std::size_t{7}, data.size());
  if (first_difference(receive.id, 0, beyond, data.subspan(beyond)) != data.size()) {
    wrong = Violation{2, "written beyond the tensor that was sent"};
  }
  for_each_part(plan, completion, [&](const Part& part) {
    const std::span<const std::byte> got = data.subspan(part.begin, part.end - part.begin);
    if (part.source == Source::kSent) {
      // A segment that arrived must have been sent, also in a failed transfer.
      if (got.empty()) return true;
      const std::size_t at = match.send == 0 ? 0 : first_difference(match.send, 0, part.begin, got);
      if (match.send == 0)
        wrong = Violation{2, "a segment arrived that no host sent"};
      else if (at != part.end)
        wrong = {2, "wrong bytes from " + std::to_string(at)};
    } else if (part.source == Source::kZero ? !std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0}; })
                                            : first_difference(receive.id, 0, part.begin, got) != part.end) {
      wrong = Violation{2, "missing segment " + std::to_string(part.segment) + " is not filled as promised"};
    }
    return !wrong;
  });
  hold(receive, wrong ? wrong : check_missing_bytes(plan, completion));
}

// The memory returns to the application, which reuses it.
void Oracle::end(Operation& operation) {
  operation.epoch = 1;
  fill_contents(operation.id, operation.epoch, std::span(operation.memory).subspan(kCanaryBytes, operation.plan.bytes));
}

// Rule 4. A send's memory is never written, a receive's not after its end.
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
