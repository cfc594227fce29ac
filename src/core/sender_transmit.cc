// What goes out: runs of data in send order, probes, and what is moved to the control connection.
#include <algorithm>
#include <bit>
#include <optional>

#include "base/check.h"
#include "core/sender.h"

namespace mlt::core {

namespace {

// Segments judged in one call (SendRequest::judge).
constexpr std::uint32_t kJudgedAtOnce = 64;
// Such calls in one poll_transmit(): with 2,048 segments at some 30 ns judging takes no longer than a run may last
// (Pacer::kRunNs), and a run of 64 is still found in one go where one segment of 32 is important.
constexpr std::uint32_t kBlocksJudged = 32;

std::uint32_t nonzero_timestamp(TimeNs now) {
  const auto low = static_cast<std::uint32_t>(now);
  // PROTOCOL 4.7.2: The timestamp is the low 32 bits of the sender's clock, and 1 where these are 0 ...
  return low == 0 ? 1 : low;
}

}  // namespace

// Front layers before back layers across tensors; the order of posting breaks ties.
void Sender::link_work(SendState& state) {
  if (state.in_work || state.pending_count == 0) return;
  Peer& peer = shared_.peers[state.request.peer];
  std::uint32_t* link = &peer.work_head;
  while (*link != kNil) {
    const SendState& other = states_[*link];
    // PROTOCOL 6.1.2: Of the transfers to a peer, that with the smallest order goes first (front layers before back
    //     layers), and of equal ones that posted first.
    if (state.request.order < other.request.order) break;
    if (state.request.order == other.request.order && state.post_number < other.post_number) break;
    link = &states_[*link].next_work;
  }
  state.next_work = *link;
  *link = slot_of(state);
  state.in_work = true;
  peers_with_work_.set(state.request.peer);
}

void Sender::unlink_work(SendState& state) {
  if (!state.in_work) return;
  Peer& peer = shared_.peers[state.request.peer];
  std::uint32_t* link = &peer.work_head;
  while (*link != slot_of(state)) link = &states_[*link].next_work;
  *link = state.next_work;
  state.next_work = kNil;
  state.in_work = false;
  if (peer.work_head == kNil) peers_with_work_.clear(state.request.peer);
}

std::uint64_t Sender::in_flight_bytes(std::uint16_t rank) const {
  const Peer& peer = shared_.peers[rank];
  return peer.spray.packets_in_flight() * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
}

// The first segment from the cursor on that belongs to the current pass, or past the last if there is none. Nothing if
// more would have to be judged than this call may: the cursor then stands where the search goes on.
std::optional<std::uint32_t> Sender::find_of_pass(SendState& state) {
  const std::uint32_t count = state.grid.count();
  auto i = static_cast<std::uint32_t>(state.pending.find_set(state.cursor));
  // With one tag for all, the pass decides for every segment at once.
  if (state.request.tags.empty()) return state.request.uniform_tag.pass() == state.pass ? i : count;
  // What the passes before left over belongs to the last.
  if (state.pass + 1 == kPasses) return i;
  for (; i < count; i = static_cast<std::uint32_t>(state.pending.find_set(i + 1))) {
    // A block: long enough to amortise the call and the wait for memory, short enough to be in the caches still.
    for (; state.judged <= i; state.judged += std::min(kJudgedAtOnce, count - state.judged)) {
      if (blocks_to_judge_ == 0) {
        state.cursor = i;
        return std::nullopt;
      }
      --blocks_to_judge_;
      state.request.judge(state.request.judge_context, state.judged, std::min(kJudgedAtOnce, count - state.judged));
    }
    if (state.request.tags[i].pass() == state.pass) break;
  }
  return i;
}

// The next segment in send order: critical, then important, then the rest. Leaves the cursor on it. False if none is
// left, or if it can't be told in this call.
bool Sender::next_segment(SendState& state, std::uint32_t& segment) {
  // PROTOCOL 6.1.1: Within a tensor, critical segments go first, then important ones, then the rest ...
  while (state.pass < kPasses) {
    const std::optional<std::uint32_t> found = find_of_pass(state);
    if (!found) return false;
    if (*found < state.grid.count()) {
      MLT_CHECK(*found < state.judged);
      segment = state.cursor = *found;
      return true;
    }
    ++state.pass;
    state.cursor = 0;
  }
  return false;
}

// What judging is left waits until the driver has looked at its input: the timer makes it come back at once.
void Sender::put_off_judging(TimeNs now, std::uint16_t rank) {
  MLT_CHECK(blocks_to_judge_ == 0);
  shared_.peers[rank].judging_put_off = true;
  shared_.timers.set(shared_.peer_timer(rank), base::after(now, 1));
}

// How many datagrams may leave now for this send: 0 if window or blindness forbid.
std::uint32_t Sender::datagrams_allowed(TimeNs now, std::uint16_t rank, const SendState& state,
                                        const TransmitCapabilities& capabilities) {
  Peer& peer = shared_.peers[rank];
  const std::uint32_t datagram = peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  std::uint64_t limit = std::min<std::uint64_t>(capabilities.max_run_segments, base::kMaxRunSegments);
  limit = std::min<std::uint64_t>(limit, capabilities.max_run_bytes / datagram);
  // PROTOCOL 6.2.2: A run has at most 64 packets and 65,507 bytes, and no more than the current rate sends in 100 us,
  //     but one packet at least.
  limit = std::min(limit, Pacer::run_bytes(peer.rate->rate_bytes_per_second()) / datagram);
  limit = std::max<std::uint64_t>(limit, 1);
  const std::uint64_t in_flight = in_flight_bytes(rank);
  // PROTOCOL 6.3.2: A sender MUST NOT have more bytes in flight than the window that the peer offered, but one packet
  //     always may be.
  const std::uint64_t room = peer.window_bytes > in_flight ? peer.window_bytes - in_flight : 0;
  if (in_flight > 0) {
    // PROTOCOL 6.3.3: A sender SHOULD wait until a whole run, or a quarter of the window, fits, rather than send short
    //     runs.
    // Runs are cheap only when they are long: wait for a quarter of the window rather than dribble.
    const std::uint64_t worthwhile = std::min<std::uint64_t>(limit * datagram, peer.window_bytes / 4);
    if (room < datagram || room < worthwhile) {
      if (!peer.window_blocked) {
        peer.window_blocked = true;
        shared_.timers.set(shared_.peer_timer(rank), base::after(now, peer.rtt.timeout_ns(peer.stall_repeats)));
      }
      return 0;
    }
  }
  // One datagram at least, even into a window that is smaller than it.
  limit = std::max<std::uint64_t>(1, std::min(limit, room / datagram));
  if (!state.receiver_ready) {
    // What the peer has promised to keep, over all transfers: beyond it a network without faults would lose.
    // PROTOCOL 6.4.1: As long as receives are not known to be posted, a sender MUST NOT send more segments for them,
    //     over all transfers to the peer, than the early segments that it offered ...
    const std::uint32_t blind = std::max<std::uint32_t>(peer.early_segments, 1);
    // PROTOCOL 6.4.1: nor of more transfers than its early transfers
    if (state.blind_segments == 0 && peer.blind_transfers >= std::max<std::uint32_t>(peer.early_transfers, 1)) return 0;
    if (peer.blind_segments >= blind) return 0;
    limit = std::min<std::uint64_t>(limit, blind - peer.blind_segments);
  }
  return static_cast<std::uint32_t>(limit);
}

bool Sender::fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run) {
  const std::uint16_t peers = shared_.config.peers;
  const std::uint16_t first = next_peer_;
  blocks_to_judge_ = kBlocksJudged;
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
    const bool may_judge = blocks_to_judge_ > 0;
    if (fill_from_peer(now, static_cast<std::uint16_t>(rank), capabilities, run)) {
      // PROTOCOL 6.1.3: Peers take turns, a run each.
      next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
      return true;
    }
    // So do they in having their segments judged: who found none within the call's limit comes last in the next.
    if (may_judge && blocks_to_judge_ == 0) next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
    rank = peers_with_work_.find_set(rank + 1);
  }
}

bool Sender::fill_from_peer(TimeNs now, std::uint16_t rank, const TransmitCapabilities& capabilities,
                            base::DatagramRun& run) {
  Peer& peer = shared_.peers[rank];
  if (peer.window_blocked || peer.judging_put_off) return false;
  if (!peer.pacer.may_send(now)) {
    shared_.timers.set(shared_.peer_timer(rank), peer.pacer.next_ns());
    return false;
  }
  for (std::uint32_t slot = peer.work_head; slot != kNil;) {
    SendState& state = states_[slot];
    slot = state.next_work;
    const std::uint32_t limit = datagrams_allowed(now, rank, state, capabilities);
    if (peer.window_blocked) return false;
    // PROTOCOL 6.4.2: At that limit it sends an ACK_ONLY probe and lets the transfers behind go on.
    if (limit == 0) {  // sent all it may send blindly: ask, and let others go on
      unlink_work(state);
      ask(state, true);
      await_answer(now, state);
      continue;
    }
    std::uint32_t segment = 0;
    if (!next_segment(state, segment)) {
      put_off_judging(now, rank);
      return false;
    }
    // Any transfer may carry the question, which is about the path.
    // PROTOCOL 11.2.11: A sender whose rate is below line rate SHOULD send an ACK_ONLY probe with its data every 50 ms;
    //     the network time of its answer, which overtook the data, lowers base if it is smaller ...
    if (peer.rate->base_sample_due(now)) ask(state, true);
    fill_run(now, state, segment, limit, run);
    return true;
  }
  return false;
}

void Sender::fill_run(TimeNs now, SendState& state, std::uint32_t segment, std::uint32_t limit,
                      base::DatagramRun& run) {
  Peer& peer = shared_.peers[state.request.peer];
  if (peer.spray.packets_in_flight() == 0) peer.rate->on_resumed();
  // PROTOCOL 12.1.2: A sender MAY choose a path for every run ...
  const std::uint8_t path = peer.spray.choose(now, limit);

  const SegmentTag first_tag = state.tag_of(segment);
  const std::uint8_t pass = state.pass;
  run.peer = state.request.peer;
  run.path = path;
  // PROTOCOL 13.1.2: The class decides the DSCP of its packets, by a map that hosts and switches share ...
  run.dscp = shared_.config.dscp.data[first_tag.traffic_class()];
  run.ecn = first_tag.ecn();
  run.datagram_bytes = MLT_DATA_HEADER_BYTES + state.grid.length(segment);
  run.datagram_count = 0;
  run.slice_count = 0;
  run.total_bytes = 0;

  wire::DataHeader header;
  header.prefix.type = wire::PacketType::kData;
  header.prefix.path = path;
  header.prefix.element = state.request.element;
  header.prefix.round = state.round;
  header.prefix.cookie = peer.remote_cookie;
  header.tag = state.request.tag;
  header.generation = state.generation;
  header.total_bytes = state.grid.total_bytes();
  header.timestamp_ns = static_cast<std::uint32_t>(now);
  // PROTOCOL 4.4.3: REPAIR says that the packet belongs to a later round than the first.
  std::uint8_t common_flags = state.round > 0 || state.repaired_segments > 0 ? MLT_FLAG_REPAIR : 0;
  // PROTOCOL 4.4.2: HAS_CRITICAL, in every packet of a transfer, that some segment of it is
  if (state.critical_segments > 0) common_flags |= MLT_FLAG_HAS_CRITICAL;

  // PROTOCOL 6.2.1: All packets of a run MUST have the same peer, path, transfer, round, kind (6.1.1), DSCP and length;
  //     the last may be shorter.
  // One class, one mark, one length (the last datagram may be shorter): then the kernel cuts the run for us.
  while (run.datagram_count < limit) {
    const SegmentTag tag = state.tag_of(segment);
    const std::uint32_t length = state.grid.length(segment);
    if (state.pass != pass || tag.traffic_class() != first_tag.traffic_class()) break;
    if (MLT_DATA_HEADER_BYTES + length > run.datagram_bytes) break;
    state.pending.clear(segment);
    --state.pending_count;
    // PROTOCOL 4.4.4: Sequence numbers count the packets and trailing probes to a peer on a path, over all transfers;
    //     the first is 1, and a repair gets a new one.
    header.prefix.sequence = peer.spray.next_sequence(path);
    header.prefix.flags = common_flags;
    if (tag.is_critical()) header.prefix.flags |= MLT_FLAG_CRITICAL;
    // PROTOCOL 6.5.2: With one path to the peer, the last packet of a round MUST carry END_OF_ROUND ...
    // Seen on one path the marker says nothing about the others: with several, a probe names the newest packet of each.
    if (state.pending_count == 0 && shared_.config.paths == 1) header.prefix.flags |= MLT_FLAG_END_OF_ROUND;
    header.offset_bytes = state.grid.offset(segment);
    std::byte* at = run.scratch.data() + std::size_t{run.datagram_count} * MLT_DATA_HEADER_BYTES;
    wire::encode_data_header(header, at);
    run.slices[run.slice_count++] = {at, MLT_DATA_HEADER_BYTES};
    if (length > 0) run.slices[run.slice_count++] = {state.request.data.data() + header.offset_bytes, length};
    run.total_bytes += MLT_DATA_HEADER_BYTES + length;
    ++run.datagram_count;
    if (state.pending_count == 0 || MLT_DATA_HEADER_BYTES + length < run.datagram_bytes) break;
    if (!next_segment(state, segment)) {
      put_off_judging(now, state.request.peer);
      break;
    }
  }

  state.newest[path] = header.prefix.sequence;
  state.last_class = std::max(state.last_class, first_tag.traffic_class());
  peer.spray.sent(now, path, run.datagram_count);
  peer.pacer.on_sent(now, run.total_bytes, peer.rate->rate_bytes_per_second());
  if (!state.receiver_ready) {
    if (state.blind_segments == 0) ++peer.blind_transfers;
    state.blind_segments += run.datagram_count;
    peer.blind_segments += run.datagram_count;
  }
  if (common_flags & MLT_FLAG_REPAIR) {
    state.repaired_segments += run.datagram_count;
    shared_.counters.add(Counter::k_segments_repaired, run.datagram_count);
  }
  shared_.counters.add(Counter::k_runs_sent);
  shared_.counters.add(Counter::k_data_packets_sent, run.datagram_count);
  shared_.counters.add(Counter::k_data_bytes_sent,
                       run.total_bytes - std::uint64_t{run.datagram_count} * MLT_DATA_HEADER_BYTES);
  const bool round_sent = state.pending_count == 0;
  MLT_CHECK(state.machine.on(round_sent ? SendEvent::k_round_sent : SendEvent::k_run_sent, shared_.counters));
  if (round_sent) {
    unlink_work(state);
    // PROTOCOL 6.5.3: After the last packet of a round a sender MUST send a PROBE if there are several paths, or if the
    //     transfer has critical segments, whose number only a probe tells.
    // The marker in the last packet asks already. Critical segments need their number told, which only a probe does.
    if (state.critical_segments > 0 || shared_.config.paths > 1) ask(state, false);
    // PROTOCOL 6.5.9: With one path to the peer, that has lost one of its last few thousand packets ... the last packet
    //     of a round SHOULD be followed by a trailing probe ...
    if (shared_.config.paths == 1 && peer.spray.loses(path)) ask_behind_data(state);
    await_answer(now, state);
  }
}

// A question that stayed unanswered is repeated over another path: this one may be dead, there or back.
std::uint8_t Sender::probe_path(TimeNs now, SendState& state) {
  PathSpray& spray = shared_.peers[state.request.peer].spray;
  // PROTOCOL 12.4.2: A probe that repeats an unanswered one MUST take another path, as long as there is another that is
  //     not silent; the path that failed is not asked over again for 100 ms, twice as long each time, up to 3.2 s.
  if (state.question_out) spray.try_another_control_path(now);
  state.question_out = true;
  return spray.control_path();
}

std::size_t Sender::encode_probe_of(TimeNs now, SendState& state, std::uint8_t trailing_path, std::byte* out) {
  Peer& peer = shared_.peers[state.request.peer];
  wire::Probe probe;
  probe.prefix.type = wire::PacketType::kProbe;
  probe.prefix.path = peer.spray.control_path();  // answers come back on it
  probe.prefix.element = state.request.element;
  probe.prefix.round = state.round;
  probe.prefix.cookie = peer.remote_cookie;
  if (trailing_path != kNoPath) {
    // PROTOCOL 4.7.5: TRAILING says that the probe travels behind the data ...
    probe.prefix.flags |= MLT_PROBE_FLAG_TRAILING;
    probe.prefix.path = trailing_path;
    probe.prefix.sequence = peer.spray.next_sequence(trailing_path);
    peer.spray.sent(now, trailing_path, 1);
  }
  // PROTOCOL 4.7.3: ACK_ONLY says that the round is not over ...
  // A trailing one follows the round's last packet, even if a measurement (11.2.11) is due at the same time.
  if (state.probe_ack_only && trailing_path == kNoPath) probe.prefix.flags |= MLT_PROBE_FLAG_ACK_ONLY;
  // PROTOCOL 4.7.4: CRITICAL says that the number of critical segments is not zero.
  if (state.critical_segments > 0) probe.prefix.flags |= MLT_PROBE_FLAG_CRITICAL;
  probe.transfer = state.transfer();
  probe.total_bytes = state.grid.total_bytes();
  probe.critical_segments = state.critical_segments;
  probe.timestamp_ns = nonzero_timestamp(now);
  // PROTOCOL 4.7.1: for each path the sequence number of the transfer's newest packet there, 0 if there is none that
  //     may still arrive
  probe.path_count = shared_.config.paths;
  for (std::uint8_t path = 0; path < probe.path_count; ++path) {
    probe.last_sequence[path] = peer.spray.expected_sequence(path, state.newest[path]);
  }
  if (state.probe_ack_only && peer.window_blocked && peer.stall_repeats > 0 && peer.stall_probe_ns == base::kNever) {
    peer.stall_probe_ns = now;
  }
  shared_.counters.add(Counter::k_probes_sent);
  return wire::encode_probe(probe, out);
}

bool Sender::fill_probe(TimeNs now, base::DatagramRun& run) {
  const std::size_t slot = probes_due_.find_set(0);
  if (slot >= states_.size()) return false;
  SendState& state = states_[slot];
  std::uint8_t trailing_path = kNoPath;
  if (state.trailing_paths != 0) {
    trailing_path = static_cast<std::uint8_t>(std::countr_zero(state.trailing_paths));
    state.trailing_paths &= state.trailing_paths - 1;
    if (state.trailing_paths == 0 && !state.probe_due) probes_due_.clear(slot);
    run.path = trailing_path;
    run.dscp = shared_.config.dscp.data[state.last_class];
  } else {
    probes_due_.clear(slot);
    state.probe_due = false;
    run.path = probe_path(now, state);
    // PROTOCOL 4.1.3: A control datagram, but for a trailing probe (4.7.5), MUST be sent in the control class,
    //     ECN-capable (ECT(0)), and alone in its run.
    run.dscp = shared_.config.dscp.control;
  }
  const std::size_t size = encode_probe_of(now, state, trailing_path, run.scratch.data());
  run.peer = state.request.peer;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 1;
  run.slice_count = 1;
  run.slices[0] = {run.scratch.data(), size};
  run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
  return true;
}

bool Sender::fill_backstop(TimeNs now, ControlOutput& output) {
  if (const Reply* due = aborts_.front()) {
    wire::Abort abort;
    abort.prefix.type = wire::PacketType::kAbort;
    abort.prefix.cookie = shared_.peers[due->peer].remote_cookie;
    abort.transfer = due->transfer;
    output.peer = due->peer;
    output.size = wire::encode_abort(abort, output.bytes);
    aborts_.pop();
    shared_.counters.add(Counter::k_aborts_sent);
    return true;
  }
  const std::size_t slot = backstops_due_.find_set(0);
  if (slot >= states_.size()) return false;
  backstops_due_.clear(slot);
  SendState& state = states_[slot];
  output.peer = state.request.peer;
  output.size = encode_probe_of(now, state, kNoPath, output.bytes);
  shared_.counters.add(Counter::k_backstop_messages_sent);
  return true;
}

}  // namespace mlt::core
