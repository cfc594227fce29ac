// Why operations with a peer fail though it is there: the path to it carries smaller packets than its interface.
#include <algorithm>

#include "engine/event_loop.h"
#include "engine/words.h"
#include "io/path_mtu.h"

namespace mlt::engine {

// PROTOCOL 18.1.5: Where the system refuses a datagram because the path to a peer carries only smaller ones, every send
//     to that peer with a longer segment MUST end as peer failed ... The reason names both ranks, the sizes and the way
//     out.
void EventLoop::on_too_large(const io::RefusedRun& run) {
  PeerRecord& record = peers_[run.peer];
  const std::uint32_t headers = io::udp_header_bytes(record.udp_addresses[run.path]);
  const std::uint32_t ours = headers + run.datagram_bytes;
  // Of several paths the widest decides: a run that one path refuses is lost, and the others get its segments.
  std::uint32_t path = 0;
  for (std::uint8_t i = 0; i < network_->paths(); ++i) {
    const std::uint32_t carries =
        io::path_mtu(network_->path_address(i), record.udp_addresses[i], network_->path_device(i));
    if (carries == 0 || carries >= ours) return;  // it was something else, or it has passed
    path = std::max(path, carries);
  }
  const std::uint32_t overhead = headers + MLT_DATA_HEADER_BYTES;
  const std::uint32_t payload = path > overhead ? path - overhead : 0;
  PathLimitWords words;
  words.rank = options_.rank;
  words.peer = run.peer;
  words.host = record.udp_addresses.front().host();
  words.segment_bytes = record.segment_bytes.load(std::memory_order_relaxed);
  words.packet_bytes = ours;
  words.path_bytes = path;
  words.fitting_bytes = payload / 8 * 8;
  record.path_error = path_limit_text(words);
  endpoint_->on_control(now_, core::PathLimit{run.peer, payload});
}

// I/O thread.
std::string EventLoop::trouble_with(std::uint16_t peer) {
  return peer_state(peer) == PeerState::kUp ? peers_[peer].path_error : peer_error(peer);
}

// What is known beside the completion and may be its cause.
void EventLoop::explain_failure(const core::Completion& completion, std::string& error) {
  const PeerRecord& record = peers_[completion.peer];
  const bool timed_out = completion.status == core::CompletionStatus::kTimedOut;
  if (!record.send_error.empty() && (timed_out || completion.status == core::CompletionStatus::kPeerFailed)) {
    error += " (the last datagram to it that the system refused: " + record.send_error + ")";
  }
  // It was asked for repairs, so control passes; but hardly a packet arrived, and never a tensor with a full segment.
  // Where the other side ran out of time first, the send was cancelled by it.
  const bool gave_up = timed_out || completion.status == core::CompletionStatus::kCancelled;
  if (completion.kind != core::CompletionKind::kSend || !gave_up || record.full_segment_arrived) return;
  if (completion.segment_count < 2 || completion.repaired_segments == 0) return;
  std::uint64_t sent = 0;
  std::uint64_t arrived = 0;
  for (std::uint8_t path = 0; path < endpoint_->config().paths; ++path) {
    const core::PathView view = endpoint_->path_view(completion.peer, path);
    sent += view.packets_sent;
    arrived += view.packets_reported;
  }
  if (arrived >= sent / 4) return;
  const std::uint32_t packet_bytes =
      completion.segment_bytes + MLT_DATA_HEADER_BYTES + io::udp_header_bytes(record.udp_addresses.front());
  error += black_hole_hint(record.udp_addresses.front().host(), completion.segment_bytes, packet_bytes);
}

}  // namespace mlt::engine
