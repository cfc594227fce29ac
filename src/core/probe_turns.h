// Times of repeated probes of all transfers to one peer: one after the other, at a limited rate. Otherwise a peer that
// is slow, or a path that carries nothing, would receive as many probes per timeout as transfers wait.
//
// Absent on purpose: timers (Sender), and first probes, which are not limited. Owned by a peer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "core/probe_state.h"

namespace mlt::core {

class ProbeTurns {
 public:
  static constexpr std::uint32_t kRepeatsPerTimeout = 64;
  static constexpr base::DurationNs kMaxTurnNs = base::kSecond;

  // Returns when a due repetition may leave, `now` or later. `timeout_ns` is its retransmission timeout.
  base::TimeNs take(base::TimeNs now, base::DurationNs timeout_ns) {
    // PROTOCOL 6.5.12: A sender MUST NOT repeat more than 64 unanswered probes to a peer, over all transfers, in the
    //     retransmission timeout of the one that is due, but each after 1 s at the latest.
    const base::DurationNs between = timeout_ns / kRepeatsPerTimeout;
    const base::TimeNs turn = std::min(std::max(now, busy_until_ns_ - (timeout_ns - between)), now + kMaxTurnNs);
    busy_until_ns_ = std::min(std::max(busy_until_ns_, now) + between, now + timeout_ns + kMaxTurnNs);
    ++since_reply_;
    return turn;
  }

  // A reply to a probe of any transfer arrived.
  void on_reply() { since_reply_ = 0; }
  // True if so many probes stayed unanswered that, with few transfers, each would use the TCP fallback by now.
  bool lack_reply() const { return since_reply_ > kFallbackAfterProbes * kRepeatsPerTimeout; }

 private:
  base::TimeNs busy_until_ns_ = 0;
  std::uint32_t since_reply_ = 0;
};

}  // namespace mlt::core
