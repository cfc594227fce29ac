// Shows a checker everything that a driver passes to an endpoint and takes from it, in order, with the host's own time.
// A datagram is shown when the endpoint reads it, not when it arrives: a host may be late.
//
// Absent on purpose: the endpoint's internal state. Called by the simulator's thread.
#pragma once

#include <cstdint>
#include <span>

#include "core/endpoint.h"
#include "sim/packet.h"

namespace mlt::sim {

class Observer {
 public:
  virtual void came_up(std::uint16_t rank, const core::PeerUp& up) = 0;
  virtual void went_down(std::uint16_t rank, std::uint16_t peer) = 0;
  // The peer left in order: all its final output was passed in before (10.1).
  virtual void hears_goodbye(std::uint16_t rank, std::uint16_t peer, std::uint64_t connection) = 0;
  // Just before the endpoint learns that the network carries no larger payload to a peer.
  virtual void is_limited(std::uint16_t rank, const core::PathLimit& limit) = 0;
  // Just before the endpoint reads a datagram, or a message from the control connection.
  virtual void reads(std::uint16_t rank, base::TimeNs local, std::span<const std::byte> bytes, bool by_control) = 0;
  // Just before a run leaves; sends() is called for each of its datagrams.
  virtual void sends_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run) = 0;
  virtual void sends(std::uint16_t rank, base::TimeNs local, const Packet& packet) = 0;
  virtual void sends_message(std::uint16_t rank, base::TimeNs local, const core::ControlOutput& output) = 0;
  // The driver has finished all work of this time, completions included.
  virtual void turn_ended(std::uint16_t rank, base::TimeNs local) = 0;

 protected:
  ~Observer() = default;
};

}  // namespace mlt::sim
