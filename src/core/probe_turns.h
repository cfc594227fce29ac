// When the reply timers of all transfers to one peer may repeat their probes: in turns, however many they are. A peer
// that is slow, or a path that carries nothing, would otherwise get as many probes in a timeout as there are transfers.
//
// Absent on purpose: timers (Sender), and first probes, which nobody is late to answer. Owned by a peer.
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

  // A repetition is due, whose retransmission timeout is `timeout_ns`: when it may leave, `now` at the earliest.
  base::TimeNs take(base::TimeNs now, base::DurationNs timeout_ns) {
    // PROTOCOL 6.5.12: A sender MUST NOT repeat more than 64 unanswered probes to a peer, over all transfers, in the
    //     retransmission timeout of the one that is due, but each after 1 s at the latest.
    const base::DurationNs between = timeout_ns / kRepeatsPerTimeout;
    const base::TimeNs turn = std::min(std::max(now, busy_until_ns_ - (timeout_ns - between)), now + kMaxTurnNs);
    busy_until_ns_ = std::min(std::max(busy_until_ns_, now) + between, now + timeout_ns + kMaxTurnNs);
    ++since_reply_;
    return turn;
  }

  // A reply to a probe arrived, of whatever transfer.
  void on_reply() { since_reply_ = 0; }
  // So many went unanswered that each transfer would have sent its share over TCP by now, were there few.
  bool lack_reply() const { return since_reply_ > kBackstopAfterProbes * kRepeatsPerTimeout; }

 private:
  base::TimeNs busy_until_ns_ = 0;
  std::uint32_t since_reply_ = 0;
};

}  // namespace mlt::core
