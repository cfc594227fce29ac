// What the receiver says: ACK, BITMAP, STOP. Paper sections 4.2.1 and 4.2.3.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/sender.h"

namespace mlt::core {

namespace {

// Longer than a host with something to do keeps an answer.
constexpr DurationNs kLongestHoldNs = base::kMillisecond;
// Packets: the loss of fewer says little about the rate.
constexpr std::uint32_t kLeastJudgedRound = 64;

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
    // PROTOCOL 6.9.3: because no success may be claimed that nobody remembers
    case wire::StopStatus::kFinishedBefore:  // it may have failed or lost something: no success is claimed
      return CompletionStatus::kCancelled;
  }
  return CompletionStatus::kCancelled;
}

bool is_received(const wire::BitmapMessage& bitmap, std::uint32_t i) {
  return ((std::to_integer<std::uint32_t>(bitmap.bits[i / 8]) >> (i % 8)) & 1U) != 0;
}

bool asks_for_any(const wire::BitmapMessage& bitmap) {
  for (std::uint32_t i = 0; i < bitmap.segment_count; ++i) {
    if (!is_received(bitmap, i)) return true;
  }
  return false;
}

SendEvent bitmap_event(std::uint8_t round, std::uint8_t current) {
  if (round == current) return SendEvent::k_bitmap;
  return round == static_cast<std::uint8_t>(current - 1) ? SendEvent::k_late_bitmap : SendEvent::k_other_bitmap;
}

}  // namespace

void Sender::take_block(TimeNs now, TimeNs arrival_ns, Peer& peer, std::uint8_t path, const wire::AckBlock& block,
                        bool fresh, Report& report) {
  TimeNs sent_ns = base::kNever;
  if (fresh) {
    const std::uint32_t age = static_cast<std::uint32_t>(now) - block.echo_timestamp_ns;
    // How long the network took, from arrival stamps, for the rate. A host that is slow to look is no congestion; the
    // window bounds it.
    const std::uint32_t network = static_cast<std::uint32_t>(arrival_ns) - block.echo_timestamp_ns - block.hold_ns;
    // PROTOCOL 6.8.2: A sample of 2^31 ns or more is a stale echo or a clock that jumped, and MUST be ignored.
    if (age < 0x8000'0000U && network < 0x8000'0000U &&
        block.hold_ns < 0x8000'0000U) {  // else a stale echo, or a clock that jumped
      const DurationNs rtt_ns = std::max<DurationNs>(1, network);
      sent_ns = now - age;
      // PROTOCOL 6.8.1: With ECHO, the sender takes two samples ...
      // How long an answer takes, both hosts' threads included, for the timers. The other blocks of an ACK were held.
      // PROTOCOL 6.8.2: An echo that was held for more than 1 ms is old news, and gives neither
      // Where packets keep coming it is not: the newest is echoed.
      if (block.hold_ns <= kLongestHoldNs) {
        if (report.first) peer.rtt.on_sample(age);
        const DurationNs rate_sample_ns = peer.spray.on_sample(path, report.answer_path, rtt_ns);
        if (report.rate_sample_ns == 0) report.rate_sample_ns = rate_sample_ns;
      }
    }
  }
  report.first = false;
  if (peer.spray.on_block(path, block, sent_ns)) report.progress = true;
}

void Sender::take_report(TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::uint32_t probe_timestamp_ns,
                         Report report) {
  Peer& peer = shared_.peers[from];
  const std::uint64_t delivered_bytes =
      peer.spray.take_delivered_packets() * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
  peer.rate->on_delivered(arrival_ns, delivered_bytes);
  // PROTOCOL 23.3.2: The rate to such a peer is not controlled: a round trip tells how busy the processes are, not a
  //     network ...
  if (report.rate_sample_ns > 0 && !peer.holds_back) peer.rate->on_rtt_sample(now, report.rate_sample_ns);
  if (probe_timestamp_ns != 0) {
    const std::uint32_t rtt = static_cast<std::uint32_t>(now) - probe_timestamp_ns;
    // PROTOCOL 6.8.3: The probe timestamp of an answer, if it is not zero, gives a sample of the answer time.
    if (rtt < 0x8000'0000U && rtt > 0) {
      peer.rtt.on_sample(rtt);
      peer.spray.on_question_answered(report.answer_path, rtt);
    }
    const std::uint32_t network = static_cast<std::uint32_t>(arrival_ns) - probe_timestamp_ns;
    if (network < 0x8000'0000U && network > 0) peer.rate->on_base_sample(now, network);
    if (peer.stall_probe_ns != base::kNever && rtt <= static_cast<std::uint64_t>(now - peer.stall_probe_ns)) {
      // PROTOCOL 6.3.6: An answer to a probe that was sent after the window had stalled proves that everything sent
      //     before is resolved: nothing is in flight any more.
      // The window was full for a whole timeout, nothing was sent since, and the peer answers a question asked after
      // that: what it has not seen by now is lost.
      peer.spray.give_up_all();
      report.progress = true;
    }
  }
  if (peer.spray.after_report(now)) report.progress = true;
  for (std::uint32_t lossy = peer.spray.take_lossy_paths(); lossy != 0; lossy &= lossy - 1) {
    peer.mtu[static_cast<std::size_t>(std::countr_zero(lossy))].on_loss();
  }
  const PathSpray::Changes changes = peer.spray.take_changes();
  shared_.counters.add(Counter::k_paths_gone_silent, changes.went_silent);
  shared_.counters.add(Counter::k_paths_heard_again, changes.heard_again);
  if (!report.progress) return;
  peer.stall_repeats = 0;
  peer.stall_probe_ns = base::kNever;
  if (peer.window_blocked) {
    peer.window_blocked = false;
    shared_.timers.cancel(shared_.peer_timer(from));
  }
}

void Sender::on_alive(SendState& state) {
  // PROTOCOL 6.5.5: Any answer about the transfer counts as one: the next wait is a single timeout again.
  state.unanswered_probes = 0;
  state.question_out = false;
}

void Sender::on_answer(SendState& state) {
  state.probes_since_answer = 0;
  // PROTOCOL 6.5.7: A probe that has not left when an answer comes MUST NOT leave over TCP ...
  // A question that is not out yet may be the wrong one by now: a round that goes on must not be asked for its end.
  backstops_due_.clear(slot_of(state));
}

// What was sent blindly is no longer in the peer's early buffer.
void Sender::forget_blind(SendState& state) {
  Peer& peer = shared_.peers[state.request.peer];
  if (state.receiver_ready || state.blind_segments == 0) return;
  // PROTOCOL 6.4.4: What was sent blindly no longer counts when the receive is known to be posted, STOP has come, or
  //     ABORT was answered (8.1.6) ...
  peer.blind_segments -= state.blind_segments;
  --peer.blind_transfers;
  state.blind_segments = 0;
  wake_blind(peer);
}

void Sender::mark_ready(SendState& state) {
  if (state.receiver_ready || !state.machine.on(SendEvent::k_ready, shared_.counters)) return;
  note_posted(state.request.peer, state.transfer());
  stop_waiting_blind(state);
  forget_blind(state);
  state.not_posted_answers = 0;  // from now on trailing probes prove something
  state.receiver_ready = true;
  if (state.machine.phase() == SendPhase::k_sending) {
    state.probe_ns = base::kNever;  // it asked because it might not be posted
    state.probe_due = false;
    probes_due_.clear(slot_of(state));
    link_work(state);
    arm(state);
  }
}

void Sender::on_ack(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Ack& ack) {
  shared_.counters.add(Counter::k_acks_received);
  Peer& peer = shared_.peers[from];
  Report report{.answer_path = ack.prefix.sequence};
  take_block(now, arrival_ns, peer, ack.prefix.path, ack.block, (ack.prefix.flags & MLT_ACK_FLAG_ECHO) != 0, report);
  for (std::uint8_t i = 0; i < ack.other_count; ++i) {
    const wire::PathBlock& other = ack.others[i];
    take_block(now, arrival_ns, peer, other.path, other.block, other.fresh, report);
  }
  take_report(now, arrival_ns, from, ack.probe_timestamp_ns, report);
  SendState* state = find(from, ack.transfer);
  // ACKs are per peer: the transfer that made this one due may be over.
  if (state == nullptr || state->is_given_up()) return;
  on_alive(*state);
  // PROTOCOL 9.1.1: An ACK without a probe timestamp is no answer here once the first of these probes is 50 ms old ...
  const bool posted = (ack.prefix.flags & MLT_ACK_FLAG_POSTED) != 0;
  if (ack.probe_timestamp_ns != 0 || (posted && !state->receiver_ready)) on_answer(*state);
  // PROTOCOL 6.4.3: The receive is known to be posted by POSTED in an ACK, or by a BITMAP without NOT_POSTED.
  if (posted) mark_ready(*state);
}

void Sender::on_bitmap(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::BitmapMessage& bitmap) {
  shared_.counters.add(Counter::k_bitmaps_received);
  Report report{.answer_path = bitmap.prefix.sequence};
  take_block(now, arrival_ns, shared_.peers[from], bitmap.prefix.path, bitmap.block,
             (bitmap.prefix.flags & MLT_BITMAP_FLAG_ECHO) != 0, report);
  take_report(now, arrival_ns, from, bitmap.probe_timestamp_ns, report);
  SendState* found = find(from, bitmap.transfer);
  // PROTOCOL 6.7.1: A BITMAP of a transfer that is not under way MUST be ignored (stale_control).
  if (found == nullptr) return shared_.counters.add(Counter::k_stale_control);
  SendState& state = *found;
  const bool not_posted = (bitmap.prefix.flags & MLT_BITMAP_FLAG_NOT_POSTED) != 0;
  if (state.is_given_up()) {
    // An answer to a probe, which carries the probe's timestamp, was said before ABORT had come.
    if (not_posted && bitmap.probe_timestamp_ns == 0) return settle(state, SendEvent::k_released);
    (void)state.machine.on(not_posted ? SendEvent::k_not_posted : SendEvent::k_other_bitmap, shared_.counters);
    return;
  }
  on_alive(state);
  on_answer(state);
  if (not_posted) {
    // PROTOCOL 6.6.2: A NOT_POSTED that comes once the receive is known to be posted was overtaken by the news, and
    // MUST
    //     be ignored (stale_control).
    if (state.receiver_ready) return shared_.counters.add(Counter::k_stale_control);
    if (!state.machine.on(SendEvent::k_not_posted, shared_.counters)) return;
    // PROTOCOL 6.6.1: On NOT_POSTED a sender waits for READY, and asks again after a retransmission timeout that
    //     doubles with every such answer: the word that the receive is posted may be lost.
    // It will speak up when it is posted; until then ask ever more slowly, in case that word is lost.
    state.probe_ns = base::after(now, repeat_after(state, ++state.not_posted_answers));
    return arm(state);
  }
  mark_ready(state);
  if (bitmap.segment_count == 0) return;
  // PROTOCOL 6.7.4: A BITMAP that reaches beyond the tensor's segments MUST be refused (drop_bad_segment).
  if (bitmap.first_segment >= state.grid.count() || bitmap.segment_count > state.grid.count() - bitmap.first_segment) {
    return shared_.counters.add(Counter::k_drop_bad_segment);
  }
  if (!asks_for_any(bitmap)) return shared_.counters.add(Counter::k_stale_control);
  // PROTOCOL 6.7.2: A BITMAP with bits counts in two cases only ...
  const SendEvent event = bitmap_event(bitmap.prefix.round, state.round);
  if (!state.machine.on(event, shared_.counters)) return;
  if (event == SendEvent::k_bitmap) {
    base::BitmapView(state.merged_chunks.data(), kMaxBitmapChunks).clear_all();
    ++state.round;
    state.sent_in_previous = std::exchange(state.sent_in_round, 0);
    state.asked_again = 0;
    state.probe_ns = base::kNever;
    state.probe_due = false;
    probes_due_.clear(slot_of(state));
  }
  merge(state, bitmap);
  arm(state);
}

// What one chunk asks for is to be sent (again) in the round that goes on.
void Sender::merge(SendState& state, const wire::BitmapMessage& bitmap) {
  const std::uint32_t chunk = bitmap.first_segment / MLT_BITMAP_CHUNK_SEGMENTS;
  base::BitmapView merged(state.merged_chunks.data(), kMaxBitmapChunks);
  // PROTOCOL 6.7.5: A chunk of the bitmap MUST be taken once per round ...
  if (merged.test(chunk)) return shared_.counters.add(Counter::k_stale_control);  // the answer to a repeated probe
  std::uint32_t added = 0;
  for (std::uint32_t i = 0; i < bitmap.segment_count; ++i) {
    if (is_received(bitmap, i) || state.pending.test(bitmap.first_segment + i)) continue;
    // PROTOCOL 6.7.3: Every segment whose bit is clear becomes pending and is sent again.
    state.pending.set(bitmap.first_segment + i);
    ++added;
  }
  merged.set(chunk);
  state.pending_count += added;
  slow_down_if_lost(state, added);
  state.restart_passes();
  link_work(state);
}

// Where a port or a slow host holds less than a round, what is beyond is dropped, and few packets are left to be
// sampled.
void Sender::slow_down_if_lost(SendState& state, std::uint32_t added) {
  // PROTOCOL 11.2.13: When a BITMAP asks again for more than half of a round of 64 packets or more, the rate is halved,
  //     once per round ...
  state.asked_again += added;
  if (state.sent_in_previous < kLeastJudgedRound || 2 * std::uint64_t{state.asked_again} <= state.sent_in_previous)
    return;
  state.sent_in_previous = 0;
  Peer& peer = shared_.peers[state.request.peer];
  if (peer.holds_back) return;
  peer.rate->on_round_lost();
  shared_.counters.add(Counter::k_rounds_lost);
}

void Sender::on_stop(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Stop& stop) {
  shared_.counters.add(Counter::k_stops_received);
  Report report{.answer_path = stop.prefix.sequence};
  take_block(now, arrival_ns, shared_.peers[from], stop.prefix.path, stop.block,
             (stop.prefix.flags & MLT_STOP_FLAG_ECHO) != 0, report);
  take_report(now, arrival_ns, from, stop.probe_timestamp_ns, report);
  SendState* state = find(from, stop.transfer);
  // PROTOCOL 6.9.2: A STOP of a transfer that is not under way MUST be ignored (stale_control), but for its
  //     acknowledgement block.
  if ((stop.prefix.flags & MLT_STOP_FLAG_UNSEEN) == 0) note_posted(from, stop.transfer);
  if (state == nullptr) return shared_.counters.add(Counter::k_stale_control);
  const bool unseen = (stop.prefix.flags & MLT_STOP_FLAG_UNSEEN) != 0;
  if (state->is_given_up()) {
    forget_blind(*state);
    // ABORT is still on its way to a receiver that says so.
    if (unseen) return (void)state->machine.on(SendEvent::k_stop_unseen, shared_.counters);
    return settle(*state, SendEvent::k_released, true);
  }
  CompletionStatus status = completion_status(stop.status);
  // PROTOCOL 6.9.5: A STOP that claims success for another size than the tensor's MUST be refused (drop_mismatch) ...
  if (!is_failure(status) && stop.receiver_total_bytes != state->grid.total_bytes()) {
    // No receiver of ours takes a tensor of another size for its own; but its deadline may pass before it hears of one.
    if (status != CompletionStatus::kDeadline) return shared_.counters.add(Counter::k_drop_mismatch);
    status = CompletionStatus::kSizeMismatch;
  }
  state->missing_bytes = stop.missing_bytes;
  state->remote_total_bytes = stop.receiver_total_bytes;
  state->remote_element = stop.prefix.element;
  // PROTOCOL 6.9.1: On STOP the sender MUST send nothing more of the transfer and completes as 6.9.3 says.
  // PROTOCOL 6.9.6: On STOP with UNSEEN the send ends as 6.9.3 says, and the sender MUST send ABORT as well ...
  if (unseen) {
    forget_blind(*state);
    return give_up(now, *state, SendEvent::k_stop_unseen, status);
  }
  finish(now, *state, SendEvent::k_stop, status);
}

}  // namespace mlt::core
