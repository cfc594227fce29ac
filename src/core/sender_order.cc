// Selects what to send next: the peer, its transfer, the segments and their number. Paper section 4.2.2.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "core/sender.h"

namespace mlt::core {

namespace {

// Segments classified in one call (SendRequest::classify).
constexpr std::uint32_t kClassifiedAtOnce = 64;
// Max such calls in one poll_transmit(). At some 30 ns per segment, 2,048 segments take no longer than the max length
// of a batch (Pacer::kRunNs). One poll still fills a batch of 64 if one segment of 32 is important.
constexpr std::uint32_t kBlocksClassified = 32;
// Max sends that wait at a peer's early-data limit before the first probes of further ones are spread over time.
constexpr std::uint32_t kProbeAtOnce = 64;

}  // namespace

// Front layers before back layers across tensors; ties in the order of posting.
void Sender::link_work(SendState& state) {
  if (state.in_work || state.pending_count == 0) return;
  SendQueue(sends_, shared_.peers[state.request.peer].work_head).push(sends_.slot_of(state));
  state.in_work = true;
  peers_with_work_.set(state.request.peer);
}

void Sender::unlink_work(SendState& state) {
  if (!state.in_work) return;
  Peer& peer = shared_.peers[state.request.peer];
  SendQueue(sends_, peer.work_head).erase(sends_.slot_of(state));
  state.in_work = false;
  if (peer.work_head == kNil) peers_with_work_.clear(state.request.peer);
}

// Takes the segments that have become ready since the last call.
void Sender::take_feeds() {
  for (std::uint32_t at = fed_count_; at-- > 0;) {
    SendState& state = sends_[fed_[at]];
    SendFeed& feed = *state.request.feed;
    if (feed.fresh_count == 0) continue;
    MLT_CHECK(feed.fresh_count <= state.withheld);
    for (std::size_t w = 0; w < base::words_for_bits(feed.fresh.size()); ++w) {
      state.pending.words()[w] |= std::exchange(feed.fresh.words()[w], 0);
    }
    state.withheld -= feed.fresh_count;
    state.pending_count += std::exchange(feed.fresh_count, 0);
    state.restart_passes();
    if (!state.waits_blind) link_work(state);
    if (state.withheld == 0) end_feed(state);
  }
}

void Sender::end_feed(const SendState& state) {
  if (state.request.feed == nullptr) return;
  const auto fed = std::span(fed_).first(fed_count_);
  const auto at = std::ranges::find(fed, sends_.slot_of(state));
  if (at != fed.end()) *at = fed[--fed_count_];
}

std::uint64_t Sender::in_flight_bytes(std::uint16_t rank) const {
  const Peer& peer = shared_.peers[rank];
  return peer.spray.packets_in_flight() * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
}

// The first segment from the cursor on that belongs to the current pass, or the segment count if none does. Empty if
// the call's classification budget is used up; the cursor then marks where the search resumes.
std::optional<std::uint32_t> Sender::find_of_pass(SendState& state) {
  const std::uint32_t count = state.grid.count();
  auto i = static_cast<std::uint32_t>(state.pending.find_set(state.cursor));
  // With one tag for all segments, all belong to the same pass.
  if (state.request.tags.empty()) return state.request.uniform_tag.pass() == state.pass ? i : count;
  // The last pass takes all segments that the earlier passes left.
  if (state.pass + 1 == kPasses) return i;
  for (; i < count; i = static_cast<std::uint32_t>(state.pending.find_set(i + 1))) {
    // Block size: long enough to amortise the call and memory latency, short enough to stay in the caches.
    for (; state.classified <= i; state.classified += std::min(kClassifiedAtOnce, count - state.classified)) {
      if (blocks_to_classify_ == 0) {
        state.cursor = i;
        return std::nullopt;
      }
      --blocks_to_classify_;
      state.request.classify(state.request.classify_context, state.classified,
                             std::min(kClassifiedAtOnce, count - state.classified));
    }
    if (state.request.tags[i].pass() == state.pass) break;
  }
  return i;
}

// The next segment in send order: critical, then important, then the rest. Leaves the cursor on it. False if none is
// left, or if the classification budget is used up.
bool Sender::next_segment(SendState& state, std::uint32_t& segment) {
  // PROTOCOL 6.1.1: Within a tensor, a sender MUST send critical segments first, then important ones, then the rest;
  //     each kind by offset.
  while (state.pass < kPasses) {
    const std::optional<std::uint32_t> found = find_of_pass(state);
    if (!found) return false;
    if (*found < state.grid.count()) {
      MLT_CHECK(*found < state.classified);
      segment = state.cursor = *found;
      return true;
    }
    ++state.pass;
    state.cursor = 0;
  }
  return false;
}

// Defers remaining classification until the driver has checked its input: the timer makes it return at once.
void Sender::defer_classification(TimeNs now, std::uint16_t rank) {
  MLT_CHECK(blocks_to_classify_ == 0);
  shared_.peers[rank].classification_deferred = true;
  shared_.timers.set(shared_.peer_timer(rank), base::after(now, 1));
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

bool Sender::fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run) {
  take_feeds();
  const std::uint16_t peers = shared_.config.peers;
  const std::uint16_t first = next_peer_;
  blocks_to_classify_ = kBlocksClassified;
  std::size_t rank = peers_with_work_.find_set(first);
  bool wrapped = false;
  while (true) {
    if (rank >= peers) {
      if (wrapped) return false;
      wrapped = true;
      rank = peers_with_work_.find_set(0);
      if (rank >= first) return false;
    }
    if (wrapped && rank >= first) return false;
    const bool may_classify = blocks_to_classify_ > 0;
    if (fill_from_peer(now, static_cast<std::uint16_t>(rank), capabilities, run)) {
      // PROTOCOL 6.1.3: A sender MUST serve its peers in turn, a run each.
      next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
      return true;
    }
    // A peer that uses up the call's classification budget goes last in the next.
    if (may_classify && blocks_to_classify_ == 0) next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
    rank = peers_with_work_.find_set(rank + 1);
  }
}

// The send reached the early-data limit: it probes, and other sends continue.
void Sender::wait_blind(TimeNs now, SendState& state) {
  Peer& peer = shared_.peers[state.request.peer];
  unlink_work(state);
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
    link_work(state);
  }
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
    if (!next_segment(state, segment)) {
      defer_classification(now, rank);
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
