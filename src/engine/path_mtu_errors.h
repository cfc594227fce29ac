// Why operations fail although the peer is up: the path to it carries smaller packets than the pair's segments need.
//
// Three sources: the MTU of this host's interface, when the system rejects a batch as too large; the limit that the
// endpoint's MTU probes found; and what a peer says that aborted a transfer to this rank. Locking: all functions
// require the loop's lock. Invariant: an interface error exists only while no path's interface carries a full segment,
// as far as is known; a transfer of several segments that was sent disproves it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/endpoint.h"
#include "engine/peer_table.h"
#include "io/network_datapath.h"

namespace mlt::engine {

enum class PathMtuSource : std::uint8_t {
  kInterface,  // this host's interface towards the peer
  kProbes,     // MTU probes to the peer
  kReported    // the peer's own, of its way here
};

struct PathMtuError {
  std::uint16_t rank = 0;
  std::uint16_t peer = 0;
  std::string host;                 // of the peer
  std::uint32_t segment_bytes = 0;  // of the pair
  std::uint32_t packet_bytes = 0;   // size of the IP packet that does not pass
  std::uint32_t path_bytes = 0;     // max size that passes
  std::uint32_t fitting_bytes = 0;  // the segment bytes that would fit; 0: none
  PathMtuSource source = PathMtuSource::kInterface;
};
std::string path_mtu_error_text(const PathMtuError& error);

class PathMtuErrors {
 public:
  // `network` must outlive the last on_too_large(), the other references this object.
  PathMtuErrors(std::uint16_t rank, std::uint16_t ranks, const PeerTable& peers, core::Endpoint& endpoint,
                const io::NetworkDatapath& network)
      : rank_(rank), peers_(peers), endpoint_(endpoint), network_(network), interface_errors_(ranks) {}

  // The system rejected a batch as too large. If that is due to the interfaces' MTU, the endpoint fails sends with
  // longer segments to that peer.
  void on_too_large(base::TimeNs now, const core::Transmit& run);
  // A transfer with full segments reached the peer.
  void on_sent(std::uint16_t peer) { interface_errors_[peer].clear(); }

  // Text of the error on the path to a peer that is up; empty if none is known.
  std::string text(std::uint16_t peer) const;
  // Of the peer's way to this rank, as the peer said: DATA with more than `payload_bytes` does not arrive.
  std::string reported_text(std::uint16_t peer, std::uint32_t payload_bytes) const;
  // The peer's error if it is not up, else the one on the path to it; empty if none is known.
  std::string peer_or_path_error(std::uint16_t peer) const;

 private:
  PathMtuError error_with(std::uint16_t peer) const;
  std::string probed_text(std::uint16_t peer) const;

  const std::uint16_t rank_;
  const PeerTable& peers_;
  core::Endpoint& endpoint_;
  const io::NetworkDatapath& network_;
  std::vector<std::string> interface_errors_;  // per peer
};

}  // namespace mlt::engine
