// A bulk transfer of another program beside the endpoints: TCP with the congestion control of most hosts, CUBIC
// (RFC 9438), which sends more until a packet is lost, and so fills every buffer on its way.
//
// A model of what others see of it: the window, its reaction to loss, the clock of acknowledgements. Packets are
// numbered by transmission and acknowledged one by one, so that a packet is lost when three later ones have arrived
// (RFC 9002, 6.1.1); what it carried goes in any later one. Absent on purpose: contents, handshakes, HyStart, delayed
// acknowledgements, pacing. One thread.
#pragma once

#include <cstdint>
#include <deque>

#include "sim/simulator.h"

namespace mlt::sim {

class CubicFlow {
 public:
  // `max_window`: of the receiver, in packets.
  CubicFlow(Simulator& simulator, std::uint16_t from, std::uint16_t to, double max_window = 4'000);
  CubicFlow(const CubicFlow&) = delete;
  CubicFlow& operator=(const CubicFlow&) = delete;

  // Sends until the simulation ends, which must be before the end of this object.
  void start();

  // Payload that has arrived.
  std::uint64_t delivered_bytes() const { return delivered_ * kPayloadBytes; }
  std::uint64_t packets_lost() const { return lost_; }
  double window() const { return window_; }

  static constexpr std::uint32_t kPayloadBytes = 1'448;

 private:
  struct Sent {
    base::TimeNs at_ns = 0;
    bool is_over = false;  // acknowledged or lost
  };

  void on_arrival(const Packet& packet);
  void on_acknowledged(std::uint64_t number);
  void send_more();
  void send(std::uint16_t from, std::uint16_t to, std::uint32_t bytes, wire::PacketType type, std::uint64_t number);
  void grow(base::DurationNs rtt_ns);
  void on_loss(std::uint64_t number);
  void watch();

  Simulator& simulator_;
  std::uint16_t from_, to_, flow_;
  double max_window_;
  double window_ = 10;
  double threshold_ = 1e9;     // of slow start
  double window_before_ = 0;   // the last loss: W_max of RFC 9438
  double as_reno_ = 0;         // the window that Reno would have now: W_est
  base::TimeNs epoch_ns_ = 0;  // begin of congestion avoidance; 0: not begun
  double until_before_s_ = 0;  // time to W_max again: K
  std::deque<Sent> sent_;      // from number first_ on
  std::uint64_t first_ = 0;
  std::uint64_t recovery_end_ = 0;  // losses below it belong to a decrease that was made
  std::uint64_t in_flight_ = 0;
  std::uint64_t delivered_ = 0, lost_ = 0;
  base::DurationNs smoothed_rtt_ns_ = 0;
  base::TimeNs heard_ns_ = 0;
  unsigned timeouts_ = 0;  // in a row
};

}  // namespace mlt::sim
