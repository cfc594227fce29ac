// How much may leave: pacing, the window, and the limit of early data. Paper section 4.2.2.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/sender.h"

namespace mlt::core {

namespace {

// Max sends that wait at a peer's early-data limit before the first probes of further ones are spread over time.
constexpr std::uint32_t kProbeAtOnce = 64;

}  // namespace

std::uint64_t Sender::in_flight_bytes(std::uint16_t rank) const {
  const Peer& peer = shared_.peers[rank];
  return peer.spray.packets_in_flight() * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
}

// Number of datagrams that this send may send now; 0 if the window or the early-data limit forbids any.
std::uint32_t Sender::datagrams_allowed(TimeNs now, std::uint16_t rank, const SendState& state,
                                        const TransmitCapabilities& capabilities) {
  Peer& peer = shared_.peers[rank];
  const std::uint32_t datagram = peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  std::uint64_t limit = std::min<std::uint64_t>(capabilities.max_run_segments, base::kMaxRunSegments);
  limit = std::min<std::uint64_t>(limit, capabilities.max_run_bytes / datagram);
  // PROTOCOL 6.2.2: A run MUST NOT have more than 64 packets or 65,507 bytes, nor more than the current rate sends in
  //     100 us, but MAY always have one packet.
  limit = std::min(limit, Pacer::run_bytes(peer.rate->rate_bytes_per_second()) / datagram);
  limit = std::max<std::uint64_t>(limit, 1);
  const std::uint64_t in_flight = in_flight_bytes(rank);
  // PROTOCOL 6.3.2: A sender MUST NOT have more bytes in flight than the window that the peer offered, but one packet
  //     always may be.
  const std::uint64_t room = peer.window_bytes > in_flight ? peer.window_bytes - in_flight : 0;
  if (in_flight > 0) {
    // PROTOCOL 6.3.3: A sender SHOULD wait until a whole run, or a quarter of the window, fits, rather than send short
    //     runs.
    // Only long batches are efficient: wait for a quarter of the window instead of sending short ones.
    const std::uint64_t worthwhile = std::min<std::uint64_t>(limit * datagram, peer.window_bytes / 4);
    if (room < datagram || room < worthwhile) {
      if (peer.window.on_no_space(shared_.counters)) {
        shared_.timers.set(shared_.peer_timer(rank), base::after(now, peer.rtt.timeout_ns(0)));
      }
      return 0;
    }
  }
  // At least one datagram, even into a window smaller than it.
  limit = std::max<std::uint64_t>(1, std::min(limit, room / datagram));
  if (!state.receiver_ready) {
    // The peer's share of its early buffer, over all transfers: data beyond it is dropped even without network faults.
    // PROTOCOL 6.4.1: As long as receives are not known to be posted, a sender MUST NOT send more segments for them,
    //     over all transfers to the peer, than the early segments that the peer offered, nor of more transfers than its
    //     early transfers. Where the peer offers none, the limit is one.
    const std::uint32_t blind = std::max<std::uint32_t>(peer.early_segments, 1);
    if (state.blind_segments == 0 && peer.blind_transfers >= std::max<std::uint32_t>(peer.early_transfers, 1)) return 0;
    if (peer.blind_segments >= blind) return 0;
    limit = std::min<std::uint64_t>(limit, blind - peer.blind_segments);
  }
  return static_cast<std::uint32_t>(limit);
}

// The send reached the early-data limit: it probes, and other sends continue.
void Sender::wait_blind(TimeNs now, SendState& state) {
  Peer& peer = shared_.peers[state.request.peer];
  order_.unlink(state);
  SendQueue(sends_, peer.blind_head).push(sends_.slot_of(state));
  state.waits_blind = true;
  if (++peer.blind_waiting <= kProbeAtOnce) {
    schedule_probe(state, true);
    return await_reply(now, state);
  }
  // Behind many other sends: its first probe waits for its turn, like a repeated one.
  state.probe_ns = base::after(now, repeat_after(state, 0));
  arm(state);
}

void Sender::stop_waiting_blind(SendState& state) {
  if (!std::exchange(state.waits_blind, false)) return;
  Peer& peer = shared_.peers[state.request.peer];
  SendQueue(sends_, peer.blind_head).erase(sends_.slot_of(state));
  --peer.blind_waiting;
}

// The peer has space for early data again: wakes the first sends that wait for it.
void Sender::wake_blind(Peer& peer) {
  const std::uint32_t most_segments = std::max<std::uint32_t>(peer.early_segments, 1);
  const std::uint32_t most_transfers = std::max<std::uint32_t>(peer.early_transfers, 1);
  std::uint32_t segments = most_segments - std::min(most_segments, peer.blind_segments);
  std::uint32_t transfers = most_transfers - std::min(most_transfers, peer.blind_transfers);
  for (; segments > 0 && peer.blind_head != kNil; --segments) {
    SendState& state = sends_[peer.blind_head];
    const bool is_new = state.blind_segments == 0;
    if (is_new && transfers == 0) return;
    if (is_new) --transfers;
    stop_waiting_blind(state);
    state.probe_ns = base::kNever;
    state.probe.cancel(shared_.counters);
    probes_due_.clear(sends_.slot_of(state));
    arm(state);
    order_.link(state);
  }
}

bool Sender::fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run) {
  return order_.serve([&](std::uint16_t rank) { return fill_from_peer(now, rank, capabilities, run); });
}

bool Sender::fill_from_peer(TimeNs now, std::uint16_t rank, const TransmitCapabilities& capabilities,
                            base::DatagramRun& run) {
  Peer& peer = shared_.peers[rank];
  if (!peer.window.is_open() || peer.classification_deferred) return false;
  if (!peer.pacer.may_send(now)) {
    shared_.timers.set(shared_.peer_timer(rank), peer.pacer.next_ns());
    return false;
  }
  // PROTOCOL 23.3.3: A ring that is full MUST hold back the data for its peer, and for no other, and drop none of it.
  // A path with flow control of its own: no timer is needed, because the driver calls again when it has space.
  if (capabilities.has_room_for != nullptr && !capabilities.has_room_for(capabilities.room_context, rank)) return false;
  while (peer.work_head != kNil) {
    SendState& state = sends_[peer.work_head];
    const std::uint32_t limit = datagrams_allowed(now, rank, state, capabilities);
    if (!peer.window.is_open()) return false;
    // PROTOCOL 6.4.2: At that limit a sender MUST send an ACK_ONLY probe and let the transfers behind go on.
    if (limit == 0) {
      wait_blind(now, state);
      continue;
    }
    std::uint32_t segment = 0;
    if (!order_.next_segment(state, segment)) {
      order_.defer(now, rank);
      return false;
    }
    // The probe measures the path, so that any transfer may carry it.
    // RECOVERY R1.2.11: A sender whose rate is below line rate SHOULD send an ACK_ONLY probe with its data every 50 ms.
    if (peer.rate->base_sample_due(now)) schedule_probe(state, true);
    fill_run(now, state, segment, limit, run);
    return true;
  }
  return false;
}

}  // namespace mlt::core
