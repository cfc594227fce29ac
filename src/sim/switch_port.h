// An output port: eight strict-priority queues with byte limits, and RED/ECN with selective dropping: above its
// threshold a queue marks ECN-capable packets and drops the others (paper, section 4.2.2). The queues of one switch may
// share its memory.
//
// A host's NIC is a port too, without limits. Absent on purpose: routing, links (sim/network.h).
#pragma once

#include <array>
#include <cstdint>

#include "base/prng.h"
#include "core/priority.h"
#include "sim/ledger.h"
#include "sim/packet.h"

namespace mlt::sim {

inline constexpr std::uint32_t kQueues = 8;
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// Bytes on the wire. Below `red_min` every packet is queued unchanged; above `red_max` every one is marked or dropped;
// in between with a probability that grows linearly to `red_probability`. Equal thresholds give the step of the paper.
struct Queue {
  std::uint64_t limit_bytes = kUnlimited;
  std::uint64_t red_min_bytes = kUnlimited;
  std::uint64_t red_max_bytes = kUnlimited;
  double red_probability = 1.0;
};

struct PortConfig {
  std::array<Queue, kQueues> queues;        // 0 is served first
  std::array<std::uint8_t, 64> queue_of{};  // DSCP -> queue
};

// Control to queue 0, data classes in order to the seven others; unknown code points to the last.
std::array<std::uint8_t, 64> queue_map(const core::DscpMap& dscp);

// Every queue with the same limit and step threshold; queue 0 (control) never marks or drops early.
PortConfig uniform_port(const core::DscpMap& dscp, std::uint64_t limit_bytes, std::uint64_t threshold_bytes);

// Counters of a queue, ECN-capable packets separate from the others.
struct QueueCounters {
  std::array<std::uint64_t, 2> offered{};  // [is ECT]
  std::array<std::uint64_t, 2> dropped{};
  std::uint64_t marked = 0;
  std::uint64_t sent_packets = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t max_queued_bytes = 0;
};

// Memory shared by the ports of one switch.
struct SharedBuffer {
  std::uint64_t limit_bytes = kUnlimited;
  std::uint64_t used_bytes = 0;
};

class SwitchPort {
 public:
  explicit SwitchPort(const PortConfig& config) : config_(config) {}

  // True if the packet was queued (possibly marked); else `fate` is the reason for the drop.
  bool enqueue(base::TimeNs now, PacketPool& pool, std::uint32_t index, SharedBuffer& buffer, base::Prng& prng,
               Fate& fate);
  // The next packet to send, highest priority first; kNoPacket if none may leave.
  std::uint32_t dequeue(PacketPool& pool, SharedBuffer& buffer);

  std::uint64_t queued_bytes() const { return queued_bytes_; }
  // True if no packet may leave.
  bool empty() const { return (occupied_ & ~paused_) == 0; }
  // Bit per queue paused by the next hop (IEEE 802.1Qbb): it continues to queue packets.
  void pause(std::uint32_t queues) { paused_ = queues; }
  const QueueCounters& counters(std::uint32_t queue) const { return states_[queue].counters; }
  PortConfig& config() { return config_; }
  const PortConfig& config() const { return config_; }

  // End of the current transmission.
  base::TimeNs busy_until_ns = 0;
  bool service_scheduled = false;
  base::TimeNs last_arrival_ns = 0;  // at the far end: jitter preserves the order

 private:
  struct State {
    std::uint32_t head = kNoPacket;
    std::uint32_t tail = kNoPacket;
    std::uint64_t bytes = 0;
    QueueCounters counters;
  };

  PortConfig config_;
  std::array<State, kQueues> states_;
  std::uint32_t occupied_ = 0;  // bit per queue
  std::uint32_t paused_ = 0;    // likewise
  std::uint64_t queued_bytes_ = 0;
};

}  // namespace mlt::sim
