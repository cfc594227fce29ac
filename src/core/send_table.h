// The sender's state machine of one transfer, as a table (tests/golden/sender_states.txt shows it whole). Paper section
// 4.2.1; DESIGN.md section 2.
#pragma once

#include "core/state_table.h"

namespace mlt::core {

#define MLT_SEND_PHASES(X)                                            \
  X(free)      /* the slot holds no transfer */                       \
  X(sending)   /* segments of the current round are left */           \
  X(awaiting)  /* the round is out: BITMAP or STOP is due */          \
  X(done)      /* over; the completion waits to be polled */          \
  X(aborting)  /* given up: as done, and ABORT is not answered yet */ \
  X(lingering) /* given up and polled; ABORT is not answered yet */

#define MLT_SEND_EVENTS(X, PREFIX)                                                                 \
  X(PREFIX##post)                                                                                  \
  X(PREFIX##run_sent)     /* a run of data left, and segments of the round are left */             \
  X(PREFIX##round_sent)   /* a run of data left, and with it the round's last segment */           \
  X(PREFIX##not_posted)   /* the receiver says: no receive yet */                                  \
  X(PREFIX##ready)        /* READY, or an ACK or BITMAP that says: posted */                       \
  X(PREFIX##bitmap)       /* BITMAP of the current round */                                        \
  X(PREFIX##late_bitmap)  /* BITMAP of the round before: a further chunk of what began this one */ \
  X(PREFIX##other_bitmap) /* BITMAP of any other round */                                          \
  X(PREFIX##stop)                                                                                  \
  X(PREFIX##stop_unseen) /* STOP of a receiver that had seen nothing of the transfer */            \
  X(PREFIX##probe_timer)                                                                           \
  X(PREFIX##expiry)                                                                                \
  X(PREFIX##cancel)                                                                                \
  X(PREFIX##peer_down)                                                                             \
  X(PREFIX##polled)      /* the completion was handed out */                                       \
  X(PREFIX##released)    /* an answer to ABORT: the receiver keeps nothing of the transfer */      \
  X(PREFIX##abort_timer) /* ABORT has no answer yet */                                             \
  X(PREFIX##abandoned)   /* and will have none */

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

inline constexpr StateTable<SendPhase, SendEvent> kSendTable{
    {
        {SendPhase::k_free, SendEvent::k_post, SendPhase::k_sending},

        {SendPhase::k_sending, SendEvent::k_run_sent, SendPhase::k_sending},
        {SendPhase::k_sending, SendEvent::k_round_sent, SendPhase::k_awaiting},
        {SendPhase::k_sending, SendEvent::k_not_posted, SendPhase::k_sending},
        {SendPhase::k_sending, SendEvent::k_ready, SendPhase::k_sending},
        {SendPhase::k_sending, SendEvent::k_late_bitmap, SendPhase::k_sending},
        {SendPhase::k_sending, SendEvent::k_probe_timer, SendPhase::k_sending},
        {SendPhase::k_sending, SendEvent::k_stop, SendPhase::k_done},
        {SendPhase::k_sending, SendEvent::k_stop_unseen, SendPhase::k_aborting},
        {SendPhase::k_sending, SendEvent::k_expiry, SendPhase::k_aborting},
        {SendPhase::k_sending, SendEvent::k_cancel, SendPhase::k_aborting},
        {SendPhase::k_sending, SendEvent::k_peer_down, SendPhase::k_done},

        {SendPhase::k_awaiting, SendEvent::k_not_posted, SendPhase::k_awaiting},
        {SendPhase::k_awaiting, SendEvent::k_ready, SendPhase::k_awaiting},
        {SendPhase::k_awaiting, SendEvent::k_bitmap, SendPhase::k_sending},
        {SendPhase::k_awaiting, SendEvent::k_probe_timer, SendPhase::k_awaiting},
        {SendPhase::k_awaiting, SendEvent::k_stop, SendPhase::k_done},
        {SendPhase::k_awaiting, SendEvent::k_stop_unseen, SendPhase::k_aborting},
        {SendPhase::k_awaiting, SendEvent::k_expiry, SendPhase::k_aborting},
        {SendPhase::k_awaiting, SendEvent::k_cancel, SendPhase::k_aborting},
        {SendPhase::k_awaiting, SendEvent::k_peer_down, SendPhase::k_done},

        {SendPhase::k_done, SendEvent::k_polled, SendPhase::k_free},

        {SendPhase::k_aborting, SendEvent::k_polled, SendPhase::k_lingering},
        {SendPhase::k_aborting, SendEvent::k_released, SendPhase::k_done},
        {SendPhase::k_aborting, SendEvent::k_abort_timer, SendPhase::k_aborting},
        {SendPhase::k_aborting, SendEvent::k_abandoned, SendPhase::k_done},
        {SendPhase::k_aborting, SendEvent::k_peer_down, SendPhase::k_done},

        {SendPhase::k_lingering, SendEvent::k_released, SendPhase::k_free},
        {SendPhase::k_lingering, SendEvent::k_abort_timer, SendPhase::k_lingering},
        {SendPhase::k_lingering, SendEvent::k_abandoned, SendPhase::k_free},
        {SendPhase::k_lingering, SendEvent::k_peer_down, SendPhase::k_free},
    },
    {
        // A chunk that was overtaken, or one that a repeated probe brought a second time.
        {SendPhase::k_sending, SendEvent::k_other_bitmap},
        {SendPhase::k_awaiting, SendEvent::k_late_bitmap},
        {SendPhase::k_awaiting, SendEvent::k_other_bitmap},
        // Answers to a transfer that is over. A slot that was used again has another generation and does not get them.
        {SendPhase::k_done, SendEvent::k_not_posted},
        {SendPhase::k_done, SendEvent::k_ready},
        {SendPhase::k_done, SendEvent::k_bitmap},
        {SendPhase::k_done, SendEvent::k_late_bitmap},
        {SendPhase::k_done, SendEvent::k_other_bitmap},
        {SendPhase::k_done, SendEvent::k_stop},
        // Answers to what was sent before ABORT.
        {SendPhase::k_aborting, SendEvent::k_stop_unseen},
        {SendPhase::k_lingering, SendEvent::k_stop_unseen},
        {SendPhase::k_aborting, SendEvent::k_not_posted},
        {SendPhase::k_aborting, SendEvent::k_other_bitmap},
        {SendPhase::k_lingering, SendEvent::k_not_posted},
        {SendPhase::k_lingering, SendEvent::k_other_bitmap},
    }};

}  // namespace mlt::core
