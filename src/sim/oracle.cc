#include "sim/oracle.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "core/segmenter.h"

namespace mlt::sim {

namespace {

using core::Completion;
using core::CompletionKind;
using core::CompletionStatus;
using core::Counter;

constexpr std::size_t kCanaryBytes = 32;
constexpr std::byte kCanary{0xC7};
// Between the end of one side of a transfer and that of the other, whatever the network does meanwhile.
constexpr base::DurationNs kTellNs = 3 * base::kSecond;
// Between a deadline and the end of its receive: a host that is awake needs no more.
constexpr base::DurationNs kDeadlineSlackNs = 10 * base::kMicrosecond;

std::uint64_t content_word(std::uint64_t operation, std::uint8_t epoch, std::uint64_t word) {
  base::Prng mix((operation << 20) ^ (std::uint64_t{epoch} << 60) ^ word);
  return mix.next() | 0x0101'0101'0101'0101ULL;  // no byte is zero, so that a zero-filled gap shows
}

// What an operation's memory holds in an epoch: for a send what it sends, for a receive what was there before.
void fill(std::uint64_t operation, std::uint8_t epoch, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = content_word(operation, epoch, at / 8);
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}

// The first place in [at, at + bytes.size()) of the tensor that differs; its end if none does. `at` is a multiple of 8.
std::size_t differs(std::uint64_t operation, std::uint8_t epoch, std::size_t at, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = content_word(operation, epoch, (at + i) / 8);
    if (std::memcmp(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i)) != 0) return at + i;
  }
  return at + bytes.size();
}

bool arrived(const Completion& completion, std::uint32_t segment) {
  return completion.received_bitmap.empty() || ((completion.received_bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
}

const char* kind_name(CompletionKind kind) { return kind == CompletionKind::kSend ? "send" : "receive"; }

}  // namespace

Oracle::Oracle(Simulator& simulator, bool faultless)
    : simulator_(simulator),
      faultless_(faultless),
      retired_(core::kCounterNames.size()),
      receives_ended_(simulator.hosts()),
      paused_(simulator.hosts()) {
  simulator_.on_completion = [this](std::uint16_t rank, const Completion& c) { on_completion(rank, c); };
  simulator_.on_crash = [this](std::uint16_t rank, const core::Endpoint& endpoint) {
    for (std::size_t i = 0; i < retired_.size(); ++i) retired_[i] += endpoint.counters().values()[i];
    for (const auto& operation : operations_) {
      if (operation->plan.host != rank || operation->ended || operation->lost) continue;
      operation->lost = true;
      --open_;
    }
  };
}

Oracle::~Oracle() {
  simulator_.on_completion = nullptr;
  simulator_.on_crash = nullptr;
}

void Oracle::violate(int rule, const Operation& operation, const std::string& text) {
  simulator_.fail("rule " + std::to_string(rule) + ": " + kind_name(operation.kind) + " " +
                  std::to_string(operation.id) + " of rank " + std::to_string(operation.plan.host) + ", peer " +
                  std::to_string(operation.plan.peer) + ", tag " + std::to_string(operation.plan.tag) + ", " +
                  std::to_string(operation.plan.bytes) + " bytes: " + text);
}

// ---- posting -------------------------------------------------------------------------------------------------------

core::OperationId Oracle::post_send(const Plan& plan) { return post(plan, CompletionKind::kSend); }
core::OperationId Oracle::post_receive(const Plan& plan) { return post(plan, CompletionKind::kReceive); }

core::OperationId Oracle::post(const Plan& plan, CompletionKind kind) {
  if (!simulator_.host(plan.host).is_up()) return 0;
  const std::uint64_t connection = simulator_.endpoint_connection(plan.host, plan.peer);
  auto owned = std::make_unique<Operation>();
  Operation& operation = *owned;
  operation.id = operations_.size() + 1;
  operation.kind = kind;
  operation.plan = plan;
  operation.posted_ns = simulator_.host(plan.host).config().clock.local(simulator_.now());
  operation.oracle = this;
  operation.posted_virtual_ns = simulator_.now();
  operation.memory.assign(plan.bytes + 2 * kCanaryBytes, kCanary);
  const std::span<std::byte> data = std::span(operation.memory).subspan(kCanaryBytes, plan.bytes);
  fill(operation.id, 0, data);

  core::PostStatus status = core::PostStatus::kPosted;
  // Known before the post: it may complete at once.
  operation.key = {connection, plan.host, plan.peer, plan.tag, 0};
  if (kind == CompletionKind::kReceive) std::swap(operation.key.from, operation.key.to);
  auto& generations = kind == CompletionKind::kSend ? generations_ : receive_generations_;
  std::uint64_t& next = generations[operation.key];
  operation.key.generation = next;
  Match& match = matches_[operation.key];
  (kind == CompletionKind::kSend ? match.send : match.receive) = operation.id;
  operations_.push_back(std::move(owned));
  ++open_;
  if (kind == CompletionKind::kSend) {
    core::SendRequest request;
    request.operation = operation.id;
    request.peer = plan.peer;
    request.tag = plan.tag;
    request.data = data;
    request.element = plan.element;
    request.order = plan.order;
    if (!plan.tags.empty() && simulator_.endpoint(plan.host).segment_count(plan.peer, plan.bytes) == plan.tags.size()) {
      request.tags = operation.plan.tags;
      // Whoever may be told the tags while it sends is, so that this way gets its share of networks and faults.
      if (std::none_of(plan.tags.begin(), plan.tags.end(), [](core::SegmentTag tag) { return tag.is_critical(); })) {
        operation.tags.assign(plan.tags.size(), core::SegmentTag{core::SegmentTag::kCritical});
        request.tags = operation.tags;
        request.judge = &Oracle::judge;
        request.judge_context = &operation;
      }
    }
    request.uniform_tag = plan.uniform_tag;
    request.timeout_ns = plan.timeout_ns;
    status = simulator_.send(plan.host, request);
  } else {
    core::ReceiveRequest request;
    request.operation = operation.id;
    request.peer = plan.peer;
    request.tag = plan.tag;
    request.data = data;
    request.element = plan.element;
    request.loss_bound = plan.loss_bound;
    request.stop = plan.stop;
    request.fill = plan.fill;
    request.deadline_ns = plan.deadline_ns;
    request.timeout_ns = plan.timeout_ns;
    if (plan.by_place_function) {
      request.place = &Oracle::place;
      request.place_context = &operation;
    }
    status = simulator_.receive(plan.host, request);
  }
  if (status == core::PostStatus::kPosted) {
    ++next;
    return operation.id;
  }
  --open_;
  operation.lost = true;
  (kind == CompletionKind::kSend ? match.send : match.receive) = 0;
  const bool not_connected = status == core::PostStatus::kPeerNotConnected && connection == 0;
  const bool full = status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps ||
                    status == core::PostStatus::kTooManyTags;
  if (!not_connected && !full) {
    violate(3, operation, "refused with status " + std::to_string(static_cast<int>(status)));
  }
  return 0;
}

void Oracle::cancel(core::OperationId id) {
  if (id == 0 || id > operations_.size()) return;
  Operation& operation = *operations_[id - 1];
  if (operation.ended || operation.lost) return;
  operation.cancelled = true;
  simulator_.cancel(operation.plan.host, id, operation.kind);
}

void Oracle::pause(std::uint16_t host, base::DurationNs duration_ns) {
  paused_[host] = true;
  simulator_.pause(host, duration_ns);
}

void Oracle::judge(void* context, std::uint32_t first, std::uint32_t count) {
  Operation& operation = *static_cast<Operation*>(context);
  Oracle& oracle = *operation.oracle;
  if (operation.ended) return oracle.violate(4, operation, "a segment is judged after the end");
  if (first != operation.judged || count == 0 || count > operation.tags.size() - first) {
    return oracle.violate(2, operation, "segments are judged twice, out of order or past the last");
  }
  std::copy_n(operation.plan.tags.begin() + first, count, operation.tags.begin() + first);
  operation.judged += count;
}

void Oracle::place(void* context, std::uint64_t offset, std::span<const std::byte> payload) {
  Operation& operation = *static_cast<Operation*>(context);
  Oracle& oracle = *operation.oracle;
  if (operation.ended) return oracle.violate(4, operation, "a segment is placed after the end");
  if (offset > operation.plan.bytes || payload.size() > operation.plan.bytes - offset) {
    return oracle.violate(4, operation, "a segment is placed outside the tensor");
  }
  operation.placed.resize(operation.plan.bytes + 1);
  if (operation.placed[offset] != 0) return oracle.violate(2, operation, "a segment is placed twice");
  operation.placed[offset] = 1;
  if (!payload.empty()) std::memcpy(operation.memory.data() + kCanaryBytes + offset, payload.data(), payload.size());
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
      if (simulator_.connection(plan.host, plan.peer) == operation.key.connection) {
        violate(3, operation, "the peer is said to have failed, but the connection is up");
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
  if (static_cast<long double>(completion.allowed_missing_bytes / element) >
      static_cast<long double>(plan.loss_bound) * static_cast<long double>(elements)) {
    violate(1, receive, "more may be missing than the bound allows");
  }
  switch (completion.status) {
    case CompletionStatus::kComplete:
      if (missing != 0) violate(1, receive, "complete, but something is missing");
      break;
    case CompletionStatus::kWithinBound:
      if (missing == 0) violate(1, receive, "within its bound, but nothing is missing");
      if (static_cast<long double>(missing / element) >
          static_cast<long double>(plan.loss_bound) * static_cast<long double>(elements)) {
        violate(1, receive, std::to_string(missing) + " bytes are missing, beyond the bound");
      }
      if (faultless_ && plan.stop == core::StopPolicy::kPatient) {
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
      const std::size_t at = differs(match.send, 0, begin, got);
      if (at != end) return violate(2, receive, "wrong bytes from " + std::to_string(at));
      continue;
    }
    missing += end - begin;
    const bool zero = !failed && plan.fill == core::Fill::kZero && !plan.by_place_function;
    const bool right = zero ? std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0}; })
                            : differs(receive.id, 0, begin, got) == end;
    if (!right) return violate(2, receive, "missing segment " + std::to_string(segment) + " is not filled as promised");
  }
  if (missing != completion.missing_bytes) violate(2, receive, "missing_bytes does not agree with the bitmap");
}

// The application has its memory back, and uses it for something else.
void Oracle::end(Operation& operation) {
  operation.epoch = 1;
  fill(operation.id, operation.epoch, std::span(operation.memory).subspan(kCanaryBytes, operation.plan.bytes));
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
  if (differs(operation.id, operation.epoch, 0, data) != data.size()) {
    violate(4, operation,
            operation.kind == CompletionKind::kSend ? "a send's memory was written"
                                                    : "memory of an ended receive was written");
  }
}

// ---- after the run -------------------------------------------------------------------------------------------------

std::uint64_t Oracle::progress() const {
  std::uint64_t sum = completions_ + operations_.size();
  for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
    if (simulator_.host(rank).is_up()) {
      sum += simulator_.endpoint(rank).counters().value(Counter::k_segments_placed);
    }
  }
  return sum;
}

std::string Oracle::unfinished() const {
  std::string text;
  for (const auto& operation : operations_) {
    if (operation->ended || operation->lost) continue;
    text += std::string(text.empty() ? "" : ", ") + kind_name(operation->kind) + " " + std::to_string(operation->id) +
            " (rank " + std::to_string(operation->plan.host) + ", peer " + std::to_string(operation->plan.peer) +
            ", tag " + std::to_string(operation->plan.tag) + ")";
  }
  return text;
}

void Oracle::finish() {
  if (!all_ended()) simulator_.fail("rule 3: never ended: " + unfinished());
  for (const auto& operation : operations_) {
    if (!operation->lost) check_memory(*operation);
  }
  check_conservation();
  check_limits(true);
}

// Rule 5. The network's books against the endpoints' own counters.
void Oracle::check_conservation() {
  const Ledger& ledger = simulator_.network().ledger();
  std::vector<std::uint64_t> sums = retired_;
  for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
    if (!simulator_.host(rank).is_up()) continue;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += simulator_.endpoint(rank).counters().values()[i];
  }
  const auto sum = [&](auto... which) { return (sums[static_cast<std::size_t>(which)] + ...); };
  const auto balance = [&](const char* what, std::uint64_t left, std::uint64_t right) {
    if (left == right) return;
    simulator_.fail(std::string("rule 5: ") + what + ": " + std::to_string(left) + " against " + std::to_string(right));
  };
  using C = Counter;
  const Tally& data = ledger.of(Fate::k_sent, true);
  balance("data packets sent, by endpoints and network", sum(C::k_data_packets_sent), data.packets);
  balance("data bytes sent, by endpoints and network",
          sum(C::k_data_bytes_sent) + MLT_DATA_HEADER_BYTES * sum(C::k_data_packets_sent), data.bytes);
  balance("control datagrams sent, by endpoints and network",
          sum(C::k_acks_sent, C::k_probes_sent, C::k_bitmaps_sent, C::k_stops_sent) - sum(C::k_backstop_messages_sent),
          ledger.of(Fate::k_sent, false).packets);
  balance("data packets neither delivered nor dropped", ledger.under_way(true).packets, 0);
  balance("control datagrams neither delivered nor dropped", ledger.under_way(false).packets, 0);
  balance("packets that the simulator forgot", simulator_.network().packets_in_use(), 0);
  const std::uint64_t taken = ledger.packets(Fate::k_delivered) + simulator_.messages_delivered();
  balance("what hosts took, and what endpoints counted", taken - simulator_.lost_in_crashes(),
          sum(C::k_data_packets_received, C::k_acks_received, C::k_probes_received, C::k_bitmaps_received,
              C::k_stops_received, C::k_aborts_received, C::k_drop_too_short, C::k_drop_bad_version,
              C::k_drop_unknown_type, C::k_drop_unknown_flags, C::k_drop_unknown_element, C::k_drop_bad_length,
              C::k_drop_bad_cookie, C::k_drop_bad_path));
  // Events that a state table excludes: honest endpoints meet none, but for a cancellation that comes too late.
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::string_view name = core::kCounterNames[i];
    if (sums[i] == 0 || !name.starts_with("wrong_state_") || name.ends_with("_cancel")) continue;
    simulator_.fail("rule 9: " + std::string(name) + " is " + std::to_string(sums[i]));
  }
  // What came of each data packet. Early ones are counted again when their receive is posted, at most once each.
  const std::uint64_t fates =
      sum(C::k_segments_placed, C::k_duplicate_segments, C::k_stale_packets, C::k_early_segments_kept,
          C::k_early_segments_dropped, C::k_drop_bad_segment, C::k_drop_mismatch);
  const std::uint64_t received = sum(C::k_data_packets_received);
  if (fates < received || fates > received + sum(C::k_early_segments_kept, C::k_probes_received)) {
    simulator_.fail("rule 5: of " + std::to_string(received) + " data packets " + std::to_string(fates) +
                    " have a fate");
  }
}

// Rule 6, at any time. At the end nothing is left of operations that are over, and no timer runs for them.
void Oracle::check_limits(bool at_the_end) {
  for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
    if (!simulator_.host(rank).is_up()) continue;
    const core::Usage usage = simulator_.endpoint(rank).usage();
    const auto check = [&](const char* what, const core::Held& held) {
      if (held.used <= (at_the_end ? 0 : held.limit)) return;
      simulator_.fail("rule 6: rank " + std::to_string(rank) + " holds " + std::to_string(held.used) + " " + what +
                      " of " + std::to_string(held.limit) + (at_the_end ? ", although everything has ended" : ""));
    };
    // A completion's slot is given back when the driver comes back: one of them may be out.
    core::Held sends = usage.sends;
    core::Held receives = usage.receives;
    core::Held words = usage.bitmap_words;
    if (at_the_end) {
      core::Held& last = sends.used > 0 ? sends : receives;
      if (last.used > 0) {
        --last.used;
        if (&last == &receives) words.used = 0;  // its bitmap goes with it
      }
    }
    check("sends", sends);
    check("receives", receives);
    check("bitmap words", words);
    check("replies", usage.replies);
    check("completions", usage.completions);
    // Segments for receives that were never posted stay: that is what the buffer is for.
    if (!at_the_end) check("early segments", usage.early_segments);
    if (at_the_end && simulator_.endpoint(rank).next_timeout() != base::kNever) {
      simulator_.fail("rule 6: rank " + std::to_string(rank) + " still has a timer, although everything has ended");
    }
  }
}

}  // namespace mlt::sim
