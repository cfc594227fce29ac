// Runs the path checks of a rank from the turns of the event loop: sends their probes and reports, keeps which peers
// are blocked and why, and fails such a peer once an operation needs it.
//
// Locking: all functions require the loop's lock (engine/driving.h). The references must outlive the last call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/endpoint.h"
#include "engine/datapath_opening.h"
#include "engine/path_checks.h"
#include "engine/peer_table.h"
#include "io/control/control_channel.h"

namespace mlt::engine {

class PathCheckService {
 public:
  PathCheckService(std::uint16_t rank, std::uint32_t seed, const core::Endpoint& endpoint,
                   const OpenedDatapath& datapath, io::ControlChannel& channel, const PeerTable& peers,
                   base::DurationNs peer_timeout_ns);

  // The peer is up for the endpoint; its addresses are in the table before the next turn.
  void on_peer_up(const core::PeerUp& up);
  void on_peer_down(std::uint16_t peer);
  // True if the datagram is none of the endpoint's.
  bool on_datagram(std::span<const std::byte> datagram) { return checks_.is_active() && checks_.on_datagram(datagram); }
  void on_report(base::TimeNs now, std::uint16_t from, std::span<const std::byte> bytes) {
    checks_.on_report(now, from, bytes);
  }
  // The peer is watched, and silent on its control connection.
  void on_quiet(base::TimeNs now, std::uint16_t peer) {
    if (now - datagram_at(peer) >= silence_ns_) checks_.request(peer);
  }
  // When the peer's last datagram arrived, replies to checks included; 0: none yet.
  base::TimeNs datagram_at(std::uint16_t peer) const {
    const base::TimeNs passed = checks_.passed_at(peer);
    return std::max(endpoint_.datagram_at(peer), passed == base::kNever ? 0 : passed);
  }
  // `is_drained`: the datapath has no more datagrams for now.
  void turn(base::TimeNs now, bool is_drained);
  base::TimeNs next_timeout() const;
  // Why no datagrams pass to or from the peer; empty if they do, or it is not known.
  std::string blocked(std::uint16_t peer) const;

 private:
  struct Blocked {
    std::uint16_t peer = 0;
    std::string text;
    base::TimeNs fails_at = 0;  // not before: the peer is to know the cause as well
  };

  void watch(base::TimeNs now);
  bool is_needed(std::uint16_t peer) const { return endpoint_.operations_with(peer) > 0; }
  void on_verdict(base::TimeNs now, const PathVerdict& verdict);

  const std::uint16_t rank_;
  const core::Endpoint& endpoint_;
  const OpenedDatapath& datapath_;
  io::ControlChannel& channel_;
  const PeerTable& peers_;
  const base::DurationNs silence_ns_;
  PathChecks checks_;
  base::TimeNs next_watch_ = 0;
  std::vector<Blocked> blocked_;  // peers that are up
  base::DatagramRun probe_;
};

}  // namespace mlt::engine
