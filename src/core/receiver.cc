#include "core/receiver.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "core/ended_transfer.h"

namespace mlt::core {

namespace {

// A sender repeats its probe at least every RttEstimator::kMaxTimeoutNs: after this long it has received a reply, or
// uses the TCP fallback.
constexpr DurationNs kRecentNs = 2 * base::kSecond;
// A sender all of whose packets were dropped here probes by then.
constexpr DurationNs kDroppedHereNs = base::kSecond;

LossBudget budget_of(const ReceiveRequest& request, const SegmentGrid& grid) {
  const std::uint32_t element = wire::element_bytes(request.element);
  LossBudget budget(grid.total_bytes() / element, element, request.loss_bound);
  if (request.shared_budget != nullptr) {
    // PROTOCOL 7.5.12: Of each, its own bound may be missing, or with the policy patient one segment if that is more.
    // An eager receive of one segment would complete before anything has come.
    const bool is_patient = request.stop == StopPolicy::kPatient;
    budget.share(*request.shared_budget, is_patient ? grid.length(0) : 0);
  }
  return budget;
}

wire::StopStatus stop_status(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kComplete:
      return wire::StopStatus::kComplete;
    case CompletionStatus::kWithinBound:
      return wire::StopStatus::kWithinBound;
    case CompletionStatus::kDeadline:
      return wire::StopStatus::kDeadline;
    case CompletionStatus::kSizeMismatch:
      return wire::StopStatus::kSizeMismatch;
    case CompletionStatus::kTypeMismatch:
      return wire::StopStatus::kTypeMismatch;
    case CompletionStatus::kPeerFailed:
    case CompletionStatus::kTimedOut:
    case CompletionStatus::kCancelled:
      // PROTOCOL 8.1.5: A receiver that aborts a transfer MUST end the receive as cancelled or timed out, and send STOP
      //     cancelled.
      return wire::StopStatus::kCancelled;
  }
  return wire::StopStatus::kCancelled;
}

}  // namespace

Receiver::Receiver(Shared& shared, base::WordArena& arena)
    : shared_(shared),
      arena_(arena),
      receives_(shared.config.max_receives),
      tags_(shared.config),
      early_(shared.config.max_segment_bytes, shared.config.early_segments_per_peer(),
             shared.config.early_transfers_per_peer(), shared.config.peers),
      finished_(shared.config.finished_log),
      acks_(shared.config.peers, shared.config.paths),
      replies_(shared, acks_, receives_),
      parity_(shared.config.parity_packets, shared.config.max_segment_bytes) {}

void Receiver::on_datagrams_dropped(TimeNs now) {
  // PROTOCOL 7.5.11: A receiver MUST treat datagrams that its own host dropped for lack of space, as far as the system
  //     reports them, as segments of every transfer that 7.5.10 may concern: those in progress, and those first noticed
  //     within 1 s.
  shared_.counters.add(Counter::k_buffer_overflows);
  ++drops_;
  dropped_until_ns_ = base::after(now, kDroppedHereNs);
  early_.note_drop();
}

// ---- posting -------------------------------------------------------------------------------------------------------

PostStatus Receiver::post(TimeNs now, const ReceiveRequest& request) {
  if (const PostStatus status = shared_.check_peer(request.peer); status != PostStatus::kPosted) return status;
  if (request.data.size() > ~std::uint32_t{0}) return PostStatus::kTooLarge;
  const std::uint32_t element = wire::element_bytes(request.element);
  if (request.data.size() % element != 0) return PostStatus::kBadElementCount;
  // PROTOCOL 5.3.1: A loss bound MUST be at least 0 and below 1, and above 0 only for floating-point elements.
  if (!(request.loss_bound >= 0.0 && request.loss_bound < 1.0)) return PostStatus::kBadLossBound;
  const bool may_lose = request.loss_bound > 0.0 || request.shared_budget != nullptr;
  if (may_lose && !wire::is_floating_point(request.element)) return PostStatus::kLossyInteger;
  const Peer& peer = shared_.peers[request.peer];
  const SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), peer.segment_bytes);
  if (receives_.is_full()) return PostStatus::kTooManyOperations;
  ReceiveTag* entry = tags_.for_post(request.peer, request.tag);
  if (entry == nullptr) return PostStatus::kTooManyTags;
  if (ReceiveTags::is_far_ahead(*entry)) return PostStatus::kTooManyOperations;
  const std::span<std::uint64_t> words = arena_.take(base::words_for_bits(grid.count()));
  if (words.empty()) return PostStatus::kOutOfBitmaps;

  ReceiveState& state = receives_.take();
  MLT_CHECK(state.machine.on(ReceiveEvent::k_post, shared_.counters));
  state.request = request;
  // PROTOCOL 5.2.1: The k-th send of a tag to a peer MUST match the k-th receive of that tag from it.
  state.generation = ReceiveTags::take_generation(*entry);
  state.placement = Placement(grid, words);
  state.size_known = !request.up_to;
  state.budget = budget_of(request, grid);
  state.posted_ns = now;
  const DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : shared_.config.operation_timeout_ns;
  // PROTOCOL 5.3.3: Each operation MUST have a limit in time: its own, or the endpoint's (300 s).
  state.expires_ns = base::after(now, timeout);
  if (request.deadline_ns > 0) state.deadline_ns = base::after(now, request.deadline_ns);
  receives_.list(state);
  shared_.add_operation(request.peer);
  arm(state);

  take_early(now, state);
  return PostStatus::kPosted;
}

void Receiver::take_size(ReceiveState& state, std::uint32_t total_bytes) {
  // PROTOCOL 7.1.5: A receiver that knows a maximum instead of a size MUST take the size that the transfer's first
  //     packet or probe names, if it is not above the maximum, as that of the receive: the grid, the bound and the
  //     completion follow from it.
  const SegmentGrid grid(total_bytes, state.placement.grid().segment_bytes());
  state.size_known = true;
  state.request.data = state.request.data.first(total_bytes);
  state.placement = Placement(grid, state.placement.words());
  state.budget.shrink(budget_of(state.request, grid));
}

void Receiver::take_early(TimeNs now, ReceiveState& state) {
  state.drops = drops_;
  if (shared_.peers[state.request.peer].early_refused || now < dropped_until_ns_) state.budget.note_dropped();
  EarlyTransfer* early = early_.find(state.request.peer, state.transfer());
  if (early == nullptr) return;
  note_seen(state);
  const bool aborted = early->aborted();
  const wire::AbortReason reason = early->abort_reason;
  const bool probed = early->probed;
  const wire::Probe probe = early->probe;
  if (early_.may_lack_segments(*early)) state.budget.note_dropped();
  state.loss.begin_with(early->newest);
  early_.release(*early, [&](const wire::DataHeader& header, std::span<const std::byte> payload) {
    if (!state.is_in_progress()) return;
    take_data(now, state, header, payload);
  });
  if (!state.is_in_progress()) return;
  if (aborted) {  // the sender aborted before this receive was posted
    return end_by_abort(now, state, reason);
  }
  Reply ready;
  ready.kind = ReplyKind::kReady;
  ready.peer = state.request.peer;
  ready.transfer = state.transfer();
  // PROTOCOL 7.3.5: When a receive is posted of which something has arrived already, the receiver MUST reply at once:
  //     to the newest probe, or to END_OF_ROUND if no probe arrived, as 7.4 says, and also with READY if it can't
  //     decide yet, because the sender sends no trailing probes before it knows.
  // PROTOCOL 7.1.1: A receiver MUST NOT place a packet or probe that names another size or element type than the posted
  //     receive.
  if (probed && !matches(now, state, probe.total_bytes, probe.prefix.element)) return;
  if (probed && (probe.prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) == 0) {
    take_probe(now, state, probe, false);
    // PROTOCOL 7.3.5: and also with READY if it can't decide yet, because the sender sends no trailing probes before it
    //     knows.
    if (state.machine.phase() == ReceivePhase::k_detecting) replies_.push(ready, false);
  } else {
    replies_.push(ready, false);
    // Without a packet or probe the sender's size is unknown: even an empty tensor may have the wrong size.
    if (probed || state.placement.received_segments() > 0) check_completion(now, state);
  }
}

bool Receiver::cancel(TimeNs now, OperationId operation) {
  if (ReceiveState* state = receives_.find_operation(operation, [](const auto& it) { return it.is_in_progress(); })) {
    finish(now, *state, ReceiveEvent::k_cancel, CompletionStatus::kCancelled, true);
    return true;
  }
  // The receive has already ended: the cancel is too late, if the operation is still known at all.
  if (ReceiveState* over = receives_.find_operation(operation, [](const auto&) { return true; })) {
    (void)over->machine.on(ReceiveEvent::k_cancel, shared_.counters);
  }
  return false;
}

// ---- tags ----------------------------------------------------------------------------------------------------------

void Receiver::note_seen(ReceiveState& state) {
  if (state.seen) return;
  state.seen = true;
  tags_.note_seen(state.request.peer, state.transfer());
}

void Receiver::on_retire(TimeNs now, std::uint16_t from, const wire::Retire& retire) {
  shared_.counters.add(Counter::k_retirements_received);
  if (!tags_.on_retire(from, retire, shared_.counters)) return;
  tags_.retire(from, retire.floor, [&](ReceiveTag& entry) { renumber(now, entry, retire.floor); });
}

// Renumbers the receives that no send has matched, waiting or ended, from the floor on.
void Receiver::renumber(TimeNs now, ReceiveTag& entry, std::uint32_t floor) {
  const std::uint32_t first = entry.unseen;
  const std::uint32_t count = entry.generation - first;
  for (std::uint32_t i = 0; i < count; ++i) {
    ReceiveState* state = receives_.find(entry.peer, {entry.tag, first + i});
    if (state == nullptr) {  // it was cancelled or timed out
      finished_.renumber(entry.peer, {entry.tag, first + i}, floor + i);
      continue;
    }
    receives_.renumber(*state, floor + i);
  }
  ReceiveTags::restart(entry, floor);
  for (std::uint32_t i = 0; i < count; ++i) {
    const wire::TransferId transfer{entry.tag, floor + i};
    if (ReceiveState* state = receives_.find(entry.peer, transfer)) {
      take_early(now, *state);
    } else if (EarlyTransfer* early = early_.find(entry.peer, transfer)) {
      early_.release(*early, [](const wire::DataHeader&, std::span<const std::byte>) {});
      tags_.note_seen(entry.peer, transfer);
      reply_finished(entry.peer, transfer, 0, true);
    }
  }
}

// ---- ends ---------------------------------------------------------------------------------------------------------

void Receiver::finish(TimeNs now, ReceiveState& state, ReceiveEvent event, CompletionStatus status, bool tell_sender) {
  if (!state.machine.on(event, shared_.counters)) return;
  const std::uint32_t slot = receives_.slot_of(state);
  receives_.unlist(state);
  shared_.remove_operation(state.request.peer);
  shared_.timers.cancel(shared_.receive_timer(slot));
  parity_.release_all(state.parity);
  state.budget.settle(is_failure(status) ? 0 : state.placement.missing_bytes());
  if (!is_failure(status) && state.placement.missing_bytes() > 0) {
    state.placement.fill_missing(state.request);
    shared_.counters.add(Counter::k_segments_lost_within_bound, state.placement.missing_segments());
  }
  state.status = status;
  state.elapsed_ns = now - state.posted_ns;
  // PROTOCOL 7.2.3: A receiver MUST shrink the peer's reorder window by a sixteenth with every receive from it that
  //     completes.
  shared_.peers[state.request.peer].reorder_window_ns -= shared_.peers[state.request.peer].reorder_window_ns / 16;
  shared_.counters.add(is_failure(status) ? Counter::k_operations_failed : Counter::k_receives_completed);
  state.placement.finish();
  // PROTOCOL 7.7.2: A receive MUST complete exactly once, with one of the statuses of the table, the missing bytes, the
  //     bytes that the bound allowed, and which segments arrived.
  shared_.completions.push({CompletionKind::kReceive, slot});
  // PROTOCOL 7.7.4: A receiver MUST report with STOP how the receive ended, unless the sender is gone.
  if (!tell_sender) return;
  FinishedReceive finished;
  finished.used = true;
  finished.peer = state.request.peer;
  finished.transfer = state.transfer();
  finished.status = stop_status(status);
  finished.element = state.request.element;
  finished.missing_bytes = static_cast<std::uint32_t>(state.placement.missing_bytes());
  finished.total_bytes = state.placement.grid().total_bytes();
  finished.finished_ns = now;
  finished_.put(finished);
  tags_.keep_outcome(finished);
  const bool prompt = now == state.loss.round_over_ns();
  reply_finished(state.request.peer, state.transfer(), prompt ? state.probe_timestamp_ns : 0, state.reply_by_control,
                 !state.seen);
}

void Receiver::reply_finished(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t probe_timestamp_ns,
                              bool by_control, bool unseen) {
  Reply reply;
  reply.kind = ReplyKind::kStop;
  reply.unseen = unseen;
  reply.peer = peer;
  reply.transfer = transfer;
  reply.probe_timestamp_ns = probe_timestamp_ns;
  // PROTOCOL 7.7.6: It reports an outcome that is forgotten as finished before.
  reply.status = wire::StopStatus::kFinishedBefore;
  const std::optional<FinishedReceive> newest = tags_.outcome_of(peer, transfer);
  const FinishedReceive* finished = newest ? &*newest : finished_.find(peer, transfer);
  if (finished != nullptr) {
    reply.status = finished->status;
    reply.element = finished->element;
    reply.missing_bytes = finished->missing_bytes;
    reply.total_bytes = finished->total_bytes;
  }
  // PROTOCOL 9.1.3: A receiver MUST reply to a probe that comes over the control connection over that connection.
  replies_.push(reply, by_control);
}

// After closing, a lost STOP would never be sent again, and the sender would report a complete transfer as failed.
// Report the outcomes of the latest receives over the control connection, which closes in order.
void Receiver::on_closing(TimeNs now) {
  // PROTOCOL 10.1.1: An endpoint that leaves MUST first report over the control connection, with STOP, how every
  //     receive of the last two seconds ended.
  finished_.each_since(now - kRecentNs, [&](const FinishedReceive& finished) {
    reply_finished(finished.peer, finished.transfer, 0, true);
  });
}

void Receiver::on_peer_down(TimeNs now, std::uint16_t peer) {
  for (ReceiveState& state : receives_) {
    if (state.is_in_progress() && state.request.peer == peer) {
      // PROTOCOL 18.1.1: When a peer is down, an endpoint MUST end every operation with it as peer failed, naming its
      //     rank. It MUST forget everything kept for the peer: early data, outcomes, replies that wait.
      finish(now, state, ReceiveEvent::k_peer_down, CompletionStatus::kPeerFailed, false);
    }
  }
  // PROTOCOL 18.1.1: It MUST forget everything kept for the peer: early data, outcomes, replies that wait.
  early_.forget(peer);
  finished_.forget(peer);
  replies_.reset(peer);
  acks_.withdraw(peer);
  tags_.reset(peer);
}

void Receiver::on_peer_up(std::uint16_t peer, std::uint32_t packets_per_ack) {
  acks_.reset(peer, packets_per_ack);
  replies_.reset(peer);
  tags_.reset(peer);
}

void Receiver::add_usage(Usage& usage) const {
  usage.receives = {receives_.used(), receives_.limit()};
  usage.early_segments = {early_.segments_kept(), early_.capacity()};
  usage.parity_packets = {parity_.used(), parity_.capacity()};
  replies_.add_usage(usage);
}

void Receiver::complete(std::uint32_t slot, Completion& completion) const {
  const ReceiveState& state = receives_[slot];
  const SegmentGrid& grid = state.placement.grid();
  describe_end(state, grid, CompletionKind::kReceive, completion);
  completion.missing_bytes = state.placement.missing_bytes();
  completion.allowed_missing_bytes = state.budget.bytes();
  completion.aborted = state.aborted;
  if (state.placement.missing_bytes() > 0) {
    completion.received_bitmap = state.placement.words().first(base::words_for_bits(grid.count()));
  }
}

void Receiver::release(std::uint32_t slot) {
  ReceiveState& state = receives_[slot];
  arena_.give(state.placement.words());
  MLT_CHECK(state.machine.on(ReceiveEvent::k_polled, shared_.counters));
  receives_.free(state);
}

}  // namespace mlt::core
