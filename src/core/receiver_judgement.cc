// When is what is missing known to be lost, and is it within the bound? Paper section 4.2.3; DESIGN.md section 2.
#include <algorithm>

#include "core/receiver.h"

namespace mlt::core {

namespace {

// Longer than a full queue of any switch takes to drain, and than a sender waits before it sends a trailing probe.
constexpr DurationNs kSilenceNs = 20 * base::kMillisecond;

}  // namespace

bool Receiver::critical_complete(const ReceiveState& state) const {
  if (!state.has_critical) return true;
  return state.critical_known && state.critical_received >= state.critical_total;
}

bool Receiver::within_bound(const ReceiveState& state) const {
  return state.missing_bytes() <= state.allowed_missing_bytes && critical_complete(state);
}

// From when on everything missing of the sender's round is known to be lost rather than on its way. Packets of one
// transfer and path stand in one queue: when the newest has arrived, or a trailing probe sent after it, only what this
// peer's network was seen to reorder can still come. (A transfer whose segments have several classes may overtake
// itself; that is learnt as reordering.) Without that evidence: after a silence that no sender leaves, because it sends
// trailing probes.
TimeNs Receiver::known_lost_ns(const ReceiveState& state) const {
  bool passed = state.path_count > 0;
  for (std::uint8_t path = 0; path < state.path_count; ++path) {
    const std::uint32_t last = state.last_sequence[path];
    passed = passed && (last == 0 || (state.newest[path] != 0 && !is_after(last, state.newest[path])));
  }
  const DurationNs wait = passed ? shared_.peers[state.request.peer].reorder_window_ns : kSilenceNs;
  return base::after(std::max(state.last_data_ns, state.round_over_ns), wait);
}

void Receiver::judge(TimeNs now, ReceiveState& state) {
  // Of an empty tensor nothing can be missing, not even when its one packet was lost.
  if (state.missing_bytes() == 0) {
    return finish(now, state, ReceiveEvent::k_complete, CompletionStatus::kComplete, true);
  }
  if (state.request.stop == StopPolicy::kEager && state.allowed_missing_bytes > 0 && within_bound(state)) {
    return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
  }
  if (state.machine.phase() != ReceivePhase::k_judging) return;
  if (now < known_lost_ns(state)) return arm(state);
  if (within_bound(state)) {
    return finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
  }
  if (!state.machine.on(ReceiveEvent::k_answer, shared_.counters)) return;
  // A marker tells that there are critical segments but not how many; the probe that follows it does.
  const bool await_probe =
      state.missing_bytes() <= state.allowed_missing_bytes && state.has_critical && !state.critical_known;
  if (await_probe) return arm(state);
  Reply reply;
  reply.kind = ReplyKind::kBitmap;
  reply.peer = state.request.peer;
  reply.transfer = state.transfer();
  reply.round = state.round;
  reply.probe_timestamp_ns = now == state.round_over_ns ? state.probe_timestamp_ns : 0;
  // If the queue is full the answer is lost like any datagram, and the sender's next probe asks again.
  (state.answer_by_control ? control_replies_ : replies_).push(reply);
  arm(state);
}

void Receiver::on_receive_timer(TimeNs now, std::uint32_t slot) {
  ReceiveState& state = states_[slot];
  if (now >= state.deadline_ns) {
    return finish(now, state, ReceiveEvent::k_deadline, CompletionStatus::kDeadline, true);
  }
  if (now >= state.expires_ns) return finish(now, state, ReceiveEvent::k_expiry, CompletionStatus::kTimedOut, true);
  if (!state.machine.on(ReceiveEvent::k_grace_timer, shared_.counters)) return;
  judge(now, state);
}

void Receiver::arm(ReceiveState& state) {
  TimeNs at = std::min(state.expires_ns, state.deadline_ns);
  if (state.machine.phase() == ReceivePhase::k_judging) at = std::min(at, known_lost_ns(state));
  shared_.timers.set(shared_.receive_timer(slot_of(state)), at);
}

}  // namespace mlt::core
