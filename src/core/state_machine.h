// The phase of one transfer. Only this class changes it, by the table; it counts events that the table excludes.
#pragma once

#include "core/counter.h"
#include "core/receive_table.h"
#include "core/send_table.h"

namespace mlt::core {

// `first_wrong`: counter of the table's first event in a wrong state. The others follow in the order of the events.
template <typename Phase, typename Event, const StateTable<Phase, Event>& table, Counter first_wrong>
class StateMachine {
 public:
  Phase phase() const { return phase_; }

  // False if the event is stale or wrong in this phase: it is counted, and the caller must ignore it.
  [[nodiscard]] bool on(Event event, Counters& counters) {
    const auto& cell = table.at(phase_, event);
    if (cell.outcome == Outcome::kTaken) {
      // PROTOCOL 5.4.1: The phase of a transfer MUST change as its table says and in no other way.
      phase_ = cell.next;
      return true;
    }
    // PROTOCOL 5.4.2: An endpoint MUST count a stale event in stale_control and a wrong one under its own name
    //     (wrong_state_send_..., wrong_state_receive_...), and do nothing else.
    counters.add(cell.outcome == Outcome::kStale ? Counter::k_stale_control : wrong(event));
    return false;
  }

  static constexpr Counter wrong(Event event) {
    return static_cast<Counter>(static_cast<std::size_t>(first_wrong) + static_cast<std::size_t>(event));
  }

 private:
  Phase phase_{};
};

using SendMachine = StateMachine<SendPhase, SendEvent, kSendTable, Counter::k_wrong_state_send_post>;
using ReceiveMachine = StateMachine<ReceivePhase, ReceiveEvent, kReceiveTable, Counter::k_wrong_state_receive_post>;
static_assert(SendMachine::wrong(SendEvent::k_polled) == Counter::k_wrong_state_send_polled);
static_assert(ReceiveMachine::wrong(ReceiveEvent::k_polled) == Counter::k_wrong_state_receive_polled);

}  // namespace mlt::core
