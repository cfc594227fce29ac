// The receiver's state machine of one transfer, as a table (tests/golden/receiver_states.txt shows it whole). Paper
// sections 4.2.1 and 4.2.3; DESIGN.md section 2.
//
// A sender's round ends where its marker or probe says so. What is missing then may only be late: the receiver judges
// when it must be lost, then ends the transfer or requests the rest. A transfer that is over is not found by its name
// any more: its data counts as stale_packets, its probes are answered with the outcome on record.
#pragma once

#include "core/state_table.h"

namespace mlt::core {

#define MLT_RECEIVE_PHASES(X)                                             \
  X(free)      /* the slot holds no transfer */                           \
  X(filling)   /* no end of a round was seen yet */                       \
  X(detecting) /* the round is over: what is missing is late or lost */   \
  X(replied)   /* requested the rest, or waits for a number in a probe */ \
  X(done)      /* over; the completion waits to be polled */

#define MLT_RECEIVE_EVENTS(X, PREFIX)                                                            \
  X(PREFIX##post)                                                                                \
  X(PREFIX##data)                                                                                \
  X(PREFIX##end_of_round) /* the marker of a round newer than any whose end was seen */          \
  X(PREFIX##new_probe)    /* PROBE of such a round */                                            \
  X(PREFIX##probe_again)  /* PROBE of the round in loss detection, or replied to */              \
  X(PREFIX##old_probe)    /* PROBE of an earlier one */                                          \
  X(PREFIX##ack_probe)    /* PROBE that requests an ACK only */                                  \
  X(PREFIX##grace_timer)  /* what is missing may be known to be lost now */                      \
  X(PREFIX##reply)        /* it is, and more than may be lost: BITMAP goes out */                \
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

consteval StateTable<ReceivePhase, ReceiveEvent> receive_table() {
  using P = ReceivePhase;
  using E = ReceiveEvent;
  return {{
              {P::k_free, E::k_post, P::k_filling},

              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_data},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_end_of_round, P::k_detecting},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_new_probe, P::k_detecting},
              // PROTOCOL 7.4.4: A PROBE of the newest round that was answered already asks again.
              // The reply may have been lost.
              {{P::k_detecting, P::k_replied}, E::k_probe_again, P::k_detecting},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_ack_probe},
              {P::k_detecting, E::k_grace_timer},
              {P::k_detecting, E::k_reply, P::k_replied},

              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_complete, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_within_bound, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_deadline, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_expiry, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_mismatch, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_abort, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_cancel, P::k_done},
              {{P::k_filling, P::k_detecting, P::k_replied}, E::k_peer_down, P::k_done},
              {P::k_done, E::k_polled, P::k_free},
          },
          {
              {{P::k_detecting, P::k_replied}, E::k_old_probe},
              // The sender gave up what has ended here; its STOP may be on the way.
              {P::k_done, E::k_abort},
          }};
}
inline constexpr StateTable<ReceivePhase, ReceiveEvent> kReceiveTable = receive_table();

}  // namespace mlt::core
