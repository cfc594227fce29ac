// The receiver's state machine of one transfer, as a table (tests/golden/receiver_states.txt shows it whole). Paper
// sections 4.2.1 and 4.2.3; DESIGN.md section 2.
//
// A sender's round ends where its marker or probe says so. What is missing then may only be late: the receiver judges
// when it must be lost, then ends the transfer or asks for the rest. A transfer that is over is not found by its name
// any more: its data counts as stale_packets, its probes are answered with the outcome on record.
#pragma once

#include "core/state_table.h"

namespace mlt::core {

#define MLT_RECEIVE_PHASES(X)                                              \
  X(free)     /* the slot holds no transfer */                             \
  X(filling)  /* no end of a round was seen yet */                         \
  X(judging)  /* the round is over: what is missing is late or lost */     \
  X(answered) /* asked for the rest, or for a number only a probe tells */ \
  X(done)     /* over; the completion waits to be polled */

#define MLT_RECEIVE_EVENTS(X, PREFIX)                                                            \
  X(PREFIX##post)                                                                                \
  X(PREFIX##data)                                                                                \
  X(PREFIX##end_of_round) /* the marker of a round newer than any whose end was seen */          \
  X(PREFIX##new_probe)    /* PROBE of such a round */                                            \
  X(PREFIX##probe_again)  /* PROBE of the round that is judged or answered */                    \
  X(PREFIX##old_probe)    /* PROBE of an earlier one */                                          \
  X(PREFIX##ack_probe)    /* PROBE that asks for an ACK only */                                  \
  X(PREFIX##grace_timer)  /* what is missing may be known to be lost now */                      \
  X(PREFIX##answer)       /* it is, and more than may be lost: BITMAP goes out */                \
  X(PREFIX##complete)     /* nothing is missing */                                               \
  X(PREFIX##within_bound) /* known to be lost, or stopped eagerly, and no more than the bound */ \
  X(PREFIX##deadline)                                                                            \
  X(PREFIX##expiry)                                                                              \
  X(PREFIX##mismatch) /* the sender names another size or element type */                        \
  X(PREFIX##abort)    /* the sender gave up */                                                   \
  X(PREFIX##cancel)                                                                              \
  X(PREFIX##peer_down)                                                                           \
  X(PREFIX##polled) /* the completion was handed out */

enum class ReceivePhase : std::uint8_t {
#define MLT_X(name) k_##name,
  MLT_RECEIVE_PHASES(MLT_X)
#undef MLT_X
      kCount
};

enum class ReceiveEvent : std::uint8_t {
#define MLT_X(name) name,
  MLT_RECEIVE_EVENTS(MLT_X, k_)
#undef MLT_X
      kCount
};

inline constexpr StateTable<ReceivePhase, ReceiveEvent> kReceiveTable{
    {
        {ReceivePhase::k_free, ReceiveEvent::k_post, ReceivePhase::k_filling},

        {ReceivePhase::k_filling, ReceiveEvent::k_data, ReceivePhase::k_filling},
        {ReceivePhase::k_filling, ReceiveEvent::k_end_of_round, ReceivePhase::k_judging},
        {ReceivePhase::k_filling, ReceiveEvent::k_new_probe, ReceivePhase::k_judging},
        {ReceivePhase::k_filling, ReceiveEvent::k_ack_probe, ReceivePhase::k_filling},
        {ReceivePhase::k_filling, ReceiveEvent::k_complete, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_within_bound, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_deadline, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_expiry, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_mismatch, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_abort, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_cancel, ReceivePhase::k_done},
        {ReceivePhase::k_filling, ReceiveEvent::k_peer_down, ReceivePhase::k_done},

        {ReceivePhase::k_judging, ReceiveEvent::k_data, ReceivePhase::k_judging},
        {ReceivePhase::k_judging, ReceiveEvent::k_end_of_round, ReceivePhase::k_judging},
        {ReceivePhase::k_judging, ReceiveEvent::k_new_probe, ReceivePhase::k_judging},
        {ReceivePhase::k_judging, ReceiveEvent::k_probe_again, ReceivePhase::k_judging},
        {ReceivePhase::k_judging, ReceiveEvent::k_ack_probe, ReceivePhase::k_judging},
        {ReceivePhase::k_judging, ReceiveEvent::k_grace_timer, ReceivePhase::k_judging},
        {ReceivePhase::k_judging, ReceiveEvent::k_answer, ReceivePhase::k_answered},
        {ReceivePhase::k_judging, ReceiveEvent::k_complete, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_within_bound, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_deadline, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_expiry, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_mismatch, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_abort, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_cancel, ReceivePhase::k_done},
        {ReceivePhase::k_judging, ReceiveEvent::k_peer_down, ReceivePhase::k_done},

        {ReceivePhase::k_answered, ReceiveEvent::k_data, ReceivePhase::k_answered},
        {ReceivePhase::k_answered, ReceiveEvent::k_end_of_round, ReceivePhase::k_judging},
        {ReceivePhase::k_answered, ReceiveEvent::k_new_probe, ReceivePhase::k_judging},
        // PROTOCOL 7.4.4: A PROBE of the newest round that was answered already asks again ...
        // Asked again: the answer may have been lost.
        {ReceivePhase::k_answered, ReceiveEvent::k_probe_again, ReceivePhase::k_judging},
        {ReceivePhase::k_answered, ReceiveEvent::k_ack_probe, ReceivePhase::k_answered},
        {ReceivePhase::k_answered, ReceiveEvent::k_complete, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_within_bound, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_deadline, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_expiry, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_mismatch, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_abort, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_cancel, ReceivePhase::k_done},
        {ReceivePhase::k_answered, ReceiveEvent::k_peer_down, ReceivePhase::k_done},

        {ReceivePhase::k_done, ReceiveEvent::k_polled, ReceivePhase::k_free},
    },
    {
        {ReceivePhase::k_judging, ReceiveEvent::k_old_probe},
        {ReceivePhase::k_answered, ReceiveEvent::k_old_probe},
        // The sender gave up what has ended here; its STOP may be on the way.
        {ReceivePhase::k_done, ReceiveEvent::k_abort},
    }};

}  // namespace mlt::core
