#include "engine/path_mtu_errors.h"

#include <algorithm>

#include "io/net/egress_mtu.h"
#include "wire/packet.h"

namespace mlt::engine {

std::string path_mtu_error_text(const PathMtuError& error) {
  const std::string size =
      std::to_string(error.packet_bytes) + " bytes (segments of " + std::to_string(error.segment_bytes) + " bytes)";
  std::string text = "MTU mismatch: ";
  if (error.source == PathMtuSource::kReported) {
    const std::string sender = "rank " + std::to_string(error.peer);
    text += "the path from " + sender + " (" + error.host + ") to rank " + std::to_string(error.rank) +
            " carries packets of at most " + std::to_string(error.path_bytes) + " bytes, not of " + size + ", as " +
            sender + " found; ";
  } else if (error.source == PathMtuSource::kProbes) {
    text += "the path from rank " + std::to_string(error.rank) + " to rank " + std::to_string(error.peer) + " (" +
            error.host + ") drops packets of " + size + " but carries packets of " + std::to_string(error.path_bytes) +
            " bytes, as mlt's MTU probes measured; ";
  } else {
    text += "the interface of rank " + std::to_string(error.rank) + " towards rank " + std::to_string(error.peer) +
            " (" + error.host + ") carries packets of at most " + std::to_string(error.path_bytes) + " bytes, not of " +
            size + "; ";
  }
  if (error.fitting_bytes > 0) {
    text += "set Context(segment_bytes=" + std::to_string(error.fitting_bytes) + ") on every rank, or ";
  }
  return text + "set one MTU on both hosts and every switch between them (`ip link set DEVICE mtu ...`); `mlt doctor " +
         error.host + "` measures it";
}

// PROTOCOL 18.1.6: Where the system refuses a datagram because the interface carries only smaller ones, an endpoint
//     MUST do the same at once. The reason names both ranks, the sizes and the remedy.
void PathMtuErrors::on_too_large(base::TimeNs now, const core::Transmit& run) {
  const std::vector<io::SocketAddress>& addresses = peers_.addresses(run.peer);
  const std::uint32_t headers = io::udp_header_bytes(addresses[run.path]);
  const std::uint32_t ours = headers + std::min(run.datagram_bytes, run.total_bytes);
  // With several paths the widest decides: a batch that one path rejects is lost, and the others carry its segments.
  std::uint32_t path = 0;
  for (std::uint8_t i = 0; i < network_.paths(); ++i) {
    const std::uint32_t carries = io::egress_mtu(network_.path_address(i), addresses[i], network_.path_device(i));
    if (carries == 0 || carries >= ours) return;  // another error, or a transient one
    path = std::max(path, carries);
  }
  PathMtuError error = error_with(run.peer);
  error.packet_bytes = ours;
  error.path_bytes = path;
  const std::uint32_t overhead = headers + MLT_DATA_HEADER_BYTES;
  const std::uint32_t payload = path > overhead ? path - overhead : 0;
  error.fitting_bytes = payload / 8 * 8;
  interface_errors_[run.peer] = path_mtu_error_text(error);
  endpoint_.on_control(now, core::PathLimit{run.peer, payload});
}

// What both kinds of errors have in common.
PathMtuError PathMtuErrors::error_with(std::uint16_t peer) const {
  PathMtuError error;
  error.rank = rank_;
  error.peer = peer;
  error.host = peers_.addresses(peer).front().host();
  error.segment_bytes = peers_.segment_bytes(peer);
  return error;
}

// The limit that the endpoint's own probes found; empty if none.
std::string PathMtuErrors::probed_text(std::uint16_t peer) const {
  const std::uint32_t datagram = endpoint_.path_limit_bytes(peer);
  if (datagram == 0) return {};
  const std::uint32_t headers = io::udp_header_bytes(peers_.addresses(peer).front());
  PathMtuError error = error_with(peer);
  error.packet_bytes = error.segment_bytes + MLT_DATA_HEADER_BYTES + headers;
  error.path_bytes = datagram + headers;
  error.fitting_bytes = datagram - MLT_DATA_HEADER_BYTES;
  error.source = PathMtuSource::kProbes;
  return path_mtu_error_text(error);
}

std::string PathMtuErrors::reported_text(std::uint16_t peer, std::uint32_t payload_bytes) const {
  const std::uint32_t overhead = MLT_DATA_HEADER_BYTES + io::udp_header_bytes(peers_.addresses(peer).front());
  PathMtuError error = error_with(peer);
  error.packet_bytes = error.segment_bytes + overhead;
  error.path_bytes = payload_bytes + overhead;
  error.fitting_bytes = payload_bytes / 8 * 8;
  error.source = PathMtuSource::kReported;
  return path_mtu_error_text(error);
}

std::string PathMtuErrors::text(std::uint16_t peer) const {
  const std::string probed = probed_text(peer);
  return probed.empty() ? interface_errors_[peer] : probed;
}

std::string PathMtuErrors::peer_or_path_error(std::uint16_t peer) const {
  return peers_.state(peer) == PeerState::kUp ? text(peer) : peers_.error(peer);
}

}  // namespace mlt::engine
