// The probe of one transfer and the window of one peer: phase, repetitions, backoff. The phases are those of
// probe_table.h; sections 6.3, 6.5 and 9.1 of PROTOCOL.md say when to probe.
//
// Absent on purpose: timers (Sender) and the queue of what leaves (ProbeSender). Owned by a send or a peer,
// used by one thread.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"
#include "base/time.h"
#include "core/rtt_estimator.h"
#include "core/state_machine.h"

namespace mlt::core {

// After this many unanswered probes, further ones go over TCP too: datagrams, or one class of them, may never arrive.
inline constexpr std::uint32_t kFallbackAfterProbes = 6;

class ProbeState {
 public:
  ProbePhase phase() const { return machine_.phase(); }
  bool is_due() const { return phase() == ProbePhase::k_due || phase() == ProbePhase::k_due_again; }
  // Whether the probe is ACK_ONLY: it does not end the round.
  bool is_ack_only() const { return ack_only_; }

  void schedule(bool ack_only, Counters& counters) {
    MLT_CHECK(machine_.on(ProbeEvent::k_schedule, counters));
    ack_only_ = ack_only;
    trailing_paths_ = 0;
  }
  // Schedules trailing probes: one behind the data of each of these paths (bit mask). They leave before a probe that is
  // due.
  void schedule_trailing(std::uint32_t paths) { trailing_paths_ = paths; }
  bool has_trailing() const { return trailing_paths_ != 0; }
  std::uint8_t take_trailing_path() {
    const int path = std::countr_zero(trailing_paths_);
    trailing_paths_ &= trailing_paths_ - 1;
    return static_cast<std::uint8_t>(path);
  }
  // The probe leaves as a datagram. True if it repeats an unanswered one.
  bool send(Counters& counters) {
    const bool repeats = phase() == ProbePhase::k_due_again;
    MLT_CHECK(machine_.on(ProbeEvent::k_sent, counters));
    return repeats;
  }
  void cancel(Counters& counters) {
    MLT_CHECK(machine_.on(ProbeEvent::k_cancel, counters));
    trailing_paths_ = 0;
  }

  // The reply timer expired and scheduled a probe. True if the probe must go over TCP too.
  bool count_unanswered(base::TimeNs now, Counters& counters) {
    ++unanswered_;
    // PROTOCOL 9.1.1: A sender of whose transfer six probes in a row had no reply MUST send each further one over the
    //     control connection too, as a fallback frame with the datagram's bytes.
    if (since_reply_++ == 0) first_unanswered_ns_ = now;
    const bool no_reply =
        since_reply_ > kFallbackAfterProbes && now - first_unanswered_ns_ >= RttEstimator::kMaxTimeoutNs;
    // Changes the path of the probe, even if other packets of the transfer arrive.
    if (no_reply) MLT_CHECK(machine_.on(ProbeEvent::k_unanswered, counters));
    return no_reply || unanswered_ > kFallbackAfterProbes;
  }
  // Probes since the last packet about the transfer; each doubles the next wait.
  std::uint32_t unanswered() const { return unanswered_; }

  // Any packet about the transfer arrived.
  void on_packet(Counters& counters) {
    // PROTOCOL 6.5.5: After any reply about the transfer, the next wait MUST be a single timeout again.
    unanswered_ = 0;
    MLT_CHECK(machine_.on(ProbeEvent::k_received, counters));
  }
  // A reply to a probe arrived. An ACK of other packets does not count.
  void on_reply() { since_reply_ = 0; }

  // The receiver reported NOT_POSTED. Returns how often in a row, including this time.
  std::uint32_t count_not_posted() { return ++not_posted_; }
  bool is_not_posted() const { return not_posted_ > 0; }
  void set_posted() { not_posted_ = 0; }

 private:
  StateMachine<ProbePhase, ProbeEvent, kProbeTable, Counter::k_wrong_state_probe_schedule> machine_;
  bool ack_only_ = false;
  std::uint32_t trailing_paths_ = 0;
  std::uint32_t unanswered_ = 0;
  std::uint32_t since_reply_ = 0;
  base::TimeNs first_unanswered_ns_ = base::kNever;  // of the probes since the last reply
  std::uint32_t not_posted_ = 0;
};

class Window {
 public:
  WindowPhase phase() const { return machine_.phase(); }
  bool is_open() const { return phase() == WindowPhase::k_open; }

  // True if the window was open.
  bool on_no_space(Counters& counters) {
    if (!is_open()) return false;
    MLT_CHECK(machine_.on(WindowEvent::k_no_space, counters));
    return true;
  }
  // The window stayed full for a retransmission timeout. Returns how often in a row, including this time.
  std::uint32_t on_timeout(Counters& counters) {
    MLT_CHECK(machine_.on(WindowEvent::k_timer, counters));
    return ++timeouts_;
  }
  // An ACK_ONLY probe leaves for the peer.
  void on_probe_sent(base::TimeNs now, Counters& counters) {
    if (phase() == WindowPhase::k_stalled) probed_ns_ = now;
    MLT_CHECK(machine_.on(WindowEvent::k_probe_sent, counters));
  }
  // Whether this reply is to a probe sent after the stall, with no data sent since.
  bool is_resolved_by(base::TimeNs now, std::uint32_t reply_time_ns) const {
    return phase() == WindowPhase::k_probed && reply_time_ns <= static_cast<std::uint64_t>(now - probed_ns_);
  }
  // True if the window was not open, that is, a send waited for it.
  bool on_progress(Counters& counters) {
    const bool was_open = is_open();
    reopen(WindowEvent::k_progress, counters);
    return !was_open;
  }
  void on_unwanted(Counters& counters) { reopen(WindowEvent::k_unwanted, counters); }

 private:
  void reopen(WindowEvent event, Counters& counters) {
    MLT_CHECK(machine_.on(event, counters));
    timeouts_ = 0;
  }

  StateMachine<WindowPhase, WindowEvent, kWindowTable, Counter::k_wrong_state_window_no_space> machine_;
  std::uint32_t timeouts_ = 0;
  base::TimeNs probed_ns_ = base::kNever;
};

}  // namespace mlt::core
