// The receiver's state machine of one transfer, as a table (tests/golden/receiver_states.txt shows it whole). Paper
// sections 4.2.1 and 4.2.3; section 5.5 of PROTOCOL.md.
//
// A packet with END_OF_ROUND or a probe ends a sender's round. Segments missing then may only be late: the receiver
// decides when they are lost, then ends the transfer or requests them. A transfer that has ended is no longer found by
// its id: its data counts as stale_packets, and its probes get the recorded outcome as reply.
#pragma once

#include "core/state_table.h"

namespace mlt::core {

#define MLT_RECEIVE_PHASES(X)                                                         \
  X(free)      /* the slot holds no transfer */                                       \
  X(filling)   /* no end of a round was received yet */                               \
  X(detecting) /* the round has ended: missing segments are late or lost */           \
  X(replied)   /* requested the missing segments, or waits for a number in a probe */ \
  X(done)      /* ended; the completion waits to be polled */

#define MLT_RECEIVE_EVENTS(X, PREFIX)                                               \
  X(PREFIX##post)                                                                   \
  X(PREFIX##data)                                                                   \
  X(PREFIX##end_of_round) /* END_OF_ROUND of a newer round than any before */       \
  X(PREFIX##new_probe)    /* PROBE of such a round */                               \
  X(PREFIX##probe_again)  /* PROBE of the round in loss detection, or replied to */ \
  X(PREFIX##old_probe)    /* PROBE of an earlier round */                           \
  X(PREFIX##ack_probe)    /* PROBE that requests an ACK only */                     \
  X(PREFIX##grace_timer)  /* missing segments may be declared lost now */           \
  X(PREFIX##reply)        /* they are, and exceed the bound: BITMAP goes out */     \
  X(PREFIX##complete)     /* nothing is missing */                                  \
  X(PREFIX##within_bound) /* declared lost, or stopped eagerly, within the bound */ \
  X(PREFIX##deadline)                                                               \
  X(PREFIX##expiry)                                                                 \
  X(PREFIX##mismatch) /* the sender states another size or element type */          \
  X(PREFIX##abort)    /* the sender aborted */                                      \
  X(PREFIX##cancel)                                                                 \
  X(PREFIX##peer_down)                                                              \
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
              // PROTOCOL 7.4.4: A PROBE of the newest round that already has its reply requests it again.
              // The previous reply may have been lost.
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
              // The sender aborted a transfer that has ended here; its STOP may be in flight.
              {P::k_done, E::k_abort},
          }};
}
inline constexpr StateTable<ReceivePhase, ReceiveEvent> kReceiveTable = receive_table();

}  // namespace mlt::core
