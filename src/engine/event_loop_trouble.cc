// Why operations fail although the peer is up: the path to it carries smaller packets than its interface.
#include <algorithm>

#include "engine/event_loop.h"
#include "engine/words.h"
#include "io/net/egress_mtu.h"

namespace mlt::engine {

// PROTOCOL 18.1.6: Where the system refuses a datagram because the interface carries only smaller ones, an endpoint
//     MUST do the same at once. The reason names both ranks, the sizes and the way out.
void EventLoop::on_too_large(const core::Transmit& run) {
  PeerRecord& record = peers_[run.peer];
  const std::uint32_t headers = io::udp_header_bytes(record.udp_addresses[run.path]);
  const std::uint32_t ours = headers + std::min(run.datagram_bytes, run.total_bytes);
  // With several paths the widest decides: a batch that one path rejects is lost, and the others carry its segments.
  std::uint32_t path = 0;
  for (std::uint8_t i = 0; i < network_->paths(); ++i) {
    const std::uint32_t carries =
        io::egress_mtu(network_->path_address(i), record.udp_addresses[i], network_->path_device(i));
    if (carries == 0 || carries >= ours) return;  // another error, or a transient one
    path = std::max(path, carries);
  }
  PathLimitWords words = path_limit_words(run.peer);
  words.packet_bytes = ours;
  words.path_bytes = path;
  const std::uint32_t overhead = headers + MLT_DATA_HEADER_BYTES;
  const std::uint32_t payload = path > overhead ? path - overhead : 0;
  words.fitting_bytes = payload / 8 * 8;
  record.path_error = path_limit_text(words);
  endpoint_->on_control(now_, core::PathLimit{run.peer, payload});
}

PathLimitWords EventLoop::path_limit_words(std::uint16_t peer) const {
  const PeerRecord& record = peers_[peer];
  PathLimitWords words;
  words.rank = options_.rank;
  words.peer = peer;
  words.host = record.udp_addresses.front().host();
  words.segment_bytes = record.segment_bytes.load(std::memory_order_relaxed);
  return words;
}

// The limit that the endpoint's own probes found; empty if none.
std::string EventLoop::probed_limit(std::uint16_t peer) const {
  const std::uint32_t datagram = endpoint_->path_limit_bytes(peer);
  if (datagram == 0) return {};
  const std::uint32_t headers = io::udp_header_bytes(peers_[peer].udp_addresses.front());
  PathLimitWords words = path_limit_words(peer);
  words.packet_bytes = words.segment_bytes + MLT_DATA_HEADER_BYTES + headers;
  words.path_bytes = datagram + headers;
  words.fitting_bytes = datagram - MLT_DATA_HEADER_BYTES;
  words.probed = true;
  return path_limit_text(words);
}

// Requires the loop's lock.
std::string EventLoop::trouble_with(std::uint16_t peer) {
  if (peer_state(peer) != PeerState::kUp) return peer_error(peer);
  const std::string probed = probed_limit(peer);
  return probed.empty() ? peers_[peer].path_error : probed;
}

// Adds known conditions that may be the cause of the failure.
void EventLoop::explain_failure(const core::Completion& completion, std::string& error) {
  const PeerRecord& record = peers_[completion.peer];
  const bool timed_out = completion.status == core::CompletionStatus::kTimedOut;
  if (!record.send_error.empty() && (timed_out || completion.status == core::CompletionStatus::kPeerFailed)) {
    error += " (the last datagram to it that the system refused: " + record.send_error + ")";
  }
}

}  // namespace mlt::engine
