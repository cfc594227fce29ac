#include "core/sender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/ended_transfer.h"

namespace mlt::core {

namespace {

// TCP does not lose an ABORT, but the receiver may have no space to remember it or to queue the reply.
constexpr DurationNs kAbortAgainNs = 500 * base::kMillisecond;  // doubles
constexpr std::uint32_t kMaxAborts = 3;
// Interval between probes of sends that wait at the early-data limit, over all sends to a peer: 20,000 per second.
constexpr DurationNs kEarlyProbeNs = 50 * base::kMicrosecond;

}  // namespace

Sender::Sender(Shared& shared, base::WordArena& arena)
    : shared_(shared),
      arena_(arena),
      sends_(shared.config.max_sends),
      tags_(shared),
      order_(shared, sends_),
      flow_(shared),
      mtu_checks_(shared),
      probes_(shared, sends_, mtu_checks_),
      early_(shared.config.peers, sends_),
      parity_(shared.config),
      aborts_due_(shared.config.max_sends) {}

PostStatus Sender::post(TimeNs now, const SendRequest& request) {
  if (const PostStatus status = shared_.check_peer(request.peer); status != PostStatus::kPosted) return status;
  if (request.data.size() > ~std::uint32_t{0}) return PostStatus::kTooLarge;
  if (request.data.size() % wire::element_bytes(request.element) != 0) return PostStatus::kBadElementCount;
  const Peer& peer = shared_.peers[request.peer];
  const SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), peer.segment_bytes);
  // PROTOCOL 5.1.3: A transfer carries less than 4 GiB, and at most 512 chunks of 8,192 segments. A sender MUST refuse
  //     to post more.
  if (grid.count() > kMaxBitmapChunks * MLT_BITMAP_CHUNK_SEGMENTS) return PostStatus::kTooLarge;
  // PROTOCOL 5.3.2: An endpoint MUST refuse an operation that it cannot carry when it is posted, before it counts or
  //     sends anything.
  const bool has_priorities = !request.priorities.empty() || request.classify != nullptr;
  if (has_priorities && request.priorities.size() != grid.count()) return PostStatus::kBadPriorityCount;
  if (request.feed != nullptr && request.feed->fresh.size() != grid.count()) return PostStatus::kBadPriorityCount;
  MLT_CHECK(request.feed == nullptr || request.classify == nullptr);
  if (sends_.is_full()) return PostStatus::kTooManyOperations;
  SendTag* entry = tags_.for_post(request.peer, request.tag);
  if (entry == nullptr) return PostStatus::kTooManyTags;
  const std::span<std::uint64_t> words = arena_.take(base::words_for_bits(grid.count()));
  if (words.empty()) return PostStatus::kOutOfBitmaps;

  SendState& state = sends_.take();
  MLT_CHECK(state.machine.on(SendEvent::k_post, shared_.counters));
  state.request = request;
  // PROTOCOL 5.2.1: The k-th send of a tag to a peer MUST match the k-th receive of that tag from it.
  state.generation = tags_.take_generation(*entry);
  state.grid = grid;
  state.words = words;
  state.pending = base::BitmapView(words.data(), grid.count());
  // PROTOCOL 6.5.1: A round MUST send every segment that is pending at its start, in the order of 6.1; in round 0 all
  //     are pending.
  if (request.feed == nullptr) {
    state.pending.set_all();
    state.pending_count = grid.count();
  } else {
    // PROTOCOL 6.5.11: It sends what is ready, and segments that are not ready are added to it as they become ready.
    state.pending.clear_all();
    state.withheld = grid.count();
    order_.begin_feed(state);
  }
  if (!has_priorities) {
    state.critical_segments = request.uniform_priority.is_critical() ? grid.count() : 0;
  } else if (request.classify == nullptr) {
    for (const SegmentPriority one : request.priorities) state.critical_segments += one.is_critical() ? 1U : 0U;
  }
  state.classified = request.classify == nullptr ? grid.count() : 0;
  state.restart_passes();
  state.posted_ns = now;
  const DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : shared_.config.operation_timeout_ns;
  // PROTOCOL 5.3.3: Each operation MUST have a limit in time: its own, or the endpoint's (300 s).
  state.expires_ns = base::after(now, timeout);
  state.post_number = posts_++;
  shared_.add_operation(request.peer);
  sends_.list(state);
  // PROTOCOL 5.2.2: No rendezvous precedes a transfer: a sender MAY send before it knows that the receive is posted,
  //     within the early data limit (6.4).
  order_.link(state);
  arm(state);
  return PostStatus::kPosted;
}

bool Sender::cancel(TimeNs now, OperationId operation) {
  if (SendState* state = sends_.find_operation(operation, [](const auto& it) { return it.is_in_progress(); })) {
    abort_send(now, *state, SendEvent::k_cancel, CompletionStatus::kCancelled);
    return true;
  }
  // The send has already ended: the cancel is too late, if the operation is still known at all.
  const auto is_not_polled = [](const SendState& it) { return it.machine.phase() != SendPhase::k_lingering; };
  if (SendState* over = sends_.find_operation(operation, is_not_polled)) {
    (void)over->machine.on(SendEvent::k_cancel, shared_.counters);
  }
  return false;
}

// ---- timers and ends -----------------------------------------------------------------------------------------------

void Sender::arm(SendState& state) {
  shared_.timers.set(shared_.send_timer(sends_.slot_of(state)), std::min(state.expires_ns, state.probe_ns));
}

void Sender::await_reply(TimeNs now, SendState& state) {
  const Peer& peer = shared_.peers[state.request.peer];
  // The last batch must leave at the current rate before a reply can be expected.
  // PROTOCOL 6.5.4: Then a sender MUST wait. Without a reply within a retransmission timeout after the last packet
  //     could have left, it MUST send a PROBE, and repeat it after twice as long each time.
  const TimeNs leaves = std::max(now, peer.pacer.next_ns());
  state.probe_ns = base::after(leaves, repeat_after(state, state.probe.unanswered()));
  arm(state);
}

// Limits the total probe rate: thousands of sends that wait for their receives probe no more often than a few.
DurationNs Sender::repeat_after(const SendState& state, std::uint32_t repeats) const {
  const Peer& peer = shared_.peers[state.request.peer];
  const DurationNs timeout = peer.rtt.timeout_ns(repeats);
  // PROTOCOL 6.4.5: Of the sends to a peer, n wait at the early data limit or have sent early data. One that waits
  //     there, or got NOT_POSTED in reply, MUST NOT probe again before n * 50 us have passed
  if (!state.waits_for_space && !state.probe.is_not_posted()) return timeout;
  return std::max(timeout, early_.sends(state.request.peer) * kEarlyProbeNs);
}

// Whether the due probe, which repeats an unanswered one, must wait for others to the peer.
bool Sender::waits_for_turn(TimeNs now, SendState& state) {
  const bool has_turn = std::exchange(state.has_probe_turn, false);
  const std::uint32_t unanswered = state.probe.unanswered();
  if (has_turn || unanswered == 0) return false;
  Peer& peer = shared_.peers[state.request.peer];
  const TimeNs turn = peer.probe_turns.take(now, peer.rtt.timeout_ns(unanswered));
  if (turn <= now) return false;
  state.probe_ns = turn;
  state.has_probe_turn = true;
  return true;
}

void Sender::on_send_timer(TimeNs now, std::uint32_t slot) {
  SendState& state = sends_[slot];
  if (state.is_aborted()) {
    if (state.aborts >= kMaxAborts) return settle(state, SendEvent::k_abandoned);
    MLT_CHECK(state.machine.on(SendEvent::k_abort_timer, shared_.counters));
    shared_.counters.add(Counter::k_control_resent);
    return say_abort(now, state);
  }
  // PROTOCOL 6.9.4: A send MUST end at its timeout as timed out, when the caller cancels it as cancelled, and when its
  //     peer goes down as peer failed.
  if (now >= state.expires_ns) return abort_send(now, state, SendEvent::k_expiry, CompletionStatus::kTimedOut);
  if (now < state.probe_ns) return arm(state);
  if (waits_for_turn(now, state)) return arm(state);
  if (!state.machine.on(SendEvent::k_probe_timer, shared_.counters)) return;
  if (state.probe.unanswered() > 0) shared_.counters.add(Counter::k_control_resent);
  // PROTOCOL 6.5.4: Then a sender MUST wait. Without a reply within a retransmission timeout after the last packet
  //     could have left, it MUST send a PROBE, and repeat it after twice as long each time.
  probes_.schedule(state, state.machine.phase() == SendPhase::k_sending);
  // PROTOCOL 6.5.8: A sender MUST send a trailing probe on every path with a packet of the transfer, except suspended
  //     ones (4.7.6), before a PROBE that the reply timer sends after a round, unless the receiver has sent NOT_POSTED
  //     and not READY since.
  // The last packets of a path may be lost, or in a queue that the probe bypasses.
  if (!state.probe.is_ack_only()) probes_.schedule_trailing(state);
  const bool needs_fallback = state.probe.count_unanswered(now, shared_.counters);
  // PROTOCOL 9.1.6: Where the newest reply to a probe came over the control connection, a sender MUST send each further
  //     probe of the reply timer and of a stalled window to that peer both ways from the first on, until one with a
  //     probe timestamp comes as a datagram.
  // PROTOCOL 9.1.7: A sender MUST do the same with all probes of the reply timer to a peer of which more than 384
  //     repetitions in a row (6.5.12) had no reply, of whatever transfers.
  const Peer& peer = shared_.peers[state.request.peer];
  const bool at_once = peer.replies_by_control || peer.probe_turns.lack_reply();
  if (at_once || needs_fallback) probes_.schedule_over_tcp(state);
  await_reply(now, state);
}

void Sender::on_peer_timer(TimeNs now, std::uint16_t rank) {
  Peer& peer = shared_.peers[rank];
  peer.classification_deferred = false;
  const std::uint32_t timeouts = flow_.on_timer(now, rank);
  if (timeouts == 0) return;
  // PROTOCOL 6.3.5: When the window has stayed full for a retransmission timeout (R1.1), the sender MUST send an
  //     ACK_ONLY probe of the transfer that is first in order
  SendState& first = sends_[peer.work_head];
  probes_.schedule(first, true);
  // PROTOCOL 9.1.2: A sender MUST do the same with the probes of a stalled window.
  if (timeouts > kFallbackAfterProbes || peer.replies_by_control) probes_.schedule_over_tcp(first);
}

void Sender::on_peer_up(const PeerUp& up) {
  tags_.reset(up.peer);
  early_.reset(up.peer, up.early_segments, up.early_transfers);
  mtu_checks_.on_peer_up(up.peer, up.segment_bytes + MLT_DATA_HEADER_BYTES);
}

void Sender::on_peer_down(TimeNs now, std::uint16_t rank) {
  for (SendState& state : sends_) {
    if (state.request.peer != rank) continue;
    if (state.is_in_progress()) finish(now, state, SendEvent::k_peer_down, CompletionStatus::kPeerFailed);
    if (state.is_aborted()) settle(state, SendEvent::k_peer_down);
  }
  shared_.timers.cancel(shared_.peer_timer(rank));
  mtu_checks_.on_peer_down(rank);
  tags_.reset(rank);
}

void Sender::on_mtu_reply(TimeNs now, std::uint16_t from, const wire::MtuReply& reply) {
  shared_.counters.add(Counter::k_mtu_replies_received);
  mtu_checks_.on_reply(now, from, reply, [&](std::uint32_t payload_bytes) { on_path_limit(now, from, payload_bytes); });
}

void Sender::on_mtu_timer(TimeNs now, std::uint16_t rank) {
  if (!shared_.peers[rank].up) return;
  const bool is_sending = std::any_of(sends_.begin(), sends_.end(), [rank](const SendState& state) {
    return state.is_in_progress() && state.request.peer == rank;
  });
  // PROTOCOL 18.1.5: Where every path to a peer has a limit (R2.6.5), a sender MUST end every send to that peer with a
  //     longer segment as peer failed, and abort it (8.1.1): nothing of it would ever arrive.
  mtu_checks_.on_timer(now, rank, is_sending,
                       [&](std::uint32_t payload_bytes) { on_path_limit(now, rank, payload_bytes); });
}

void Sender::on_path_limit(TimeNs now, std::uint16_t rank, std::uint32_t payload_bytes) {
  for (SendState& state : sends_) {
    if (!state.is_in_progress() || state.request.peer != rank) continue;
    // PROTOCOL 18.1.5: Where every path to a peer has a limit (R2.6.5), a sender MUST end every send to that peer with
    //     a longer segment as peer failed, and abort it (8.1.1): nothing of it would ever arrive.
    const std::uint32_t longest = std::min(state.grid.total_bytes(), state.grid.segment_bytes());
    if (longest <= payload_bytes) continue;
    state.path_bytes = payload_bytes;
    abort_send(now, state, SendEvent::k_cancel, CompletionStatus::kPeerFailed);
  }
}

// Sends ABORT: otherwise the receiver would wait for its own timeout, and the next transfer of this tag would match the
// wrong receive.
void Sender::abort_send(TimeNs now, SendState& state, SendEvent event, CompletionStatus status) {
  if (finish(now, state, event, status)) say_abort(now, state);
}

void Sender::say_abort(TimeNs now, SendState& state) {
  // PROTOCOL 8.1.1: A sender that aborts a transfer (cancelled, timed out, or by 18.1.5 or 18.1.6) MUST send ABORT.
  aborts_due_.set(sends_.slot_of(state));
  // PROTOCOL 8.1.7: A sender MUST send an ABORT that has no reply within 500 ms again, and a third time after 1 s more.
  state.expires_ns = base::kNever;
  state.probe_ns = base::after(now, kAbortAgainNs << state.aborts++);
  arm(state);
}

void Sender::settle(SendState& state, SendEvent event, bool is_matched) {
  MLT_CHECK(state.machine.on(event, shared_.counters));
  const std::uint32_t slot = sends_.slot_of(state);
  if (event == SendEvent::k_abandoned) {
    early_.abandon(state);
  } else {
    release_early(state);
  }
  aborts_due_.clear(slot);
  shared_.timers.cancel(shared_.send_timer(slot));
  sends_.unlist(state);
  tags_.leave(state.request.peer, state.transfer(), event == SendEvent::k_released && is_matched);
  if (state.is_free()) sends_.free(state);
}

bool Sender::finish(TimeNs now, SendState& state, SendEvent event, CompletionStatus status) {
  if (!state.machine.on(event, shared_.counters)) return false;
  const std::uint32_t slot = sends_.slot_of(state);
  shared_.remove_operation(state.request.peer);
  order_.unlink(state);
  order_.end_feed(state);
  early_.stop_waiting(state);
  probes_.forget(state);
  parity_.forget(state);
  shared_.timers.cancel(shared_.send_timer(slot));
  // Early data of a failed send stays in the peer's early buffer until ABORT arrives.
  if (!state.is_aborted()) {
    release_early(state);
    sends_.unlist(state);
    tags_.leave(state.request.peer, state.transfer(), true);
  }
  state.status = status;
  state.elapsed_ns = now - state.posted_ns;
  arena_.give(state.words);
  shared_.counters.add(is_failure(status) ? Counter::k_operations_failed : Counter::k_sends_completed);
  shared_.completions.push({CompletionKind::kSend, slot});
  return true;
}

void Sender::add_usage(Usage& usage) const {
  usage.sends = {sends_.used(), sends_.limit()};
  for (std::size_t place = 1; place <= shared_.peers.used(); ++place) {
    const auto peer = static_cast<std::uint16_t>(shared_.peers.item_at(place));
    if (shared_.peers[peer].up) early_.add_usage(peer, usage);
  }
}

void Sender::complete(std::uint32_t slot, Completion& completion) const {
  const SendState& state = sends_[slot];
  describe_end(state, state.grid, CompletionKind::kSend, completion);
  completion.missing_bytes = state.missing_bytes;
  completion.allowed_missing_bytes = 0;
}

void Sender::release(std::uint32_t slot) {
  SendState& state = sends_[slot];
  MLT_CHECK(state.machine.on(SendEvent::k_polled, shared_.counters));
  if (state.is_free()) sends_.free(state);
}

}  // namespace mlt::core
