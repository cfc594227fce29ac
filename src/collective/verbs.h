// Interface between a collective and its driver: the endpoint's post/poll, plus small reliable messages. Collectives
// are state machines over it, so that they run in both the engine and the simulator.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/time.h"
#include "core/event.h"

namespace mlt::collective {

using base::TimeNs;
using core::OperationId;

class Verbs {
 public:
  virtual core::PostStatus post_send(TimeNs now, const core::SendRequest& request) = 0;
  virtual core::PostStatus post_recv(TimeNs now, const core::ReceiveRequest& request) = 0;
  virtual void cancel(TimeNs now, OperationId operation, core::CompletionKind kind) = 0;
  // Reliable and in order, over the control connection; false if the peer is down or its queue is full.
  virtual bool send_message(std::uint16_t peer, std::span<const std::byte> bytes) = 0;
  // Payload of a full packet to or from `peer`.
  virtual std::uint32_t segment_bytes(std::uint16_t peer) const = 0;
  // Grid on which a service counts contributions: segments of network packets to `peer`. A worker that shares memory
  // with the service sends longer segments, each of several such cells, and sums with workers that do not.
  virtual std::uint32_t grid_bytes(std::uint16_t peer) const { return segment_bytes(peer); }

  // Bytes per second of the slowest port on the way to `peer`, as far as it is known (section R1.4); 0: nothing limits
  // it.
  virtual double port_rate(TimeNs now, std::uint16_t peer) const {
    static_cast<void>(now), static_cast<void>(peer);
    return 0;
  }

  // Why `peer` is down, or why its packets or those to it do not pass; empty if nothing is known.
  virtual std::string peer_error(std::uint16_t peer) const {
    static_cast<void>(peer);
    return {};
  }

  // It ended its connection with a goodbye, to all ranks alike.
  virtual bool has_left(std::uint16_t peer) const {
    static_cast<void>(peer);
    return false;
  }

  // Sets up the connection with `peer`, where ranks connect on first use, if there was none yet.
  virtual void use(TimeNs now, std::uint16_t peer) { static_cast<void>(now), static_cast<void>(peer); }

  // Something that the operator should know although no operation failed: a line of the log.
  virtual void notice(const std::string& text) { static_cast<void>(text); }

  // The other ranks continue without this one: it takes no further part in push-pulls.
  virtual void excluded(const std::string& text) { static_cast<void>(text); }

 protected:
  ~Verbs() = default;
};

// Operation ids of collectives have the top bit set; the next bits name the owner. Users' ids never have it.
inline constexpr OperationId kMachineBit = OperationId{1} << 63;
enum class MachineId : std::uint8_t { kPushPull = 0, kSummation = 1, kCollective = 2 };

constexpr OperationId machine_operation(MachineId machine, std::uint64_t local) {
  return kMachineBit | (OperationId{static_cast<std::uint8_t>(machine)} << 56) | local;
}
constexpr bool is_machine_operation(OperationId operation) { return (operation & kMachineBit) != 0; }
constexpr MachineId machine_of(OperationId operation) { return static_cast<MachineId>((operation >> 56) & 0x7F); }
constexpr std::uint64_t local_of(OperationId operation) { return operation & ((OperationId{1} << 56) - 1); }

// Tags of collectives have the top bit set too; a user's tag is below 2^63.
inline constexpr std::uint64_t kCollectiveTagBit = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kMaxKey = (std::uint64_t{1} << 40) - 1;

// PROTOCOL 14.1.3: A partition's pushes and results MUST be transfers whose tag is 2^63 + key * 2^16 + partition.
constexpr std::uint64_t partition_tag(std::uint64_t key, std::uint32_t partition) {
  return kCollectiveTagBit | (key << 16) | partition;
}

// PROTOCOL 22.1.3: The transfers of a collective from one member to another MUST have the tag 2^63 + 2^62 + group *
//     2^16 + lane, where the lane is 4 times the epoch's low 14 bits plus the sequence modulo 4.
inline constexpr std::uint32_t kLanes = 4;
constexpr std::uint64_t lane_tag(std::uint64_t group, std::uint32_t epoch, std::uint32_t sequence) {
  constexpr std::uint32_t kEpochs = 1U << 14;
  return kCollectiveTagBit | (std::uint64_t{1} << 62) | (group << 16) | (epoch % kEpochs * kLanes + sequence % kLanes);
}

}  // namespace mlt::collective
