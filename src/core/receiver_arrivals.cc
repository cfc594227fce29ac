// Processes arrivals: data in any order, probes, ABORTs. Paper section 4.2.1.
#include <algorithm>
#include <cstring>

#include "core/receiver.h"

namespace mlt::core {

namespace {

// Max time that a reply waits for packets that may be reordered.
constexpr DurationNs kMaxReorderNs = 20 * base::kMillisecond;

// True if `sequence` becomes the newest; 0: none so far.
bool note_newest(std::uint32_t& newest, std::uint32_t sequence) {
  if (newest != 0 && !is_after(sequence, newest)) return false;
  newest = sequence;
  return true;
}

}  // namespace

void Receiver::count_arrival(TimeNs arrival_ns, std::uint16_t from, const Arrival& arrival, base::Ecn ecn,
                             bool posted) {
  Peer& peer = shared_.peers[from];
  PathIn& in = peer.in[arrival.path];
  if (in.highest_sequence == 0 || is_after(arrival.sequence, in.highest_sequence)) {
    in.highest_sequence = arrival.sequence;
    in.echo_timestamp_ns = arrival.timestamp_ns;
    in.echo_arrival_ns = arrival_ns;
    in.echo_fresh = true;
  }
  // PROTOCOL 7.2.1: A receiver MUST count every packet and trailing probe that passes 4.11 for its path, whatever
  //     becomes of it: received, CE-marked, highest sequence.
  ++in.received_packets;
  if (ecn == base::Ecn::kCe) {
    ++in.ce_packets;
    shared_.counters.add(Counter::k_ce_marks_received);
  }
  peer.last_path = arrival.path;
  ++in.since_ack;
  peer.unreported_paths |= 1U << arrival.path;
  peer.ack_transfer = arrival.transfer;
  peer.ack_posted = posted;
  // Counted over all paths, because one ACK covers all of them: no window is too small for any number of paths.
  // PROTOCOL 7.2.4: A receiver MUST send an ACK once ten packets have come, over all paths, that no acknowledgement
  //     block has reported yet, or as many as fill half the window that it announced, if that is fewer.
  if (++peer.since_ack >= peer.packets_per_ack) acks_due_.set(from);
}

void Receiver::note_order(ReceiveState& state, std::uint8_t path, std::uint32_t sequence, TimeNs arrival_ns) {
  // PROTOCOL 7.4.6: It MUST NOT count packets of other transfers, and those that carry OVERTAKES: they may have
  //     overtaken what was sent before them.
  if (note_newest(state.newest[path], sequence)) {
    state.newest_arrival_ns[path] = arrival_ns;
    return;
  }
  if (sequence == state.newest[path] || arrival_ns < state.newest_arrival_ns[path]) return;
  // PROTOCOL 7.2.2: A receiver MUST raise the peer's reorder window to twice that time and 50 us, if that is more than
  //     it was, but to 20 ms at most.
  // The packet arrived after a later one of its path: measure the delay. Doubled, because the next may be later still.
  shared_.counters.add(Counter::k_reordered_packets);
  DurationNs& window = shared_.peers[state.request.peer].reorder_window_ns;
  const DurationNs late = 2 * (arrival_ns - state.newest_arrival_ns[path]) + 50 * base::kMicrosecond;
  window = std::clamp(late, window, kMaxReorderNs);
}

void Receiver::on_data(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::DataHeader& header,
                       std::span<const std::byte> payload, base::Ecn ecn) {
  shared_.counters.add(Counter::k_data_packets_received);
  shared_.counters.add(Counter::k_data_bytes_received, payload.size());
  const wire::TransferId transfer{header.tag, header.generation};
  ReceiveState* state = find(from, transfer);
  const std::uint8_t path = header.prefix.path;
  count_arrival(arrival_ns, from, {path, header.prefix.sequence, header.timestamp_ns, transfer}, ecn, state != nullptr);
  if (state != nullptr) {
    note_seen(*state);
    if ((header.prefix.flags & MLT_FLAG_OVERTAKES) == 0) note_order(*state, path, header.prefix.sequence, arrival_ns);
    if (place(now, *state, header, payload)) check_completion(now, *state);
    return;
  }
  if (is_over(from, transfer)) {
    // PROTOCOL 7.7.1: When a transfer is over its memory belongs to the application again: a receiver MUST NOT write a
    //     packet of it (stale_packets).
    // Must not write to the buffer: after completion it belongs to the application.
    shared_.counters.add(Counter::k_stale_packets);
    // PROTOCOL 7.7.5: A receiver MUST answer a probe, but for a trailing one, or a packet with END_OF_ROUND, of a
    //     transfer that is over with STOP again: the first may have been lost.
    if ((header.prefix.flags & MLT_FLAG_END_OF_ROUND) != 0) reply_finished(from, transfer, 0, false);
    return;
  }
  on_early_data(from, header, payload);
}

void Receiver::on_early_data(std::uint16_t from, const wire::DataHeader& header, std::span<const std::byte> payload) {
  EarlyTransfer* early = early_.find_or_insert_for_data(from, {header.tag, header.generation});
  if (early != nullptr && early->aborted()) return shared_.counters.add(Counter::k_early_segments_dropped);
  // PROTOCOL 7.3.1: A receiver MUST keep packets of a transfer that is neither posted nor over, as far as the early
  //     buffer has room for that peer, and place them when the receive is posted.
  const EarlyBuffer::Kept kept = early == nullptr ? EarlyBuffer::Kept::kNoRoom : early_.keep(*early, header, payload);
  switch (kept) {
    case EarlyBuffer::Kept::kKept:
      shared_.counters.add(Counter::k_early_segments_kept);
      break;
    case EarlyBuffer::Kept::kDuplicate:
      shared_.counters.add(Counter::k_duplicate_segments);
      break;
    case EarlyBuffer::Kept::kNoRoom:
      // PROTOCOL 7.3.2: A receiver MUST drop early data that finds no room (early_segments_dropped); the sender's probe
      //     recovers it.
      shared_.counters.add(Counter::k_early_segments_dropped);
      break;
  }
  // PROTOCOL 7.5.10: For want of room, the receiver remembers this of the transfer, or of the peer where the transfer
  //     has no record
  if (early == nullptr) {
    shared_.peers[from].early_refused = true;
    return;
  }
  early->segment_lost = early->segment_lost || kept == EarlyBuffer::Kept::kNoRoom;
  if ((header.prefix.flags & MLT_FLAG_OVERTAKES) == 0) {
    note_newest(early->newest[header.prefix.path], header.prefix.sequence);
  }
  if ((header.prefix.flags & MLT_FLAG_END_OF_ROUND) != 0 && !early->probed) {
    early->probed = true;
    early->probe = wire::Probe{};
    early->probe.prefix = header.prefix;
    early->probe.prefix.flags = 0;
    early->probe.transfer = early->transfer;
    early->probe.total_bytes = header.total_bytes;
    early->probe.path_count = 1;
    early->probe.last_sequence[0] = header.prefix.sequence;
  }
}

bool Receiver::matches(TimeNs now, ReceiveState& state, std::uint64_t total_bytes, wire::ElementType element) {
  if (total_bytes == state.grid.total_bytes() && element == state.request.element) return true;
  // PROTOCOL 7.1.1: A receiver MUST NOT place a packet or probe that names another size or element type than the posted
  //     receive. The receive fails with what the sender named (drop_mismatch), and STOP reports it to the sender.
  shared_.counters.add(Counter::k_drop_mismatch);
  state.remote_total_bytes = total_bytes;
  state.remote_element = element;
  finish(now, state, ReceiveEvent::k_mismatch,
         element != state.request.element ? CompletionStatus::kTypeMismatch : CompletionStatus::kSizeMismatch, true);
  return false;
}

bool Receiver::place(TimeNs now, ReceiveState& state, const wire::DataHeader& header,
                     std::span<const std::byte> payload) {
  if (!matches(now, state, header.total_bytes, header.prefix.element)) return false;
  // PROTOCOL 7.1.2: A receiver MUST drop a packet whose payload is not exactly one segment of the grid
  //     (drop_bad_segment).
  if (!state.grid.fits(header.offset_bytes, payload.size())) {
    shared_.counters.add(Counter::k_drop_bad_segment);
    return true;
  }
  if (!state.machine.on(ReceiveEvent::k_data, shared_.counters)) return false;
  state.last_data_ns = now;
  const std::uint8_t flags = header.prefix.flags;
  state.has_critical = state.has_critical || (flags & MLT_FLAG_HAS_CRITICAL) != 0;
  // PROTOCOL 7.5.10: or because the connection was not up here yet
  const bool unconfirmed = (flags & MLT_FLAG_UNCONFIRMED) != 0;
  if (unconfirmed && shared_.peers[state.request.peer].refused_before_up) state.segment_dropped = true;
  const std::uint32_t segment = header.offset_bytes / state.grid.segment_bytes();
  if (state.received.test(segment)) {
    // PROTOCOL 7.1.4: A receiver MUST NOT write a segment again that has arrived before (duplicate_segments).
    shared_.counters.add(Counter::k_duplicate_segments);
  } else {
    // PROTOCOL 7.1.3: A receiver MUST write a segment that arrives first at its offset, whatever its order, round or
    //     path.
    state.received.set(segment);
    ++state.received_segments;
    state.silent_rounds = 0;
    state.requested_in_silence = false;
    state.received_bytes += payload.size();
    // PROTOCOL 7.5.9: A receiver MUST treat a segment as critical if the packet that brought it first carried CRITICAL.
    if ((flags & MLT_FLAG_CRITICAL) != 0) ++state.critical_received;
    if ((flags & MLT_FLAG_REPAIR) != 0) ++state.repaired_segments;
    shared_.counters.add(Counter::k_segments_placed);
    if (state.request.place != nullptr) {
      state.request.place(state.request.place_context, header.offset_bytes, payload);
    } else if (!payload.empty()) {
      std::byte* to = state.request.data.data() + header.offset_bytes;
      if (state.streams()) {
        base::stream_copy(to, payload.data(), payload.size());
      } else {
        std::memcpy(to, payload.data(), payload.size());
      }
    }
  }
  if ((flags & MLT_FLAG_END_OF_ROUND) != 0 && state.is_newer_round(header.prefix.round) &&
      !state.names_older_packets({&header.prefix.sequence, 1}) &&
      state.machine.on(ReceiveEvent::k_end_of_round, shared_.counters)) {
    // PROTOCOL 7.4.1: A receiver MUST take a round as over on its marker, or on a PROBE without ACK_ONLY.
    // END_OF_ROUND marks the last packet of the round on the only path: it has the information of a probe.
    state.begin_loss_detection(header.prefix.round, now);
    state.path_count = 1;
    // PROTOCOL 7.4.5: The end of a round MUST name, for each path, the newest packet of the transfer: a PROBE in its
    //     list, a marker by being that packet.
    state.last_sequence[0] = header.prefix.sequence;
    state.given_up_paths = 0;
    state.probe_timestamp_ns = 0;
    state.reply_by_control = false;
  }
  return true;
}

void Receiver::on_trailing_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe,
                                 base::Ecn ecn) {
  ReceiveState* state = find(from, probe.transfer);
  const wire::Prefix& prefix = probe.prefix;
  count_arrival(arrival_ns, from, {prefix.path, prefix.sequence, probe.timestamp_ns, probe.transfer}, ecn,
                state != nullptr);
  if (state == nullptr) {
    EarlyTransfer* early = early_.find(from, probe.transfer);
    if (early != nullptr) note_newest(early->newest[prefix.path], prefix.sequence);
    return;
  }
  note_seen(*state);
  if (!matches(now, *state, probe.total_bytes, prefix.element)) return;
  if (known_lost_ns(*state) == base::kNever) state->proof_ns = now;
  note_order(*state, prefix.path, prefix.sequence, arrival_ns);
  // The first probe or END_OF_ROUND of a round ends it; later only a PROBE proper gets another reply.
  // PROTOCOL 7.4.8: A trailing probe of a round newer than any whose end was seen ends that round like a PROBE.
  if (state->is_newer_round(prefix.round) && !state->names_older_packets({probe.last_sequence, probe.path_count})) {
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
    shared_.counters.add(Counter::k_backstop_messages_received);
  } else {
    shared_.peers[from].probe_path = probe.prefix.path;
  }
  ReceiveState* state = find(from, probe.transfer);
  if (state != nullptr) {
    note_seen(*state);
    if (matches(now, *state, probe.total_bytes, probe.prefix.element)) take_probe(now, *state, probe, by_control);
    return;
  }
  // PROTOCOL 7.7.5: A receiver MUST answer a probe, but for a trailing one, or a packet with END_OF_ROUND, of a
  //     transfer that is over with STOP again: the first may have been lost.
  if (is_over(from, probe.transfer)) return reply_finished(from, probe.transfer, probe.timestamp_ns, by_control);
  if (EarlyTransfer* early = early_.find_or_insert(from, probe.transfer)) {
    early->probed = true;
    early->probe = probe;
  }
  Reply reply;
  // PROTOCOL 7.3.4: A receiver MUST answer a probe of a transfer that is not posted with NOT_POSTED, with its timestamp
  //     and round.
  reply.kind = ReplyKind::kNotPosted;
  reply.peer = from;
  reply.transfer = probe.transfer;
  reply.round = probe.prefix.round;
  reply.probe_timestamp_ns = probe.timestamp_ns;
  (by_control ? control_replies_ : replies_).push(reply);
}

void Receiver::on_abort(TimeNs now, std::uint16_t from, const wire::Abort& abort) {
  shared_.counters.add(Counter::k_aborts_received);
  if (ReceiveState* state = find(from, abort.transfer)) {
    // PROTOCOL 8.1.2: On ABORT a receive under way MUST end as cancelled.
    note_seen(*state);
    state->reply_by_control = true;
    return finish(now, *state, ReceiveEvent::k_abort, CompletionStatus::kCancelled, true);
  }
  // PROTOCOL 8.1.4: A receiver MUST ignore an ABORT of a transfer that is over, but for the answer of 8.1.6
  //     (stale_control).
  if (is_over(from, abort.transfer)) {
    shared_.counters.add(Counter::k_stale_control);
    // PROTOCOL 8.1.6: with STOP if the receive has ended, now or before.
    return reply_finished(from, abort.transfer, 0, true);
  }
  // PROTOCOL 8.1.3: A receiver remembers an ABORT of a transfer that is not posted yet, and forgets its early data: the
  //     receive ends as cancelled when it is posted.
  // Without space for the ABORT, the receive ends at its timeout once posted. Late segments would be buffered again, so
  // the sender must not receive a confirmation that its data is gone.
  if (!early_.abort(from, abort.transfer)) return;
  Reply reply;
  // PROTOCOL 8.1.6: A receiver MUST answer an ABORT over the control connection: with NOT_POSTED and a probe timestamp
  //     of zero if no receive is posted and the ABORT is remembered
  reply.kind = ReplyKind::kNotPosted;
  reply.peer = from;
  reply.transfer = abort.transfer;
  control_replies_.push(reply);
}

void Receiver::take_probe(TimeNs now, ReceiveState& state, const wire::Probe& probe, bool by_control) {
  if ((probe.prefix.flags & MLT_PROBE_FLAG_CRITICAL) != 0) {
    state.has_critical = true;
    state.critical_known = true;
    state.critical_total = probe.critical_segments;
  }
  if ((probe.prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) != 0) {
    if (!state.machine.on(ReceiveEvent::k_ack_probe, shared_.counters)) return;
    Reply reply;
    // PROTOCOL 7.4.2: A receiver MUST answer an ACK_ONLY probe with an ACK that carries POSTED and the probe's
    //     timestamp.
    reply.kind = ReplyKind::kAck;
    reply.peer = state.request.peer;
    reply.transfer = state.transfer();
    reply.probe_timestamp_ns = probe.timestamp_ns;
    (by_control ? control_replies_ : replies_).push(reply);
    return check_completion(now, state);
  }
  const bool older = state.names_older_packets({probe.last_sequence, probe.path_count});
  const bool newer = !older && state.is_newer_round(probe.prefix.round);
  // PROTOCOL 7.4.3: A receiver MUST ignore a PROBE of an earlier round than the newest known (stale_control).
  const ReceiveEvent again =
      !older && probe.prefix.round == state.round ? ReceiveEvent::k_probe_again : ReceiveEvent::k_old_probe;
  if (!state.machine.on(newer ? ReceiveEvent::k_new_probe : again, shared_.counters)) return;
  if (newer) state.begin_loss_detection(probe.prefix.round, now);
  state.path_count = probe.path_count;
  state.given_up_paths = probe.given_up_paths;
  std::copy_n(probe.last_sequence, probe.path_count, state.last_sequence.begin());
  state.probe_timestamp_ns = probe.timestamp_ns;
  state.reply_by_control = by_control;
  check_completion(now, state);
}

}  // namespace mlt::core
