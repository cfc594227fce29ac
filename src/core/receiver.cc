#include "core/receiver.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "core/loss_bound.h"

namespace mlt::core {

namespace {

// A sender repeats its probe at least every RttEstimator::kMaxTimeoutNs: after this long it has received a reply, or
// uses the TCP fallback.
constexpr DurationNs kRecentNs = 2 * base::kSecond;

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
      // PROTOCOL 8.1.5: A receiver that gives up MUST end the receive as cancelled or timed out, and send STOP
      //     cancelled.
      return wire::StopStatus::kCancelled;
  }
  return wire::StopStatus::kCancelled;
}

}  // namespace

Receiver::Receiver(Shared& shared, base::WordArena& arena)
    : shared_(shared),
      arena_(arena),
      states_(shared.config.max_receives),
      free_(shared.config.max_receives),
      by_transfer_(shared.config.max_receives),
      by_operation_(shared.config.max_receives),
      early_(shared.config.max_segment_bytes, shared.config.early_segments_per_peer(),
             shared.config.early_transfers_per_peer(), shared.config.peers),
      finished_(shared.config.finished_log),
      replies_(shared.config.reply_queue),
      control_replies_(shared.config.reply_queue),
      ack_words_(base::words_for_bits(shared.config.peers)),
      acks_due_(ack_words_.data(), shared.config.peers) {}

// ---- posting -------------------------------------------------------------------------------------------------------

PostStatus Receiver::post(TimeNs now, const ReceiveRequest& request) {
  if (const PostStatus status = shared_.check_peer(request.peer); status != PostStatus::kPosted) return status;
  if (request.data.size() > ~std::uint32_t{0}) return PostStatus::kTooLarge;
  const std::uint32_t element = wire::element_bytes(request.element);
  if (request.data.size() % element != 0) return PostStatus::kBadElementCount;
  // PROTOCOL 5.3.1: A loss bound MUST be at least 0 and below 1, and above 0 only for floating-point elements.
  if (!(request.loss_bound >= 0.0 && request.loss_bound < 1.0)) return PostStatus::kBadLossBound;
  if (request.loss_bound > 0.0 && !wire::is_floating_point(request.element)) return PostStatus::kLossyInteger;
  const Peer& peer = shared_.peers[request.peer];
  const SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), peer.segment_bytes);
  if (free_.empty() && states_.size() == states_.capacity()) return PostStatus::kTooManyOperations;
  ReceiveTag* entry = tag_for_post(request.peer, request.tag);
  if (entry == nullptr) return PostStatus::kTooManyTags;
  // PROTOCOL 5.2.6: A receiver MUST NOT number as many as 2^18 receives of a tag of whose sends nothing has come, so
  //     that no number that it has given lies beyond the new floor.
  if (entry->generation - entry->unseen >= kGenerationGap - 1) return PostStatus::kTooManyOperations;
  const std::span<std::uint64_t> words = arena_.take(base::words_for_bits(grid.count()));
  if (words.empty()) return PostStatus::kOutOfBitmaps;

  ReceiveState& state = free_.empty() ? states_.grow() : states_[free_.pop()];
  const std::uint32_t slot = slot_of(state);
  MLT_CHECK(state.machine.phase() == ReceivePhase::k_free);
  state = ReceiveState{};
  MLT_CHECK(state.machine.on(ReceiveEvent::k_post, shared_.counters));
  state.request = request;
  // PROTOCOL 5.2.1: The k-th send of a tag to a peer MUST match the k-th receive of that tag from it.
  state.generation = entry->generation++;
  state.grid = grid;
  state.words = words;
  state.received = base::BitmapView(words.data(), grid.count());
  state.received.clear_all();
  // PROTOCOL 7.5.2: A receiver MUST count the bound in elements: the largest k whose fraction k / elements, in double
  //     precision, is not above p may be missing at completion, and not one more.
  state.allowed_missing_bytes = allowed_missing(request.data.size() / element, request.loss_bound) * element;
  state.posted_ns = now;
  const DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : shared_.config.operation_timeout_ns;
  // PROTOCOL 5.3.3: Each operation MUST have a limit in time: its own, or the endpoint's (300 s).
  state.expires_ns = base::after(now, timeout);
  if (request.deadline_ns > 0) state.deadline_ns = base::after(now, request.deadline_ns);
  by_transfer_.insert(hash_transfer(request.peer, state.transfer()), slot);
  by_operation_.insert(hash_tag(0, request.operation), slot);
  arm(state);

  take_early(now, state);
  return PostStatus::kPosted;
}

void Receiver::take_early(TimeNs now, ReceiveState& state) {
  state.segment_dropped = state.segment_dropped || shared_.peers[state.request.peer].early_refused;
  EarlyTransfer* early = early_.find(state.request.peer, state.transfer());
  if (early == nullptr) return;
  note_seen(state);
  const bool aborted = early->aborted();
  const bool probed = early->probed;
  const wire::Probe probe = early->probe;
  state.segment_dropped = state.segment_dropped || early->segment_lost;
  state.newest = early->newest;
  state.newest_arrival_ns.fill(base::kNever);  // the order of buffered segments is no evidence of arrival order
  early_.release(*early, [&](const wire::DataHeader& header, std::span<const std::byte> payload) {
    if (!state.is_under_way()) return;
    place(now, state, header, payload);
  });
  if (!state.is_under_way()) return;
  if (aborted) {  // the sender gave up before this receive was posted
    state.reply_by_control = true;
    finish(now, state, ReceiveEvent::k_abort, CompletionStatus::kCancelled, true);
    return;
  }
  Reply ready;
  ready.kind = ReplyKind::kReady;
  ready.peer = state.request.peer;
  ready.transfer = state.transfer();
  // PROTOCOL 7.3.5: When a receive is posted of which something has come already, the receiver MUST answer at once: its
  //     newest probe, or its marker if no probe came, as 7.4 says, and with READY, if it can't be judged yet: the
  //     sender sends no trailing probes before it knows.
  // PROTOCOL 7.1.1: A receiver MUST NOT place a packet or probe that names another size or element type than the posted
  //     receive.
  if (probed && !matches(now, state, probe.total_bytes, probe.prefix.element)) return;
  if (probed && (probe.prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) == 0) {
    take_probe(now, state, probe, false);
    // PROTOCOL 7.3.5: and with READY, if it can't be judged yet: the sender sends no trailing probes before it knows.
    if (state.machine.phase() == ReceivePhase::k_detecting) replies_.push(ready);
  } else {
    replies_.push(ready);
    // Without a packet or probe the sender's size is unknown: even an empty tensor may have the wrong size.
    if (probed || state.received_segments > 0) check_completion(now, state);
  }
}

bool Receiver::cancel(TimeNs now, OperationId operation) {
  ReceiveState* over = nullptr;
  const std::uint64_t hash = hash_tag(0, operation);
  for (std::uint32_t slot = by_operation_.first(hash); slot != kNil; slot = by_operation_.next(slot)) {
    ReceiveState& state = states_[slot];
    if (state.request.operation != operation) continue;
    if (state.is_under_way()) {
      finish(now, state, ReceiveEvent::k_cancel, CompletionStatus::kCancelled, true);
      return true;
    }
    over = &state;
  }
  // The receive has already ended: the cancel is too late, if the operation is still known at all.
  if (over != nullptr) (void)over->machine.on(ReceiveEvent::k_cancel, shared_.counters);
  return false;
}

ReceiveState* Receiver::find(std::uint16_t peer, const wire::TransferId& transfer) {
  const std::uint64_t hash = hash_transfer(peer, transfer);
  for (std::uint32_t slot = by_transfer_.first(hash); slot != kNil; slot = by_transfer_.next(slot)) {
    ReceiveState& state = states_[slot];
    if (state.request.peer == peer && state.transfer() == transfer) return &state;
  }
  return nullptr;
}

// Whether this transfer was posted before. Called only for inactive transfers: then the transfer has ended.
bool Receiver::is_over(std::uint16_t peer, const wire::TransferId& transfer) {
  ReceiveTag* entry = shared_.receive_tags.find(peer, transfer.tag);
  // PROTOCOL 5.2.3: A receiver MUST treat a transfer that is not under way as over if its generation is before that of
  //     the tag's next receive, or before the floor if the tag is not known.
  if (entry == nullptr) return is_after(shared_.peers[peer].receive_floor, transfer.generation);
  if (!is_after(entry->generation, transfer.generation)) return false;
  note_seen(*entry, transfer.generation);
  return true;
}

// ---- ends ---------------------------------------------------------------------------------------------------------

void Receiver::fill_missing(ReceiveState& state) {
  // PROTOCOL 7.7.3: Missing ranges MUST become zero with fill zero (gradients), and MUST keep what they held with fill
  //     keep (parameters). After a failure the buffer's contents are undefined.
  if (state.request.fill != Fill::kZero || state.request.place != nullptr) return;
  for (std::size_t i = state.received.find_clear(0); i < state.grid.count(); i = state.received.find_clear(i + 1)) {
    const auto segment = static_cast<std::uint32_t>(i);
    std::memset(state.request.data.data() + state.grid.offset(segment), 0, state.grid.length(segment));
  }
}

void Receiver::finish(TimeNs now, ReceiveState& state, ReceiveEvent event, CompletionStatus status, bool tell_sender) {
  if (!state.machine.on(event, shared_.counters)) return;
  const std::uint32_t slot = slot_of(state);
  by_transfer_.erase(hash_transfer(state.request.peer, state.transfer()), slot);
  shared_.timers.cancel(shared_.receive_timer(slot));
  if (!is_failure(status) && state.missing_bytes() > 0) {
    fill_missing(state);
    shared_.counters.add(Counter::k_segments_lost_within_bound, state.grid.count() - state.received_segments);
  }
  state.status = status;
  state.elapsed_ns = now - state.posted_ns;
  // PROTOCOL 7.2.3: A receiver MUST shrink the peer's reorder window by a sixteenth with every receive from it that
  //     completes.
  shared_.peers[state.request.peer].reorder_window_ns -= shared_.peers[state.request.peer].reorder_window_ns / 16;
  shared_.counters.add(is_failure(status) ? Counter::k_operations_failed : Counter::k_receives_completed);
  if (state.streams()) base::fence_streamed();
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
  finished.missing_bytes = static_cast<std::uint32_t>(state.missing_bytes());
  finished.total_bytes = state.grid.total_bytes();
  finished.finished_ns = now;
  finished_.put(finished);
  // PROTOCOL 7.7.6: A receiver MUST keep the outcome of the newest receive of a tag as long as the tag is known; that
  //     of older ones while the finished log has room.
  if (ReceiveTag* entry = shared_.receive_tags.find(state.request.peer, state.request.tag)) {
    entry->has_outcome = true;
    entry->outcome_generation = state.generation;
    entry->outcome_status = finished.status;
    entry->outcome_element = finished.element;
    entry->outcome_missing_bytes = finished.missing_bytes;
    entry->outcome_total_bytes = finished.total_bytes;
  }
  const bool prompt = now == state.round_over_ns;
  reply_finished(state.request.peer, state.transfer(), prompt ? state.probe_timestamp_ns : 0, state.reply_by_control,
                 !state.seen);
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
  for (ReceiveState& state : states_) {
    if (state.is_under_way() && state.request.peer == peer) {
      // PROTOCOL 18.1.1: When a peer is down, an endpoint MUST end every operation with it as peer failed, naming its
      //     rank. It MUST forget everything kept for the peer: early data, outcomes, answers that wait.
      finish(now, state, ReceiveEvent::k_peer_down, CompletionStatus::kPeerFailed, false);
    }
  }
  // PROTOCOL 18.1.1: It MUST forget everything kept for the peer: early data, outcomes, answers that wait.
  early_.forget(peer);
  finished_.forget(peer);
  replies_.forget(peer);
  control_replies_.forget(peer);
  acks_due_.clear(peer);
  shared_.receive_tags.each_of(peer, [this](ReceiveTag& entry) {
    unkeep_tag(entry);
    shared_.receive_tags.erase(entry);
  });
}

void Receiver::add_usage(Usage& usage) const {
  usage.receives = {states_.size() - free_.size(), states_.capacity()};
  usage.early_segments = {early_.segments_kept(), early_.capacity()};
  for (const ReplyQueue* queue : {&replies_, &control_replies_}) {
    usage.replies.used += queue->size();
    usage.replies.limit += queue->capacity();
  }
}

void Receiver::complete(std::uint32_t slot, Completion& completion) const {
  const ReceiveState& state = states_[slot];
  completion.operation = state.request.operation;
  completion.kind = CompletionKind::kReceive;
  completion.status = state.status;
  completion.peer = state.request.peer;
  completion.tag = state.request.tag;
  completion.total_bytes = state.grid.total_bytes();
  completion.missing_bytes = state.missing_bytes();
  completion.allowed_missing_bytes = state.allowed_missing_bytes;
  completion.repaired_segments = state.repaired_segments;
  completion.remote_total_bytes = state.remote_total_bytes;
  completion.remote_element = state.remote_element;
  completion.elapsed_ns = state.elapsed_ns;
  completion.segment_count = state.grid.count();
  completion.segment_bytes = state.grid.segment_bytes();
  completion.received_bitmap = {};
  if (state.missing_bytes() > 0) {
    completion.received_bitmap = state.words.first(base::words_for_bits(state.grid.count()));
  }
}

void Receiver::release(std::uint32_t slot) {
  arena_.give(states_[slot].words);
  MLT_CHECK(states_[slot].machine.on(ReceiveEvent::k_polled, shared_.counters));
  by_operation_.erase(hash_tag(0, states_[slot].request.operation), slot);
  free_.push(slot);
}

}  // namespace mlt::core
