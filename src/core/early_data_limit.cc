#include "core/early_data_limit.h"

#include <utility>

namespace mlt::core {

void EarlyDataLimit::reset(std::uint16_t peer, std::uint32_t segments, std::uint32_t transfers) {
  peers_[peer] = PerPeer{};
  peers_[peer].offered_segments = std::max<std::uint32_t>(segments, 1);
  peers_[peer].max_transfers = std::max<std::uint32_t>(transfers, 1);
  follow_window(peer, 0);
}

bool EarlyDataLimit::follow_window(std::uint16_t rank, std::uint64_t window_segments) {
  PerPeer& peer = peers_[rank];
  // PROTOCOL 6.4.6: Of the early segments offered a sender SHOULD use those that the window (6.3) holds, but at least
  //     an eighth of them and at least 256: a receive that is posted late must not fill more memory than the path
  //     needs.
  const std::uint32_t min = std::max(peer.offered_segments / kMinPart, kMinSegments);
  const auto segments = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::max<std::uint64_t>(window_segments, min), peer.offered_segments));
  // In steps: each lets sends that wait continue for a while, and then probe again.
  if (segments > peer.max_segments && segments - peer.max_segments <= peer.max_segments / kMinPart) return false;
  return segments > std::exchange(peer.max_segments, segments);
}

std::uint32_t EarlyDataLimit::allowed(const SendState& state) const {
  // The peer's share of its early buffer, over all transfers: data beyond it is dropped even without network faults.
  // PROTOCOL 6.4.1: As long as receives are not known to be posted, a sender MUST NOT send more segments for them,
  //     over all transfers to the peer, than the early segments that the peer offered, nor of more transfers than its
  //     early transfers. Where the peer offers none, the limit is one.
  const PerPeer& peer = peers_[state.request.peer];
  if (state.early_segments == 0 && peer.transfers >= peer.max_transfers) return 0;
  return peer.max_segments - std::min(peer.max_segments, peer.segments);
}

void EarlyDataLimit::count_sent(SendState& state, std::uint32_t segments) {
  PerPeer& peer = peers_[state.request.peer];
  if (state.early_segments == 0) ++peer.transfers;
  state.early_segments += segments;
  peer.segments += segments;
}

bool EarlyDataLimit::release(SendState& state) {
  if (state.receiver_ready || state.early_segments == 0) return false;
  PerPeer& peer = peers_[state.request.peer];
  // PROTOCOL 6.4.4: A sender MUST count early data until the receive is known to be posted, STOP has come, or ABORT has
  //     its reply (8.1.6): until then it may stand in the peer's early buffer, whatever became of the send.
  peer.segments -= state.early_segments;
  --peer.transfers;
  state.early_segments = 0;
  return true;
}

void EarlyDataLimit::abandon(const SendState& state) {
  // PROTOCOL 8.1.7: After 2 s more the sender forgets the transfer, and its early data then counts as long as the
  //     connection lasts.
  if (state.receiver_ready || state.early_segments == 0) return;
  peers_[state.request.peer].abandoned += state.early_segments + 1;
}

std::uint32_t EarlyDataLimit::wait(SendState& state) {
  PerPeer& peer = peers_[state.request.peer];
  SendQueue(sends_, peer.first_waiting).push(sends_.slot_of(state));
  state.waits_for_space = true;
  return ++peer.waiting;
}

void EarlyDataLimit::stop_waiting(SendState& state) {
  if (!std::exchange(state.waits_for_space, false)) return;
  PerPeer& peer = peers_[state.request.peer];
  SendQueue(sends_, peer.first_waiting).erase(sends_.slot_of(state));
  --peer.waiting;
}

void EarlyDataLimit::add_usage(std::uint16_t rank, Usage& usage) const {
  const PerPeer& peer = peers_[rank];
  usage.early_sent.used += peer.segments + peer.transfers - peer.abandoned;
  usage.early_sent.limit += peer.offered_segments + peer.max_transfers;
}

}  // namespace mlt::core
