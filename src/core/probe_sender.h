// The probes of a sender that are due: queued and encoded, as datagrams, behind the data of a path (trailing), or over
// the control connection. Paper sections 4.2.1 and 4.2.3.
//
// Invariants: a send has one probe proper due at most, and its trailing probes leave before it; one that is due as a
// datagram has ProbeState::is_due(), or trailing probes. Absent on purpose: when to probe (Sender), phases and
// repetitions (ProbeState). Owned by the endpoint's Sender, used by one thread.
#pragma once

#include <cstdint>

#include "base/datagram.h"
#include "core/mtu_checks.h"
#include "core/peer.h"
#include "core/send_state.h"
#include "core/slot_set.h"
#include "core/transfer_slots.h"

namespace mlt::core {

class ProbeSender {
 public:
  ProbeSender(Shared& shared, TransferSlots<SendState>& sends, MtuChecks& mtu_checks);

  void schedule(SendState& state, bool ack_only);
  // Schedules a trailing probe on every path of `among` (bit mask) with a packet of the transfer, except for suspended
  // ones. They leave before a probe proper that is due.
  void schedule_trailing(SendState& state, std::uint32_t among = ~0U);
  void schedule_over_tcp(const SendState& state) { over_tcp_due_.set(sends_.slot_of(state)); }

  // The probe that is due as a datagram is no longer needed.
  void cancel(SendState& state);
  void cancel_over_tcp(const SendState& state) { over_tcp_due_.clear(sends_.slot_of(state)); }
  // The send ended.
  void forget(const SendState& state);

  // Builds the next probe; false if none is due.
  bool fill(TimeNs now, base::DatagramRun& run);
  bool fill_over_tcp(TimeNs now, ControlOutput& output);

 private:
  // `trailing_path`: kNoPath for a probe in the control class.
  std::size_t encode(TimeNs now, SendState& state, std::uint8_t trailing_path, std::byte* out);
  std::uint8_t path_of(TimeNs now, SendState& state);

  Shared& shared_;
  TransferSlots<SendState>& sends_;
  MtuChecks& mtu_checks_;
  SlotSet due_;
  SlotSet over_tcp_due_;
};

}  // namespace mlt::core
