// Two state machines that decide when a sender probes, as tables (tests/golden/probe_states.txt and window_states.txt
// show them whole): the probe of a transfer, and the window of a peer (PROTOCOL.md, sections 6.10 and 6.11).
#pragma once

#include "core/state_table.h"

namespace mlt::core {

// ---- the probe of one transfer, in the control class ---------------------------------------------------------------

#define MLT_PROBE_PHASES(X)                                            \
  X(idle)      /* no probe is due */                                   \
  X(due)       /* a probe leaves with the next poll */                 \
  X(in_flight) /* one left as a datagram; nothing has arrived since */ \
  X(due_again) /* probe unanswered, and the next one leaves: over a different path */

#define MLT_PROBE_EVENTS(X, PREFIX)                                                                \
  X(PREFIX##schedule)   /* the reply timer, the end of a round, a stalled window, a measurement */ \
  X(PREFIX##sent)       /* the probe left as a datagram */                                         \
  X(PREFIX##unanswered) /* too many probes without a reply: the path may have failed */            \
  X(PREFIX##received)   /* any packet about the transfer arrived */                                \
  X(PREFIX##cancel)     /* the receive is posted, or a new round begins: the scheduled probe is not needed */

enum class ProbePhase : std::uint8_t {
#define MLT_X(name) k_##name,
  MLT_PROBE_PHASES(MLT_X)
#undef MLT_X
      kCount
};

enum class ProbeEvent : std::uint8_t {
#define MLT_X(name) name,
  MLT_PROBE_EVENTS(MLT_X, k_)
#undef MLT_X
      kCount
};

// PROTOCOL 6.10.1: The phase of a probe MUST change as its table says and in no other way.
consteval StateTable<ProbePhase, ProbeEvent> probe_table() {
  using P = ProbePhase;
  using E = ProbeEvent;
  return {{
              {{P::k_idle, P::k_due}, E::k_schedule, P::k_due},
              {{P::k_in_flight, P::k_due_again}, E::k_schedule, P::k_due_again},
              {{P::k_due, P::k_due_again}, E::k_sent, P::k_in_flight},
              {{P::k_due, P::k_due_again}, E::k_unanswered, P::k_due_again},
              {{P::k_idle, P::k_in_flight}, E::k_received, P::k_idle},
              {{P::k_due, P::k_due_again}, E::k_received, P::k_due},
              {{P::k_idle, P::k_due}, E::k_cancel, P::k_idle},
              {{P::k_in_flight, P::k_due_again}, E::k_cancel, P::k_in_flight},
          },
          {}};
}
inline constexpr StateTable<ProbePhase, ProbeEvent> kProbeTable = probe_table();

// ---- the window of one peer ----------------------------------------------------------------------------------------

#define MLT_WINDOW_PHASES(X)                                           \
  X(open)    /* not known to be full */                                \
  X(full)    /* the next batch does not fit: sends to the peer wait */ \
  X(stalled) /* full for a retransmission timeout: a probe is due */   \
  X(probed)  /* the probe left, and no data since: its reply resolves all that is in flight */

#define MLT_WINDOW_EVENTS(X, PREFIX)                                               \
  X(PREFIX##no_space)   /* the next batch does not fit */                          \
  X(PREFIX##timer)      /* nothing left the window for a retransmission timeout */ \
  X(PREFIX##probe_sent) /* an ACK_ONLY probe to the peer left */                   \
  X(PREFIX##progress)   /* something left the window, or a reply resolved all */   \
  X(PREFIX##unwanted)   /* no send waits for the window */

enum class WindowPhase : std::uint8_t {
#define MLT_X(name) k_##name,
  MLT_WINDOW_PHASES(MLT_X)
#undef MLT_X
      kCount
};

enum class WindowEvent : std::uint8_t {
#define MLT_X(name) name,
  MLT_WINDOW_EVENTS(MLT_X, k_)
#undef MLT_X
      kCount
};

// PROTOCOL 6.11.1: The phase of a window MUST change as its table says and in no other way.
consteval StateTable<WindowPhase, WindowEvent> window_table() {
  using P = WindowPhase;
  using E = WindowEvent;
  return {{
              {P::k_open, E::k_no_space, P::k_full},
              {{P::k_full, P::k_stalled}, E::k_timer, P::k_stalled},
              {P::k_probed, E::k_timer},
              // A probe for another reason than a stall does not change the window.
              {{P::k_open, P::k_full, P::k_probed}, E::k_probe_sent},
              {P::k_stalled, E::k_probe_sent, P::k_probed},
              {{P::k_open, P::k_full, P::k_stalled, P::k_probed}, E::k_progress, P::k_open},
              {{P::k_full, P::k_stalled, P::k_probed}, E::k_unwanted, P::k_open},
          },
          {}};
}
inline constexpr StateTable<WindowPhase, WindowEvent> kWindowTable = window_table();

}  // namespace mlt::core
