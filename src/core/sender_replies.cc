// Processes replies of the receiver: ACK, BITMAP, STOP. Paper sections 4.2.1 and 4.2.3.
#include <algorithm>

#include "core/ack_report.h"
#include "core/sender.h"

namespace mlt::core {

namespace {

// Max time to send a round that still slows the rate. The pauses between rounds are as long, so a lower rate gains
// little. At any rate, a path that carries nothing, or loses most packets, loses rounds.
constexpr DurationNs kSlowestSendNs = 100 * base::kMillisecond;

CompletionStatus completion_status(wire::StopStatus status) {
  switch (status) {
    case wire::StopStatus::kComplete:
      return CompletionStatus::kComplete;
    case wire::StopStatus::kWithinBound:
      return CompletionStatus::kWithinBound;
    case wire::StopStatus::kDeadline:
      return CompletionStatus::kDeadline;
    case wire::StopStatus::kSizeMismatch:
      return CompletionStatus::kSizeMismatch;
    case wire::StopStatus::kTypeMismatch:
      return CompletionStatus::kTypeMismatch;
    case wire::StopStatus::kCancelled:
    // PROTOCOL 6.9.3: A send MUST complete as complete, within bound or deadline if STOP says so, with the missing
    //     bytes it names; as size or type mismatch with the receiver's size and type; as cancelled on the statuses
    //     cancelled and finished before, because a sender cannot claim a success whose outcome is forgotten.
    case wire::StopStatus::kFinishedBefore:  // its receive may have failed or lost data: report no success
      return CompletionStatus::kCancelled;
  }
  return CompletionStatus::kCancelled;
}

// The acknowledgement of a BITMAP or STOP, which have one block, of their own path.
template <typename Reply>
void take_single_block(Shared& shared, MtuChecks& mtu_checks, TimeNs now, TimeNs arrival_ns, std::uint16_t from,
                       const Reply& reply, std::uint8_t echo_flag) {
  AckReport report(shared, now, arrival_ns, from, reply.prefix.sequence);
  report.take_block(reply.prefix.path, reply.block, (reply.prefix.flags & echo_flag) != 0);
  report.finish(reply.probe_timestamp_ns, mtu_checks);
}

}  // namespace

// The path has carried more, or another rate: the early-data limit follows.
void Sender::on_report(std::uint16_t rank) {
  const Peer& peer = shared_.peers[rank];
  const std::uint64_t segments = peer.path_window.bytes() / (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
  if (early_.follow_window(rank, segments)) wake_early(rank);
}

void Sender::on_answer(SendState& state) {
  state.probe.on_reply();
  // PROTOCOL 6.5.7: A probe that has not left when a reply arrives MUST NOT leave over TCP.
  // A due probe may be wrong by now: it must not report the end of a round in progress.
  probes_.cancel_over_tcp(state);
}

void Sender::mark_ready(SendState& state) {
  if (state.receiver_ready || !state.machine.on(SendEvent::k_ready, shared_.counters)) return;
  tags_.note_posted(state.request.peer, state.transfer());
  early_.stop_waiting(state);
  release_early(state);
  state.probe.set_posted();  // from now on trailing probes are evidence
  state.receiver_ready = true;
  if (state.machine.phase() == SendPhase::k_sending) {
    state.probe_ns = base::kNever;  // the probe was due only because the receive might not be posted
    probes_.cancel(state);
    order_.link(state);
    arm(state);
  }
}

void Sender::on_ack(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Ack& ack) {
  shared_.counters.add(Counter::k_acks_received);
  AckReport report(shared_, now, arrival_ns, from, ack.prefix.sequence);
  report.take_block(ack.prefix.path, ack.block, (ack.prefix.flags & MLT_ACK_FLAG_ECHO) != 0);
  for (std::uint8_t i = 0; i < ack.other_count; ++i) {
    const wire::PathBlock& other = ack.others[i];
    report.take_block(other.path, other.block, other.fresh);
  }
  report.finish(ack.probe_timestamp_ns, mtu_checks_);
  on_report(from);
  SendState* state = sends_.find(from, ack.transfer);
  // ACKs are per peer: the transfer that caused this one may have ended.
  if (state == nullptr || state->is_aborted()) return;
  state->probe.on_packet(shared_.counters);
  // PROTOCOL 9.1.1: An ACK without a probe timestamp is no reply here once the first of these probes is 50 ms old:
  //     packets and trailing probes make ACKs due too, and may arrive where the probe does not.
  const bool posted = (ack.prefix.flags & MLT_ACK_FLAG_POSTED) != 0;
  if (ack.probe_timestamp_ns != 0 || (posted && !state->receiver_ready)) on_answer(*state);
  // PROTOCOL 6.4.3: A sender MUST take POSTED in an ACK, or a BITMAP without NOT_POSTED, as the report that the receive
  //     is posted.
  if (posted) mark_ready(*state);
}

void Sender::on_bitmap(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::BitmapMessage& bitmap) {
  shared_.counters.add(Counter::k_bitmaps_received);
  take_single_block(shared_, mtu_checks_, now, arrival_ns, from, bitmap, MLT_BITMAP_FLAG_ECHO);
  on_report(from);
  SendState* found = sends_.find(from, bitmap.transfer);
  // PROTOCOL 6.7.1: A sender MUST ignore a BITMAP of a transfer that is not in progress (stale_control).
  if (found == nullptr) return shared_.counters.add(Counter::k_stale_control);
  SendState& state = *found;
  const bool not_posted = (bitmap.prefix.flags & MLT_BITMAP_FLAG_NOT_POSTED) != 0;
  if (state.is_aborted()) {
    // A reply to a probe, which carries the probe's timestamp, was sent before ABORT arrived.
    if (not_posted && bitmap.probe_timestamp_ns == 0) return settle(state, SendEvent::k_released);
    (void)state.machine.on(not_posted ? SendEvent::k_not_posted : SendEvent::k_other_bitmap, shared_.counters);
    return;
  }
  state.probe.on_packet(shared_.counters);
  on_answer(state);
  if (not_posted) {
    // PROTOCOL 6.6.2: A sender MUST ignore a NOT_POSTED that comes once the receive is known to be posted: that report
    //     overtook it (stale_control).
    if (state.receiver_ready) return shared_.counters.add(Counter::k_stale_control);
    if (!state.machine.on(SendEvent::k_not_posted, shared_.counters)) return;
    // PROTOCOL 6.6.1: On NOT_POSTED a sender MUST wait for READY, and probe again after a retransmission timeout that
    //     doubles with every such reply: READY may be lost.
    // The receiver sends READY once the receive is posted; probe with backoff in case READY is lost.
    state.probe_ns = base::after(now, repeat_after(state, state.probe.count_not_posted()));
    return arm(state);
  }
  mark_ready(state);
  if (bitmap.segment_count == 0) return;
  // PROTOCOL 9.1.6: Where the newest reply to a probe came over the control connection, a sender MUST send each further
  //     probe of the reply timer and of a stalled window to that peer both ways from the first on, until one with a
  //     probe timestamp comes as a datagram.
  // A delayed one carries no timestamp.
  if (wire::reply_path(bitmap.prefix.sequence) == wire::kNoReplyPath) shared_.peers[from].replies_by_control = true;
  // PROTOCOL 6.7.4: A sender MUST drop a BITMAP that reaches beyond the tensor's segments (drop_bad_segment).
  if (bitmap.first_segment >= state.grid.count() || bitmap.segment_count > state.grid.count() - bitmap.first_segment) {
    return shared_.counters.add(Counter::k_drop_bad_segment);
  }
  if (!requests_any(bitmap)) return shared_.counters.add(Counter::k_stale_control);
  // PROTOCOL 6.7.2: A BITMAP with bits counts in two cases only.
  const SendEvent event = state.repair.event_of(bitmap);
  const bool has_left = state.machine.phase() == SendPhase::k_awaiting;
  if (!state.machine.on(event, shared_.counters)) return;
  if (has_left) {
    // PROTOCOL 6.7.6: A chunk of the request that comes when the round it belongs to has left MUST start the next
    //     round.
    event == SendEvent::k_bitmap ? state.repair.begin_round() : state.repair.begin_further_round();
    state.probe_ns = base::kNever;
    probes_.cancel(state);
  }
  merge(state, bitmap);
  arm(state);
}

// Marks the segments that one chunk requests as pending in the current round.
void Sender::merge(SendState& state, const wire::BitmapMessage& bitmap) {
  const std::uint32_t added = state.repair.merge(bitmap, state.pending);
  state.pending_count += added;
  if (state.repair.is_round_lost(added)) slow_down(state);
  state.restart_passes();
  order_.link(state);
}

// If a port or a slow host queues less than a round, it drops the rest, and few packets yield samples.
void Sender::slow_down(const SendState& state) {
  Peer& peer = shared_.peers[state.request.peer];
  if (peer.holds_back) return;
  shared_.counters.add(Counter::k_rounds_lost);
  peer.path_window.on_round_lost();
  std::uint64_t packets = 0;
  for (const SendState& other : sends_) {
    if (other.is_in_progress() && other.request.peer == state.request.peer) packets += other.pending_count;
  }
  const auto bytes = static_cast<double>(packets * (peer.segment_bytes + MLT_DATA_HEADER_BYTES));
  const double min_rate = bytes / (static_cast<double>(kSlowestSendNs) / base::kSecond);
  // RECOVERY R1.2.13: It MUST NOT halve the rate where all that is pending for the peer would then take more than
  //     100 ms.
  if (peer.rate->rate_bytes_per_second() >= 2 * min_rate) peer.rate->on_round_lost();
}

void Sender::on_stop(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Stop& stop) {
  shared_.counters.add(Counter::k_stops_received);
  take_single_block(shared_, mtu_checks_, now, arrival_ns, from, stop, MLT_STOP_FLAG_ECHO);
  on_report(from);
  SendState* state = sends_.find(from, stop.transfer);
  // PROTOCOL 6.9.2: A sender MUST ignore a STOP of a transfer that is not in progress (stale_control), except for its
  //     acknowledgement block.
  if ((stop.prefix.flags & MLT_STOP_FLAG_UNSEEN) == 0) tags_.note_posted(from, stop.transfer);
  if (state == nullptr) return shared_.counters.add(Counter::k_stale_control);
  const bool unseen = (stop.prefix.flags & MLT_STOP_FLAG_UNSEEN) != 0;
  if (state->is_aborted()) {
    release_early(*state);
    // ABORT has not reached this receiver yet.
    if (unseen) return (void)state->machine.on(SendEvent::k_stop_unseen, shared_.counters);
    return settle(*state, SendEvent::k_released, true);
  }
  CompletionStatus status = completion_status(stop.status);
  // PROTOCOL 6.9.5: A sender MUST drop a STOP that claims success for another size than the tensor's (drop_mismatch).
  if (!is_failure(status) && stop.receiver_total_bytes != state->grid.total_bytes()) {
    // A receiver never completes a tensor of another size, except that its deadline may pass before it learns the size.
    if (status != CompletionStatus::kDeadline) return shared_.counters.add(Counter::k_drop_mismatch);
    status = CompletionStatus::kSizeMismatch;
  }
  state->missing_bytes = stop.missing_bytes;
  state->remote_total_bytes = stop.receiver_total_bytes;
  state->remote_element = stop.prefix.element;
  // PROTOCOL 6.9.1: On STOP the sender MUST send nothing more of the transfer, and complete the send as 6.9.3 says.
  // PROTOCOL 6.9.6: On STOP with UNSEEN the send ends as 6.9.3 says, and the sender MUST send ABORT as well (8.1.6).
  if (unseen) {
    release_early(*state);
    return abort_send(now, *state, SendEvent::k_stop_unseen, status);
  }
  finish(now, *state, SendEvent::k_stop, status);
}

}  // namespace mlt::core
