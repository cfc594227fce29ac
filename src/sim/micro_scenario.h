// The scenarios that the micro-swarm explores: two hosts, tensors of 0 to 6 segments of 8 bytes, one or two paths.
// Every scenario has a number; its faults are not drawn but chosen (sim/micro_world.h).
//
// Absent on purpose: faults, time (the world's), checks (the oracle's).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/oracle.h"

namespace mlt::sim {

struct MicroTransfer {
  Plan send;
  Plan receive;
  bool sent = true;  // whether this side is posted at all
  bool received = true;
  base::DurationNs send_at_ns = 0;  // after the start, unless a choice delays the call
  base::DurationNs receive_at_ns = 0;
};

struct MicroScenario {
  static constexpr std::uint32_t kSegmentBytes = 8;

  std::string name;
  std::uint8_t paths = 1;
  std::vector<MicroTransfer> transfers;
  bool cancels = false;       // any operation may be cancelled at any point
  bool disconnects = false;   // the connection may end, and is reconnected
  bool control_lost = false;  // no datagram of the control class arrives: replies use the control connection only
  std::uint32_t window_bytes = 16 * (kSegmentBytes + MLT_DATA_HEADER_BYTES);
  std::uint32_t early_segments = 8;
  std::uint32_t early_transfers = 2;
  std::uint32_t packets_per_ack = 10;
  std::uint32_t reply_queue = 8;
  std::uint32_t finished_log = 4;
  // The sender's clock is offset so that its low 32 bits wrap during the run.
  bool timestamps_wrap = false;
  std::uint32_t retire_after = 0;  // of the endpoints; the watches do not work with endpoints that forget tags
};

// All scenarios, the same on every host; a scenario's number is its index.
const std::vector<MicroScenario>& micro_scenarios();

}  // namespace mlt::sim
