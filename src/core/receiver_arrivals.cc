// Processes arrivals: data in any order, probes, ABORTs; and whether a receive may complete then. Paper sections 4.2.1
// and 4.2.3.
#include <algorithm>

#include "core/receiver.h"

namespace mlt::core {

namespace {

// Max time that a reply waits for packets that may be reordered.
constexpr DurationNs kMaxReorderNs = 20 * base::kMillisecond;

}  // namespace

void Receiver::note_order(ReceiveState& state, std::uint8_t path, std::uint32_t sequence, TimeNs arrival_ns) {
  const DurationNs late_ns = state.loss.note_order(path, sequence, arrival_ns);
  if (late_ns < 0) return;
  // PROTOCOL 7.2.2: A receiver MUST raise the peer's reorder window to twice that time and 50 us, if that is more than
  //     it was, but to at most 20 ms.
  // The packet arrived after a later one of its path. Doubled, because the next may be later still.
  shared_.counters.add(Counter::k_reordered_packets);
  DurationNs& window = shared_.peers[state.request.peer].reorder_window_ns;
  window = std::clamp(2 * late_ns + 50 * base::kMicrosecond, window, kMaxReorderNs);
}

void Receiver::on_data(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::DataHeader& header,
                       std::span<const std::byte> payload, base::Ecn ecn) {
  shared_.counters.add(Counter::k_data_packets_received);
  shared_.counters.add(Counter::k_data_bytes_received, payload.size());
  const wire::TransferId transfer{header.tag, header.generation};
  ReceiveState* state = receives_.find(from, transfer);
  const std::uint8_t path = header.prefix.path;
  acks_.count(from, arrival_ns, {path, header.prefix.sequence, header.timestamp_ns, transfer}, ecn, state != nullptr,
              shared_.counters);
  if (state != nullptr) {
    note_seen(*state);
    if ((header.prefix.flags & MLT_FLAG_OVERTAKES) == 0) note_order(*state, path, header.prefix.sequence, arrival_ns);
    if (take_data(now, *state, header, payload)) check_completion(now, *state);
    return;
  }
  if (tags_.is_over(from, transfer)) {
    // PROTOCOL 7.7.1: When a transfer has ended its memory belongs to the application again: a receiver MUST NOT write
    //     a packet of it (stale_packets).
    // Must not write to the buffer: after completion it belongs to the application.
    shared_.counters.add(Counter::k_stale_packets);
    // PROTOCOL 7.7.5: A receiver MUST reply with STOP again to a probe, except a trailing one, or a packet with
    //     END_OF_ROUND, of a transfer that has ended: the first STOP may have been lost.
    if ((header.prefix.flags & MLT_FLAG_END_OF_ROUND) != 0) reply_finished(from, transfer, 0, false);
    return;
  }
  on_early_data(now, from, header, payload);
}

void Receiver::on_early_data(TimeNs now, std::uint16_t from, const wire::DataHeader& header,
                             std::span<const std::byte> payload) {
  EarlyTransfer* early = early_.find_or_insert_for_data(from, {header.tag, header.generation});
  if (early != nullptr && early->aborted()) return shared_.counters.add(Counter::k_early_segments_dropped);
  // PROTOCOL 7.3.1: A receiver MUST keep packets of a transfer that has neither been posted nor ended, as far as the
  //     early buffer has space for that peer, and place them when the receive is posted.
  const EarlyBuffer::Kept kept = early == nullptr ? EarlyBuffer::Kept::kNoRoom : early_.keep(*early, header, payload);
  switch (kept) {
    case EarlyBuffer::Kept::kKept:
      shared_.counters.add(Counter::k_early_segments_kept);
      break;
    case EarlyBuffer::Kept::kDuplicate:
      shared_.counters.add(Counter::k_duplicate_segments);
      break;
    case EarlyBuffer::Kept::kNoRoom:
      // PROTOCOL 7.3.2: A receiver MUST drop early data that finds no space (early_segments_dropped); the sender's
      //     probe recovers it.
      shared_.counters.add(Counter::k_early_segments_dropped);
      break;
  }
  // PROTOCOL 7.5.10: Lack of space: the receiver records the drop with the transfer, or with the peer where the
  //     transfer has no record
  if (early == nullptr) {
    shared_.peers[from].early_refused = true;
    return;
  }
  early->segment_lost = early->segment_lost || kept == EarlyBuffer::Kept::kNoRoom || now < dropped_until_ns_;
  if ((header.prefix.flags & MLT_FLAG_OVERTAKES) == 0) {
    note_newest(early->newest[header.prefix.path], header.prefix.sequence);
  }
  note_early_end(*early, header.prefix, header.total_bytes);
}

// A packet with END_OF_ROUND is remembered as the probe that it stands for.
void Receiver::note_early_end(EarlyTransfer& early, const wire::Prefix& prefix, std::uint32_t total_bytes) {
  if ((prefix.flags & MLT_FLAG_END_OF_ROUND) == 0 || early.probed) return;
  early.probed = true;
  early.probe = wire::Probe{};
  early.probe.prefix = prefix;
  early.probe.prefix.flags = 0;
  early.probe.transfer = early.transfer;
  early.probe.total_bytes = total_bytes;
  early.probe.path_count = 1;
  early.probe.last_sequence[0] = prefix.sequence;
}

bool Receiver::matches(TimeNs now, ReceiveState& state, std::uint64_t total_bytes, wire::ElementType element) {
  const std::uint64_t own_bytes = state.placement.grid().total_bytes();
  if (element == state.request.element && (state.size_known ? total_bytes == own_bytes : total_bytes <= own_bytes)) {
    if (!state.size_known) take_size(state, static_cast<std::uint32_t>(total_bytes));
    return true;
  }
  // PROTOCOL 7.1.1: A receiver MUST NOT place a packet or probe that names another size or element type than the posted
  //     receive. The receive fails with what the sender named (drop_mismatch), and STOP reports it to the sender.
  shared_.counters.add(Counter::k_drop_mismatch);
  state.remote_total_bytes = total_bytes;
  state.remote_element = element;
  finish(now, state, ReceiveEvent::k_mismatch,
         element != state.request.element ? CompletionStatus::kTypeMismatch : CompletionStatus::kSizeMismatch, true);
  return false;
}

bool Receiver::take_data(TimeNs now, ReceiveState& state, const wire::DataHeader& header,
                         std::span<const std::byte> payload) {
  if (!matches(now, state, header.total_bytes, header.prefix.element)) return false;
  // PROTOCOL 7.1.2: A receiver MUST drop a packet whose payload is not exactly one segment of the grid
  //     (drop_bad_segment).
  if (!state.placement.grid().fits(header.offset_bytes, payload.size())) {
    shared_.counters.add(Counter::k_drop_bad_segment);
    return true;
  }
  if (!state.machine.on(ReceiveEvent::k_data, shared_.counters)) return false;
  state.loss.on_data(now);
  if (state.data_over_ns != base::kNever) state.data_over_ns = now;  // a parity packet overtook it
  const std::uint8_t flags = header.prefix.flags;
  if ((flags & MLT_FLAG_HAS_CRITICAL) != 0) state.budget.expect_critical();
  // PROTOCOL 7.5.10: or because the connection was not up here yet
  const bool unconfirmed = (flags & MLT_FLAG_UNCONFIRMED) != 0;
  if (unconfirmed && shared_.peers[state.request.peer].refused_before_up) state.budget.note_dropped();
  if (state.placement.put(state.request, header.offset_bytes, payload)) {
    state.loss.on_segment();
    // PROTOCOL 7.5.9: A receiver MUST treat a segment as critical if the packet that brought it first carried CRITICAL.
    if ((flags & MLT_FLAG_CRITICAL) != 0) state.budget.count_critical();
    if ((flags & MLT_FLAG_REPAIR) != 0) ++state.repaired_segments;
    shared_.counters.add(Counter::k_segments_placed);
  } else {
    shared_.counters.add(Counter::k_duplicate_segments);
  }
  end_round(now, state, header.prefix);
  if (!state.parity.empty()) {
    restore(state, header.offset_bytes / state.placement.grid().segment_bytes() / state.block_segments);
  }
  return true;
}

void Receiver::end_round(TimeNs now, ReceiveState& state, const wire::Prefix& prefix) {
  if ((prefix.flags & MLT_FLAG_END_OF_ROUND) == 0 || !state.loss.is_newer_round(prefix.round)) return;
  if (state.loss.names_older_packets({&prefix.sequence, 1})) return;
  if (!state.machine.on(ReceiveEvent::k_end_of_round, shared_.counters)) return;
  // PROTOCOL 7.4.1: A receiver MUST treat a round as ended on END_OF_ROUND, or on a PROBE without ACK_ONLY.
  // END_OF_ROUND marks the last packet of the round on the only path: it has the information of a probe.
  state.loss.begin_round(prefix.round, now);
  state.loss.take_newest_sent({&prefix.sequence, 1}, 0);
  state.probe_timestamp_ns = 0;
  state.reply_by_control = false;
}

void Receiver::on_trailing_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe,
                                 base::Ecn ecn) {
  ReceiveState* state = receives_.find(from, probe.transfer);
  const wire::Prefix& prefix = probe.prefix;
  acks_.count(from, arrival_ns, {prefix.path, prefix.sequence, probe.timestamp_ns, probe.transfer}, ecn,
              state != nullptr, shared_.counters);
  if (state == nullptr) {
    EarlyTransfer* early = early_.find(from, probe.transfer);
    if (early != nullptr) note_newest(early->newest[prefix.path], prefix.sequence);
    return;
  }
  note_seen(*state);
  if (!matches(now, *state, probe.total_bytes, prefix.element)) return;
  state->loss.on_trailing_probe(now);
  note_order(*state, prefix.path, prefix.sequence, arrival_ns);
  // The first probe or END_OF_ROUND of a round ends it; later only a PROBE proper gets another reply.
  // PROTOCOL 7.4.8: A trailing probe of a round newer than any whose end was seen ends that round like a PROBE.
  const std::span<const std::uint32_t> newest_sent(probe.last_sequence, probe.path_count);
  if (state->loss.is_newer_round(prefix.round) && !state->loss.names_older_packets(newest_sent)) {
    return take_probe(now, *state, probe, false);
  }
  check_completion(now, *state);
}

void Receiver::on_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe, base::Ecn ecn,
                        bool by_control) {
  shared_.counters.add(Counter::k_probes_received);
  if ((probe.prefix.flags & MLT_PROBE_FLAG_TRAILING) != 0) {
    // PROTOCOL 7.4.8: A trailing probe that comes over the control connection stood in no queue, and the receiver MUST
    //     ignore it.
    if (by_control) return;  // bypassed the path's queue, so it proves nothing
    return on_trailing_probe(now, arrival_ns, from, probe, ecn);
  }
  if (by_control) {
    shared_.counters.add(Counter::k_tcp_fallback_packets_received);
  } else {
    replies_.on_probe(from, probe.prefix.path);
  }
  ReceiveState* state = receives_.find(from, probe.transfer);
  if (state != nullptr) {
    note_seen(*state);
    if (matches(now, *state, probe.total_bytes, probe.prefix.element)) take_probe(now, *state, probe, by_control);
    return;
  }
  // PROTOCOL 7.7.5: A receiver MUST reply with STOP again to a probe, except a trailing one, or a packet with
  //     END_OF_ROUND, of a transfer that has ended: the first STOP may have been lost.
  if (tags_.is_over(from, probe.transfer)) return reply_finished(from, probe.transfer, probe.timestamp_ns, by_control);
  if (EarlyTransfer* early = early_.find_or_insert(from, probe.transfer)) {
    early->probed = true;
    early->probe = probe;
    early->segment_lost = early->segment_lost || now < dropped_until_ns_;
  }
  Reply reply;
  // PROTOCOL 7.3.4: A receiver MUST reply to a probe of a transfer that is not posted with NOT_POSTED, with its
  //     timestamp and round.
  reply.kind = ReplyKind::kNotPosted;
  reply.peer = from;
  reply.transfer = probe.transfer;
  reply.round = probe.prefix.round;
  reply.probe_timestamp_ns = probe.timestamp_ns;
  replies_.push(reply, by_control);
}

void Receiver::on_abort(TimeNs now, std::uint16_t from, const wire::Abort& abort) {
  shared_.counters.add(Counter::k_aborts_received);
  if (ReceiveState* state = receives_.find(from, abort.transfer)) {
    note_seen(*state);
    return end_by_abort(now, *state, abort.reason);
  }
  // PROTOCOL 8.1.4: A receiver MUST ignore an ABORT of a transfer that has ended, except for the reply of 8.1.6
  //     (stale_control).
  if (tags_.is_over(from, abort.transfer)) {
    shared_.counters.add(Counter::k_stale_control);
    // PROTOCOL 8.1.6: with STOP if the receive has ended, now or before.
    return reply_finished(from, abort.transfer, 0, true);
  }
  // PROTOCOL 8.1.3: A receiver remembers an ABORT of a transfer that is not posted yet, and forgets its early data: the
  //     receive ends as cancelled when it is posted.
  // Without space for the ABORT, the receive ends at its timeout once posted. Late segments would be buffered again, so
  // the sender must not receive a confirmation that its data is gone.
  if (!early_.abort(from, abort.transfer, abort.reason)) return shared_.counters.add(Counter::k_aborts_dropped);
  Reply reply;
  // PROTOCOL 8.1.6: A receiver MUST reply to an ABORT over the control connection: with NOT_POSTED and a probe
  //     timestamp of zero if no receive is posted and the ABORT is remembered
  reply.kind = ReplyKind::kNotPosted;
  reply.peer = from;
  reply.transfer = abort.transfer;
  replies_.push(reply, true);
}

// PROTOCOL 8.1.2: On ABORT a receive in progress MUST end as cancelled. Its report SHOULD say why the sender aborted.
void Receiver::end_by_abort(TimeNs now, ReceiveState& state, const wire::AbortReason& reason) {
  state.reply_by_control = true;
  if (state.is_in_progress()) state.aborted = reason;
  finish(now, state, ReceiveEvent::k_abort, CompletionStatus::kCancelled, true);
}

void Receiver::take_probe(TimeNs now, ReceiveState& state, const wire::Probe& probe, bool by_control) {
  if ((probe.prefix.flags & MLT_PROBE_FLAG_CRITICAL) != 0) {
    state.budget.expect_critical(probe.critical_segments);
  }
  if ((probe.prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) != 0) {
    if (!state.machine.on(ReceiveEvent::k_ack_probe, shared_.counters)) return;
    Reply reply;
    // PROTOCOL 7.4.2: A receiver MUST reply to an ACK_ONLY probe with an ACK that carries POSTED and the probe's
    //     timestamp.
    reply.kind = ReplyKind::kAck;
    reply.peer = state.request.peer;
    reply.transfer = state.transfer();
    reply.probe_timestamp_ns = probe.timestamp_ns;
    replies_.push(reply, by_control);
    return check_completion(now, state);
  }
  const std::span<const std::uint32_t> newest_sent(probe.last_sequence, probe.path_count);
  const bool older = state.loss.names_older_packets(newest_sent);
  const bool newer = !older && state.loss.is_newer_round(probe.prefix.round);
  // PROTOCOL 7.4.3: A receiver MUST ignore a PROBE of an earlier round than the newest known (stale_control).
  const ReceiveEvent again =
      !older && probe.prefix.round == state.loss.round() ? ReceiveEvent::k_probe_again : ReceiveEvent::k_old_probe;
  if (!state.machine.on(newer ? ReceiveEvent::k_new_probe : again, shared_.counters)) return;
  if (newer) state.loss.begin_round(probe.prefix.round, now);
  state.loss.take_newest_sent(newest_sent, probe.suspended_paths);
  state.probe_timestamp_ns = probe.timestamp_ns;
  state.reply_by_control = by_control;
  check_completion(now, state);
}

void Receiver::on_mtu_probe(std::uint16_t from, const wire::MtuProbe& probe) {
  shared_.counters.add(Counter::k_mtu_probes_received);
  Reply reply;
  reply.kind = ReplyKind::kMtuReply;
  reply.peer = from;
  reply.path = probe.prefix.path;
  reply.probe_timestamp_ns = probe.timestamp_ns;
  reply.total_bytes = probe.bytes;
  replies_.push(reply, false);
}

// ---- completion check -----------------------------------------------------------------------------------------------

void Receiver::note_drops(ReceiveState& state) {
  state.drops = drops_;
  if (state.loss.round_over_ns() == base::kNever) return state.budget.note_dropped();
  // PROTOCOL 7.5.11: Such a receive MUST NOT complete within bound before the end of a later round than the sender may
  //     have been in: as many after the newest whose end is known as its bitmap has chunks.
  // The sender may start a round for each chunk of a BITMAP that it repairs (6.7.6).
  const std::uint32_t ahead = state.placement.grid().count() / MLT_BITMAP_CHUNK_SEGMENTS + 1;
  state.budget.note_dropped(state.loss.round(), static_cast<std::uint8_t>(std::min(ahead, 127U)));
}

void Receiver::check_completion(TimeNs now, ReceiveState& state) {
  // PROTOCOL 7.5.1: A receive whose segments have all arrived MUST complete at once; of an empty tensor nothing can be
  //     missing.
  // An empty tensor has no missing bytes, even if its one packet was lost.
  if (state.placement.missing_bytes() == 0) {
    return finish(now, state, ReceiveEvent::k_complete, CompletionStatus::kComplete, true);
  }
  // PROTOCOL 7.5.5: With the policy eager a receive MUST complete the moment that 1 - p has arrived.
  if (state.request.stop == StopPolicy::kEager && state.budget.bytes() > 0 &&
      state.budget.covers(state.placement.missing_bytes())) {
    return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
  }
  if (state.drops != drops_) note_drops(state);
  if (state.machine.phase() != ReceivePhase::k_detecting) return;
  const DurationNs reorder = reorder_ns(state);
  if (now < state.loss.request_ns(reorder, state.placement.missing_segments())) return arm(state);
  // PROTOCOL 7.5.4: With the policy patient (the default) a receive MUST complete within bound once everything missing
  //     is declared lost and the missing part is within the bound.
  if (now >= state.loss.known_lost_ns(reorder)) {
    // PROTOCOL 7.5.10: or if none with data has arrived
    const bool is_empty = state.placement.missing_segments() == state.placement.grid().count();
    if (is_empty && shared_.peers[state.request.peer].refused_before_up) state.budget.note_dropped();
    if (state.budget.covers_loss(state.placement.missing_bytes(), state.loss.round())) {
      return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
    }
  } else {
    state.loss.on_request_in_silence();
  }
  if (!state.machine.on(ReceiveEvent::k_reply, shared_.counters)) return;
  // PROTOCOL 7.5.7: If a completion check lacks only the number of critical segments, the receiver MUST wait for the
  //     probe that follows.
  if (state.budget.lacks_only_critical_number(state.placement.missing_bytes())) return arm(state);
  Reply reply;
  // PROTOCOL 7.5.6: If it can't complete, the receiver MUST reply to the round with a BITMAP, once (but see 7.4.4),
  //     when what is missing is declared lost or 7.4.7 says so.
  reply.kind = ReplyKind::kBitmap;
  reply.peer = state.request.peer;
  reply.transfer = state.transfer();
  reply.round = state.loss.round();
  // PROTOCOL 7.6.2: A receiver MUST echo the probe timestamp only in a reply that was not held back; in a BITMAP of
  //     several chunks in the first only.
  reply.probe_timestamp_ns = now == state.loss.round_over_ns() ? state.probe_timestamp_ns : 0;
  replies_.push(reply, state.reply_by_control);
  arm(state);
}

void Receiver::on_receive_timer(TimeNs now, std::uint32_t slot) {
  ReceiveState& state = receives_[slot];
  // PROTOCOL 7.5.8: A deadline, if the receive has one, MUST complete it with what it has, even if critical segments
  //     are missing (but see 7.1.6); a timeout MUST fail it.
  if (now >= state.deadline_ns && state.size_known) {
    return finish(now, state, ReceiveEvent::k_deadline, CompletionStatus::kDeadline, true);
  }
  // PROTOCOL 7.1.6: A receive that is to end at its deadline before it knows its size MUST fail as timed out.
  // It can't tell the sender how much is missing.
  if (now >= state.expires_ns || now >= state.deadline_ns)
    return finish(now, state, ReceiveEvent::k_expiry, CompletionStatus::kTimedOut, true);
  if (!state.machine.on(ReceiveEvent::k_grace_timer, shared_.counters)) return;
  check_completion(now, state);
}

void Receiver::arm(ReceiveState& state) {
  TimeNs at = std::min(state.expires_ns, state.deadline_ns);
  if (state.machine.phase() == ReceivePhase::k_detecting) {
    at = std::min(at, state.loss.request_ns(reorder_ns(state), state.placement.missing_segments()));
  }
  shared_.timers.set(shared_.receive_timer(receives_.slot_of(state)), at);
}

}  // namespace mlt::core
