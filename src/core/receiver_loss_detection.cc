// Loss detection: when missing segments are declared lost or requested again, and whether the loss is within the bound.
// Paper section 4.2.3; section 7.5 of PROTOCOL.md.
#include <algorithm>

#include "core/receiver.h"

namespace mlt::core {

namespace {

// Longer than a full queue of most switches takes to drain, and longer than a sender waits before a trailing probe. A
// request for segments that are only late costs a retransmission. Each further wait without arrivals is twice as long,
// so that a stall of seconds causes few of them.
constexpr DurationNs kSilenceNs = 20 * base::kMillisecond;
constexpr DurationNs kMaxSilenceNs = 640 * base::kMillisecond;
// A lossy path often loses all of a few packets, and resending these costs little. If none of many packets arrived, a
// stall is more likely.
constexpr DurationNs kFewSilenceNs = 160 * base::kMillisecond;

}  // namespace

bool Receiver::critical_complete(const ReceiveState& state) const {
  if (!state.has_critical) return true;
  // PROTOCOL 7.5.3: A transfer with critical segments MUST NOT complete within its bound before their number is known,
  //     from a probe, and all have arrived.
  return state.critical_known && state.critical_received >= state.critical_total;
}

bool Receiver::within_bound(const ReceiveState& state) const {
  // PROTOCOL 7.5.2: A receiver MUST count the bound in elements: the largest k whose fraction k / elements, in double
  //     precision, is not above p may be missing at completion, and not one more.
  return state.missing_bytes() <= state.allowed_missing_bytes && critical_complete(state);
}

// For a patient receive: segments that this endpoint dropped do not count as network loss.
bool Receiver::may_end_within_bound(const ReceiveState& state) const {
  // PROTOCOL 7.5.10: A patient receive of which a segment may have been dropped for want of room, or because the
  //     connection was not up here yet, MUST NOT complete within bound before the end of a later round than the first:
  //     the network lost nothing.
  return within_bound(state) && !(state.segment_dropped && state.round == 0);
}

// Paths named by the probe on which neither the newest packet of the transfer nor one sent after it has arrived. One
// bit per path.
std::uint32_t Receiver::unproven_paths(const ReceiveState& state) const {
  std::uint32_t paths = 0;
  for (std::uint8_t path = 0; path < state.path_count; ++path) {
    const std::uint32_t last = state.last_sequence[path];
    // PROTOCOL 7.4.6: A receiver takes what is missing as known lost when on every path named that packet, a later one
    //     of the transfer, or a trailing probe sent after it has arrived, and the peer's reorder window has passed
    //     since.
    if (last != 0 && (state.newest[path] == 0 || is_after(last, state.newest[path]))) paths |= 1U << path;
  }
  return paths;
}

// Time from which all missing segments of the sender's round are known to be lost; kNever without evidence. Packets of
// one transfer and path share a queue. Once the newest or a later trailing probe has arrived, others can arrive only
// within the reordering observed from this peer.
// PROTOCOL 7.4.7: It MUST NOT complete within its bound for that, however long the silence lasts: a path may be slow, a
//     link paused, and more urgent data, to any host, may keep a switch from serving the rest.
TimeNs Receiver::known_lost_ns(const ReceiveState& state) const {
  if (state.path_count == 0 || unproven_paths(state) != 0) return base::kNever;
  const DurationNs reorder = shared_.peers[state.request.peer].reorder_window_ns;
  // PROTOCOL 7.4.9: The reorder window MUST run from the later of the end of the round, the transfer's last packet, and
  //     the trailing probe that completed the evidence.
  return base::after(std::max({state.last_data_ns, state.round_over_ns, state.proof_ns}), reorder);
}

// Time to request the missing segments: a wrong guess costs only a retransmission.
TimeNs Receiver::request_ns(const ReceiveState& state) const {
  const TimeNs known_ns = known_lost_ns(state);
  if (known_ns != base::kNever) return known_ns;
  const TimeNs since = std::max(state.last_data_ns, state.round_over_ns);
  // PROTOCOL 7.4.7: Where only paths given up are without evidence, it asks once the reorder window has passed.
  if (state.path_count > 0 && (unproven_paths(state) & ~std::uint32_t{state.given_up_paths}) == 0) {
    return base::after(since, shared_.peers[state.request.peer].reorder_window_ns);
  }
  // PROTOCOL 7.4.7: Else it asks after a silence of the transfer of 20 ms, and of twice as long in every further round
  //     that brings no segment, up to 20 ms for each segment that is missing, but 160 ms at least and 640 ms at most.
  const std::uint32_t missing = state.grid.count() - state.received_segments;
  const DurationNs longest = std::clamp(kSilenceNs * missing, kFewSilenceNs, kMaxSilenceNs);
  return base::after(since, std::min(kSilenceNs << std::min(state.silent_rounds, 10U), longest));
}

void Receiver::check_completion(TimeNs now, ReceiveState& state) {
  // PROTOCOL 7.5.1: A receive whose segments have all arrived MUST complete at once; of an empty tensor nothing can be
  //     missing.
  // An empty tensor has no missing bytes, even if its one packet was lost.
  if (state.missing_bytes() == 0) {
    return finish(now, state, ReceiveEvent::k_complete, CompletionStatus::kComplete, true);
  }
  // PROTOCOL 7.5.5: With the policy eager a receive MUST complete the moment that 1 - p has arrived.
  if (state.request.stop == StopPolicy::kEager && state.allowed_missing_bytes > 0 && within_bound(state)) {
    return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
  }
  if (state.machine.phase() != ReceivePhase::k_detecting) return;
  if (now < request_ns(state)) return arm(state);
  // PROTOCOL 7.5.4: With the policy patient (the default) a receive MUST complete within bound once everything missing
  //     is known lost and the missing part is within the bound.
  if (now >= known_lost_ns(state)) {
    if (may_end_within_bound(state)) {
      return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
    }
  } else {
    state.requested_in_silence = true;
  }
  if (!state.machine.on(ReceiveEvent::k_reply, shared_.counters)) return;
  // PROTOCOL 7.5.7: If a judgement lacks only the number of critical segments, the receiver MUST wait for the probe
  //     that follows.
  // END_OF_ROUND states that critical segments exist, but not how many; the probe that follows does.
  const bool await_probe =
      state.missing_bytes() <= state.allowed_missing_bytes && state.has_critical && !state.critical_known;
  if (await_probe) return arm(state);
  Reply reply;
  // PROTOCOL 7.5.6: If it can't complete, the receiver MUST answer the round with a BITMAP, once (but see 7.4.4), when
  //     what is missing is known lost or 7.4.7 says so.
  reply.kind = ReplyKind::kBitmap;
  reply.peer = state.request.peer;
  reply.transfer = state.transfer();
  reply.round = state.round;
  // PROTOCOL 7.6.2: A receiver MUST echo the probe timestamp only in an answer that was not held back; in a BITMAP of
  //     several chunks in the first only.
  reply.probe_timestamp_ns = now == state.round_over_ns ? state.probe_timestamp_ns : 0;
  // If the queue is full the reply is dropped, and the sender probes again.
  (state.reply_by_control ? control_replies_ : replies_).push(reply);
  arm(state);
}

void Receiver::on_receive_timer(TimeNs now, std::uint32_t slot) {
  ReceiveState& state = states_[slot];
  // PROTOCOL 7.5.8: A deadline, if the receive has one, MUST complete it with what it has, even if critical segments
  //     are missing; a timeout MUST fail it.
  if (now >= state.deadline_ns) {
    return finish(now, state, ReceiveEvent::k_deadline, CompletionStatus::kDeadline, true);
  }
  if (now >= state.expires_ns) return finish(now, state, ReceiveEvent::k_expiry, CompletionStatus::kTimedOut, true);
  if (!state.machine.on(ReceiveEvent::k_grace_timer, shared_.counters)) return;
  check_completion(now, state);
}

void Receiver::arm(ReceiveState& state) {
  TimeNs at = std::min(state.expires_ns, state.deadline_ns);
  if (state.machine.phase() == ReceivePhase::k_detecting) at = std::min(at, request_ns(state));
  shared_.timers.set(shared_.receive_timer(slot_of(state)), at);
}

}  // namespace mlt::core
