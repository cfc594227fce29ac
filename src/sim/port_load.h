// A given load through one switch port of the simulator's network: the drops of each queue by kind of packet.
//
// Senders with a NIC and a cable each, one switch, one receiver behind the port under test. Bursts of one class begin
// at Poisson instants, every sender sending its share of the burst at once. Absent on purpose: endpoints, hence rate
// control, retransmissions and all other reactions to loss (sim/transfers.h runs those).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/switch_port.h"

namespace mlt::sim {

// One class in a queue of its own, highest priority first.
struct LoadClass {
  std::uint64_t threshold_bytes = kUnlimited;  // above it ECN-capable packets are marked, others dropped
  std::uint64_t limit_bytes = kUnlimited;
  double load = 0;         // arrival rate over the port's rate
  double small_ratio = 0;  // fraction of packets that are not ECN-capable
};

struct PortLoad {
  std::vector<LoadClass> classes;  // at most kQueues
  std::uint64_t packets = 0;       // of all classes together
  std::uint32_t burst_packets = 1;
  std::uint32_t senders = 1;
  std::uint32_t packet_bytes = 1'500;  // on the wire
  double port_bytes_per_second = 12.5e9;
  double nic_bytes_per_second = 12.5e9;
  std::uint64_t seed = 1;
};

inline constexpr std::uint32_t kMaxSenders = 256;

// Counters of the port's queues, one for each class. Throws std::invalid_argument, which names the invalid value.
std::vector<QueueCounters> run_port_load(const PortLoad& load);

}  // namespace mlt::sim
