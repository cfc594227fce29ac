// Whether one peer is alive, from what its control connection carried: when to send it a heartbeat, when to ask it for
// one, and when to take it as silent. Section 3.6 of PROTOCOL.md.
//
// A rank exchanges heartbeats with its neighbours only, so that an idle rank costs the same however large the job is.
// It asks any other peer when an operation, or a message that was not followed by one of the peer's, makes its silence
// matter. A peer whose host acknowledges what is sent to it, while its process is silent, is stopped (SIGSTOP, a
// debugger): it has longer. So has one whose datagrams arrive: its TCP waits to repeat what was lost. Absent on
// purpose: sockets and frames (ControlChannel). Times of one thread's clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::io {

struct LivenessLimits {
  base::DurationNs heartbeat_ns = 0;
  base::DurationNs dead_after_ns = 0;
  base::DurationNs grace_ns = 0;            // after the connection came up
  base::DurationNs suspended_after_ns = 0;  // silence of a peer whose host acknowledges what is sent to it
};

class Liveness {
 public:
  void on_up(base::TimeNs now) { up_since_ = last_heard_ = spoke_at_ = watched_since_ = now; }
  // Something arrived, whatever it was.
  void on_heard(base::TimeNs now) {
    last_heard_ = now;
    suspected_ = false;
    suspended_until_ = 0;
  }
  void on_message_sent(base::TimeNs now) { spoke_at_ = message_at_ = now; }
  void on_spoken(base::TimeNs now) { spoke_at_ = now; }
  void on_asked(base::TimeNs now) { spoke_at_ = asked_at_ = now; }

  // PROTOCOL 3.6.7: A side that receives the report MUST watch the peer until something arrives from it. It MUST count
  //     that peer's silence from half of the limit before the report, or from when something last arrived from it if
  //     that is later.
  void suspect(base::TimeNs now, const LivenessLimits& limits) {
    watched_since_ = std::min(watched_since_, now - limits.dead_after_ns / 2);
    suspected_ = true;
    suspended_until_ = 0;
  }
  bool may_be_suspended(base::TimeNs now, const LivenessLimits& limits) const {
    return now < base::after(quiet_since(), limits.suspended_after_ns);
  }
  // Its silence was reported.
  bool is_suspected() const { return suspected_; }
  // may_be_suspended() holds, and the peer sent a datagram, or its host acknowledged something, `age` ago: the peer is
  // not silent before that is older than the silence limit.
  void on_acknowledged(base::TimeNs now, base::DurationNs age, const LivenessLimits& limits) {
    const base::DurationNs left = std::max(limits.dead_after_ns - age, base::kMillisecond);
    suspended_until_ = std::min(base::after(now, left), base::after(quiet_since(), limits.suspended_after_ns));
  }
  // This process did not run for so long; the peer may have had no turn either.
  // PROTOCOL 3.6.8: A side whose timers ran late by more than a heartbeat period MUST NOT count that time as silence:
  //     the host is slow, and its peers may have had no turn either.
  void excuse(base::TimeNs now, base::DurationNs late) {
    if (watched_since_ != base::kNever) watched_since_ = std::min(now, quiet_since() + late);
  }

  // PROTOCOL 3.6.5: A side MUST watch a peer if the peer is a neighbour, if an operation with it is in progress, or if
  //     nothing has arrived from it since this side's last message to it or since a report of its silence (3.6.7).
  // `neighbour`: both sides send heartbeats. `needed`: an operation with the peer is in progress.
  void update(base::TimeNs now, bool neighbour, bool needed) {
    neighbour_ = neighbour;
    const bool awaits = message_at_ != base::kNever && message_at_ >= last_heard_;
    const bool watched = neighbour || needed || awaits || suspected_;
    if (!watched) {
      watched_since_ = base::kNever;
    } else if (watched_since_ == base::kNever) {
      watched_since_ = now;
    }
  }
  bool is_watched() const { return watched_since_ != base::kNever; }

  base::TimeNs last_heard() const { return last_heard_; }
  // kNever while no caller watches.
  base::TimeNs silent_at(const LivenessLimits& limits) const {
    if (!is_watched()) return base::kNever;
    // PROTOCOL 3.6.4: An endpoint MUST NOT declare a peer silent before 100 ms for each rank of the job have passed
    //     since the connection came up.
    return std::max(
        {base::after(quiet_since(), limits.dead_after_ns), base::after(up_since_, limits.grace_ns), suspended_until_});
  }
  // PROTOCOL 3.6.1: A side that has sent no message to a neighbour for a heartbeat period MUST send it a heartbeat.
  base::TimeNs heartbeat_at(const LivenessLimits& limits) const {
    // Counted from the last message: counted from the time when a heartbeat was last due, two periods could pass in
    // silence.
    return neighbour_ ? base::after(spoke_at_, limits.heartbeat_ns) : base::kNever;
  }
  // PROTOCOL 3.6.5: A side MUST send a heartbeat request (type 7) to a peer that it watches when nothing has arrived
  //     from it for two heartbeat periods, and again after every two more.
  base::TimeNs ask_at(const LivenessLimits& limits) const {
    if (!is_watched()) return base::kNever;
    return base::after(std::max(last_heard_, asked_at_), 2 * limits.heartbeat_ns);
  }

 private:
  base::TimeNs quiet_since() const { return std::max(last_heard_, watched_since_); }

  bool neighbour_ = false;
  bool suspected_ = false;
  base::TimeNs up_since_ = 0;
  base::TimeNs last_heard_ = 0;
  base::TimeNs spoke_at_ = 0;               // this side's last frame
  base::TimeNs message_at_ = base::kNever;  // this side's last message; kNever: none
  base::TimeNs asked_at_ = 0;
  base::TimeNs suspended_until_ = 0;  // silent, but not down before this time: its host acknowledges
  base::TimeNs watched_since_ = base::kNever;
};

}  // namespace mlt::io
