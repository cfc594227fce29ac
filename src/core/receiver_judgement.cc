// When is what is missing known to be lost, or worth asking for, and is it within the bound? Paper section 4.2.3;
// DESIGN.md section 2.
#include <algorithm>

#include "core/receiver.h"

namespace mlt::core {

namespace {

// Longer than a full queue of most switches takes to drain, and than a sender waits before it sends a trailing probe.
// To ask for what was only late costs a repetition; so that a stall of seconds costs few of them, each further wait
// without anything new is twice as long.
constexpr DurationNs kSilenceNs = 20 * base::kMillisecond;
constexpr DurationNs kMaxSilenceNs = 640 * base::kMillisecond;

}  // namespace

bool Receiver::critical_complete(const ReceiveState& state) const {
  if (!state.has_critical) return true;
  // PROTOCOL 7.5.3: A transfer with critical segments MUST NOT complete within its bound before their number is known,
  //     from a probe, and all have arrived.
  return state.critical_known && state.critical_received >= state.critical_total;
}

bool Receiver::within_bound(const ReceiveState& state) const {
  // PROTOCOL 7.5.2: may be missing at completion, and not one more
  return state.missing_bytes() <= state.allowed_missing_bytes && critical_complete(state);
}

// Of a patient receive: what was dropped here was not lost by the network.
bool Receiver::may_end_within_bound(const ReceiveState& state) const {
  // PROTOCOL 7.5.10: A patient receive of which a segment may have been dropped for want of room, or because the
  //     connection was not up here yet, MUST NOT complete within bound before the end of a later round than the first
  //     ...
  return within_bound(state) && !(state.segment_dropped && state.round == 0);
}

// Of which named paths the newest packet of the transfer, or one that was sent after it there, has not arrived: bit per
// path.
std::uint32_t Receiver::unproven_paths(const ReceiveState& state) const {
  std::uint32_t paths = 0;
  for (std::uint8_t path = 0; path < state.path_count; ++path) {
    const std::uint32_t last = state.last_sequence[path];
    // PROTOCOL 7.4.6: What is missing is known lost when on every path named that packet, a later one of the transfer,
    //     or a trailing probe sent after it has arrived ...
    if (last != 0 && (state.newest[path] == 0 || is_after(last, state.newest[path]))) paths |= 1U << path;
  }
  return paths;
}

// From when on everything missing of the sender's round is known to be lost rather than on its way; kNever without
// evidence. Packets of one transfer and path stand in one queue: when the newest has arrived, or a trailing probe sent
// after it, only what this peer's network was seen to reorder can still come.
// PROTOCOL 7.4.7: It MUST NOT complete within its bound for that, however long the silence lasts ...
TimeNs Receiver::known_lost_ns(const ReceiveState& state) const {
  if (state.path_count == 0 || unproven_paths(state) != 0) return base::kNever;
  const DurationNs reorder = shared_.peers[state.request.peer].reorder_window_ns;
  // PROTOCOL 7.4.9: The reorder window runs from the later of the end of the round, the transfer's last packet, and the
  //     trailing probe that completed the evidence
  return base::after(std::max({state.last_data_ns, state.round_over_ns, state.proof_ns}), reorder);
}

// From when on what is missing is worth asking for: a wrong guess costs a repetition, and nothing else.
TimeNs Receiver::ask_ns(const ReceiveState& state) const {
  const TimeNs known_ns = known_lost_ns(state);
  if (known_ns != base::kNever) return known_ns;
  const TimeNs since = std::max(state.last_data_ns, state.round_over_ns);
  // PROTOCOL 7.4.7: where only paths given up are without evidence, once the reorder window has passed
  if (state.path_count > 0 && (unproven_paths(state) & ~std::uint32_t{state.given_up_paths}) == 0) {
    return base::after(since, shared_.peers[state.request.peer].reorder_window_ns);
  }
  // PROTOCOL 7.4.7: else after a silence of the transfer of 20 ms, and of twice as long each time, up to 640 ms ...
  return base::after(since, std::min(kSilenceNs << std::min(state.silent_rounds, 10U), kMaxSilenceNs));
}

void Receiver::judge(TimeNs now, ReceiveState& state) {
  // PROTOCOL 7.5.1: A receive whose segments have all arrived is complete at once ...
  // Of an empty tensor nothing can be missing, not even when its one packet was lost.
  if (state.missing_bytes() == 0) {
    return finish(now, state, ReceiveEvent::k_complete, CompletionStatus::kComplete, true);
  }
  // PROTOCOL 7.5.5: Eager: it completes the moment that 1 - p has arrived. The paper's rule ...
  if (state.request.stop == StopPolicy::kEager && state.allowed_missing_bytes > 0 && within_bound(state)) {
    return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
  }
  if (state.machine.phase() != ReceivePhase::k_judging) return;
  if (now < ask_ns(state)) return arm(state);
  // PROTOCOL 7.5.4: Patient (the default): the receive completes within bound once everything missing is known lost and
  //     the missing part is within the bound.
  if (now >= known_lost_ns(state)) {
    if (may_end_within_bound(state)) {
      return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
    }
  } else {
    state.asked_in_silence = true;
  }
  if (!state.machine.on(ReceiveEvent::k_answer, shared_.counters)) return;
  // PROTOCOL 7.5.7: If only the number of critical segments is missing for a judgement, the receiver waits for the
  //     probe that follows.
  // A marker tells that there are critical segments but not how many; the probe that follows it does.
  const bool await_probe =
      state.missing_bytes() <= state.allowed_missing_bytes && state.has_critical && !state.critical_known;
  if (await_probe) return arm(state);
  Reply reply;
  // PROTOCOL 7.5.6: If it can't complete, the receiver MUST answer the round with a BITMAP, once (but see 7.4.4) ...
  reply.kind = ReplyKind::kBitmap;
  reply.peer = state.request.peer;
  reply.transfer = state.transfer();
  reply.round = state.round;
  // PROTOCOL 7.6.2: The probe timestamp MUST be echoed only in an answer that was not held back ...
  reply.probe_timestamp_ns = now == state.round_over_ns ? state.probe_timestamp_ns : 0;
  // If the queue is full the answer is lost like any datagram, and the sender's next probe asks again.
  (state.answer_by_control ? control_replies_ : replies_).push(reply);
  arm(state);
}

void Receiver::on_receive_timer(TimeNs now, std::uint32_t slot) {
  ReceiveState& state = states_[slot];
  // PROTOCOL 7.5.8: A deadline, if the receive has one, completes it with what it has, even if critical segments are
  //     missing; a timeout fails it.
  if (now >= state.deadline_ns) {
    return finish(now, state, ReceiveEvent::k_deadline, CompletionStatus::kDeadline, true);
  }
  if (now >= state.expires_ns) return finish(now, state, ReceiveEvent::k_expiry, CompletionStatus::kTimedOut, true);
  if (!state.machine.on(ReceiveEvent::k_grace_timer, shared_.counters)) return;
  judge(now, state);
}

void Receiver::arm(ReceiveState& state) {
  TimeNs at = std::min(state.expires_ns, state.deadline_ns);
  if (state.machine.phase() == ReceivePhase::k_judging) at = std::min(at, ask_ns(state));
  shared_.timers.set(shared_.receive_timer(slot_of(state)), at);
}

}  // namespace mlt::core
