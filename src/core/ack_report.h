// What one ACK, BITMAP or STOP tells about the packets in flight to its sender: round trips, losses, the window. It may
// have the acknowledgement blocks of several paths. Paper section 4.2.3.
//
// Invariants: one datagram gives the rate controller one sample at most, and the timers one of their own besides that
// of its probe; finish() is called once, after all blocks. Absent on purpose: transfers (Sender). Lives as long as its
// datagram is processed.
#pragma once

#include <cstdint>

#include "core/mtu_checks.h"
#include "core/peer.h"
#include "wire/control.h"

namespace mlt::core {

class AckReport {
 public:
  // `reply_sequence`: of the datagram (wire::reply_sequence).
  AckReport(Shared& shared, TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::uint32_t reply_sequence);

  // `fresh`: the block echoes a timestamp that was not echoed before.
  void take_block(std::uint8_t path, const wire::AckBlock& block, bool fresh);
  // `probe_timestamp_ns`: of the probe that the datagram answers; 0: none.
  void finish(std::uint32_t probe_timestamp_ns, MtuChecks& mtu_checks);

 private:
  ReplyDelay reply_delay(std::uint32_t made_ns);
  DurationNs without_wait(DurationNs network_ns) const;

  Shared& shared_;
  TimeNs now_;
  TimeNs arrival_ns_;
  std::uint16_t from_;
  std::uint32_t reply_path_;  // on which the datagram came; wire::kNoReplyPath: over the control connection
  ReplyDelay reply_;
  bool first_ = true;              // no block was processed yet
  bool progress_ = false;          // packets left the window
  DurationNs rate_sample_ns_ = 0;  // for the rate controller; 0: none
};

}  // namespace mlt::core
