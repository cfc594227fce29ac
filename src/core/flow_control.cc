#include "core/flow_control.h"

#include <algorithm>

namespace mlt::core {

std::uint64_t FlowControl::in_flight_bytes(std::uint16_t rank) const {
  const Peer& peer = shared_.peer_view(rank);
  return peer.spray.packets_in_flight() * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
}

// Round trips of a faster flow are short, and its rate follows them badly if reports are read a batch late.
bool FlowControl::is_slow(const Peer& peer) {
  const std::uint32_t datagram = peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  return Pacer::run_bytes(peer.rate->rate_bytes_per_second(), datagram, false) / datagram <= 2;
}

bool FlowControl::may_send(TimeNs now, std::uint16_t rank, const TransmitCapabilities& capabilities) {
  Peer& peer = shared_.peers[rank];
  if (!peer.window.is_open()) {
    is_only_paced_ = false;
    return false;
  }
  if (!peer.pacer.may_send(now)) {
    peer.pacer.on_refused();
    shared_.timers.set(shared_.peer_timer(rank), peer.pacer.next_ns());
    paced_until_ = std::min(paced_until_, peer.pacer.next_ns());
    if (!is_slow(peer)) is_only_paced_ = false;
    return false;
  }
  is_only_paced_ = false;
  // PROTOCOL 23.3.3: A ring that is full MUST hold back the data for its peer, and for no other, and drop none of it.
  // A path with flow control of its own: no timer is needed, because the driver calls again when it has space.
  return capabilities.has_room_for == nullptr || capabilities.has_room_for(capabilities.room_context, rank);
}

std::uint32_t FlowControl::max_datagrams(TimeNs now, std::uint16_t rank, const TransmitCapabilities& capabilities) {
  Peer& peer = shared_.peers[rank];
  const std::uint32_t datagram = peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  std::uint64_t limit = std::min<std::uint64_t>(capabilities.max_run_segments, base::kMaxRunSegments);
  limit = std::min<std::uint64_t>(limit, capabilities.max_run_bytes / datagram);
  // PROTOCOL 6.2.2: A batch MUST NOT have more than 64 packets or 65,507 bytes, nor more than the current rate sends in
  //     100 us, but MAY have two packets if the current rate sends them in 1 ms, and MAY always have one.
  const double rate = peer.rate->rate_bytes_per_second();
  limit = std::min(limit, Pacer::run_bytes(rate, datagram, shared_.config.pairs) / datagram);
  limit = std::max<std::uint64_t>(limit, 1);
  const std::uint64_t in_flight = in_flight_bytes(rank);
  // PROTOCOL 6.3.2: A sender MUST NOT have more bytes in flight than the window, that which the peer offered or a
  //     larger one (6.3.7), but one packet always may be.
  const std::uint64_t window = peer.path_window.bytes();
  const std::uint64_t space = window > in_flight ? window - in_flight : 0;
  if (in_flight > 0) {
    // PROTOCOL 6.3.3: A sender SHOULD wait until a whole batch, or a quarter of the window, fits, rather than send
    //     short batches.
    // Only long batches are efficient: wait for a quarter of the window instead of sending short ones.
    const std::uint64_t worthwhile = std::min<std::uint64_t>(limit * datagram, window / 4);
    if (space < datagram || space < worthwhile) {
      peer.path_window.on_full();
      if (peer.window.on_no_space(shared_.counters)) {
        shared_.timers.set(shared_.peer_timer(rank), base::after(now, peer.rtt.timeout_ns(0)));
      }
      return 0;
    }
  }
  // One datagram at least, even into a window smaller than it.
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, std::min(limit, space / datagram)));
}

void FlowControl::on_sent(TimeNs now, std::uint16_t rank, std::uint64_t bytes) {
  Peer& peer = shared_.peers[rank];
  peer.pacer.on_sent(now, bytes, peer.rate->rate_bytes_per_second());
}

std::uint32_t FlowControl::on_timer(TimeNs now, std::uint16_t rank) {
  Peer& peer = shared_.peers[rank];
  if (!peer.up || peer.window.is_open()) return 0;  // pacing or classification was awaited: poll_transmit continues
  if (peer.work_head == kNil) {
    // No send waits for the window any more: the next send tests it again.
    peer.window.on_unwanted(shared_.counters);
    return 0;
  }
  // PROTOCOL 6.3.5: When the window has stayed full for a retransmission timeout (R1.1), the sender MUST send an
  //     ACK_ONLY probe of the transfer that is first in order, and repeat it after twice as long each time
  //     (window_stalls).
  shared_.counters.add(Counter::k_window_stalls);
  const std::uint32_t timeouts = peer.window.on_timeout(shared_.counters);
  shared_.timers.set(shared_.peer_timer(rank), base::after(now, peer.rtt.timeout_ns(timeouts)));
  return timeouts;
}

}  // namespace mlt::core
