// The sender's state machine of one transfer, as a table (tests/golden/sender_states.txt shows it whole). Paper section
// 4.2.1; section 5.4 of PROTOCOL.md.
#pragma once

#include "core/state_table.h"

namespace mlt::core {

#define MLT_SEND_PHASES(X)                                              \
  X(free)      /* the slot holds no transfer */                         \
  X(sending)   /* the round has unsent segments */                      \
  X(awaiting)  /* the round was sent: BITMAP or STOP is due */          \
  X(done)      /* ended; the completion waits to be polled */           \
  X(aborting)  /* failed: as done, and ABORT is not acknowledged yet */ \
  X(lingering) /* failed and polled; ABORT is not acknowledged yet */

#define MLT_SEND_EVENTS(X, PREFIX)                                                                      \
  X(PREFIX##post)                                                                                       \
  X(PREFIX##run_sent)     /* a batch of data left; the round has unsent segments */                     \
  X(PREFIX##round_sent)   /* a batch of data left with the round's last segment */                      \
  X(PREFIX##not_posted)   /* the receiver reports: no receive yet */                                    \
  X(PREFIX##ready)        /* READY, or an ACK or BITMAP that reports: posted */                         \
  X(PREFIX##bitmap)       /* BITMAP of the current round */                                             \
  X(PREFIX##late_bitmap)  /* a further chunk of the BITMAP that started this round, or one before it */ \
  X(PREFIX##other_bitmap) /* BITMAP of any other round */                                               \
  X(PREFIX##stop)                                                                                       \
  X(PREFIX##stop_unseen) /* STOP of a receiver that had received nothing of the transfer */             \
  X(PREFIX##probe_timer)                                                                                \
  X(PREFIX##expiry)                                                                                     \
  X(PREFIX##cancel)                                                                                     \
  X(PREFIX##peer_down)                                                                                  \
  X(PREFIX##polled)      /* the completion was handed out */                                            \
  X(PREFIX##released)    /* reply to ABORT: the receiver keeps nothing of the transfer */               \
  X(PREFIX##abort_timer) /* ABORT has no reply yet */                                                   \
  X(PREFIX##abandoned)   /* ABORT gets no reply: stop repeating it */

enum class SendPhase : std::uint8_t {
#define MLT_X(name) k_##name,
  MLT_SEND_PHASES(MLT_X)
#undef MLT_X
      kCount
};

enum class SendEvent : std::uint8_t {
#define MLT_X(name) name,
  MLT_SEND_EVENTS(MLT_X, k_)
#undef MLT_X
      kCount
};

consteval StateTable<SendPhase, SendEvent> send_table() {
  using P = SendPhase;
  using E = SendEvent;
  return {{
              {P::k_free, E::k_post, P::k_sending},

              {P::k_sending, E::k_run_sent},
              {P::k_sending, E::k_round_sent, P::k_awaiting},
              {{P::k_sending, P::k_awaiting}, E::k_not_posted},
              {{P::k_sending, P::k_awaiting}, E::k_ready},
              {P::k_awaiting, E::k_bitmap, P::k_sending},
              {P::k_sending, E::k_late_bitmap},
              {P::k_awaiting, E::k_late_bitmap, P::k_sending},
              {{P::k_sending, P::k_awaiting}, E::k_probe_timer},

              {{P::k_sending, P::k_awaiting}, E::k_stop, P::k_done},
              {{P::k_sending, P::k_awaiting}, E::k_stop_unseen, P::k_aborting},
              {{P::k_sending, P::k_awaiting}, E::k_expiry, P::k_aborting},
              {{P::k_sending, P::k_awaiting}, E::k_cancel, P::k_aborting},
              {{P::k_sending, P::k_awaiting, P::k_aborting}, E::k_peer_down, P::k_done},
              {P::k_lingering, E::k_peer_down, P::k_free},

              {{P::k_aborting, P::k_lingering}, E::k_abort_timer},
              {P::k_aborting, E::k_released, P::k_done},
              {P::k_aborting, E::k_abandoned, P::k_done},
              {P::k_lingering, E::k_released, P::k_free},
              {P::k_lingering, E::k_abandoned, P::k_free},
              {P::k_aborting, E::k_polled, P::k_lingering},
              {P::k_done, E::k_polled, P::k_free},
          },
          {
              // A chunk that was overtaken, or one repeated for a repeated probe.
              {{P::k_sending, P::k_awaiting}, E::k_other_bitmap},
              // Replies to a transfer that has ended. A reused slot has another generation and does not get them.
              {P::k_done, E::k_not_posted},
              {P::k_done, E::k_ready},
              {P::k_done, E::k_bitmap},
              {P::k_done, E::k_late_bitmap},
              {P::k_done, E::k_other_bitmap},
              {P::k_done, E::k_stop},
              // Replies to packets sent before ABORT.
              {{P::k_aborting, P::k_lingering}, E::k_stop_unseen},
              {{P::k_aborting, P::k_lingering}, E::k_not_posted},
              {{P::k_aborting, P::k_lingering}, E::k_other_bitmap},
          }};
}
inline constexpr StateTable<SendPhase, SendEvent> kSendTable = send_table();

}  // namespace mlt::core
