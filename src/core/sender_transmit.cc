// Output: batches of data, probes, and control-class packets for the TCP fallback. For their order see send_order.h.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "core/sender.h"

namespace mlt::core {

namespace {

std::uint32_t nonzero_timestamp(TimeNs now) {
  const auto low = static_cast<std::uint32_t>(now);
  // PROTOCOL 4.7.2: The timestamp MUST be the low 32 bits of the sender's clock, and 1 where these are 0: in answers 0
  //     means "no probe".
  return low == 0 ? 1 : low;
}

}  // namespace

void Sender::fill_run(TimeNs now, SendState& state, std::uint32_t segment, std::uint32_t limit,
                      base::DatagramRun& run) {
  Peer& peer = shared_.peers[state.request.peer];
  // One, not 0: only the next reply acknowledges a trailing probe that arrived after STOP.
  if (peer.spray.packets_in_flight() <= 1) peer.rate->on_resumed();
  // RECOVERY R2.1.2: A sender MAY choose a path for every run.
  const std::uint8_t path = peer.spray.choose(now, limit);

  const SegmentTag first_tag = state.tag_of(segment);
  const std::uint8_t pass = state.pass;
  run.peer = state.request.peer;
  run.path = path;
  // PROTOCOL 13.1.2: The class decides the DSCP of its packets, by a map that hosts and switches share.
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
  header.prefix.round = state.repair.round();
  header.prefix.cookie = peer.remote_cookie;
  header.tag = state.request.tag;
  header.generation = state.generation;
  header.total_bytes = state.grid.total_bytes();
  header.timestamp_ns = static_cast<std::uint32_t>(now);
  // PROTOCOL 4.4.3: A sender MUST set REPAIR if, and only if, the packet belongs to a later round than the first.
  std::uint8_t common_flags = state.repair.round() > 0 || state.repaired_segments > 0 ? MLT_FLAG_REPAIR : 0;
  // PROTOCOL 4.4.2: It MUST set HAS_CRITICAL in every packet of a transfer if, and only if, some segment of the
  //     transfer is critical.
  if (state.critical_segments > 0) common_flags |= MLT_FLAG_HAS_CRITICAL;
  // PROTOCOL 4.4.6: A sender MUST set UNCONFIRMED in every packet of a transfer of which one was sent before anything
  //     had come from the peer, datagram or backstop message, on this connection.
  state.unconfirmed = state.unconfirmed || !peer.heard;
  if (state.unconfirmed) common_flags |= MLT_FLAG_UNCONFIRMED;
  // PROTOCOL 4.4.5: A sender MUST set OVERTAKES in a packet whose class is more urgent than that of a packet of the
  //     transfer sent before, and in no other.
  if (first_tag.traffic_class() < state.last_class) {
    common_flags |= MLT_FLAG_OVERTAKES;
    state.overtakes = true;
  }

  // PROTOCOL 6.2.1: All packets of a run MUST have the same peer, path, transfer, round, kind (6.1.1), DSCP and length;
  //     the last may be shorter.
  // One class, one ECN codepoint, one length (the last datagram may be shorter): the kernel can then segment the batch.
  while (run.datagram_count < limit) {
    const SegmentTag tag = state.tag_of(segment);
    const std::uint32_t length = state.grid.length(segment);
    if (state.pass != pass || tag.traffic_class() != first_tag.traffic_class()) break;
    if (MLT_DATA_HEADER_BYTES + length > run.datagram_bytes) break;
    state.pending.clear(segment);
    --state.pending_count;
    state.repair.count_sent();
    // PROTOCOL 4.4.4: Sequence numbers MUST count the packets and trailing probes to a peer on a path, over all
    //     transfers; the first is 1, and a repair gets a new one.
    header.prefix.sequence = peer.spray.next_sequence(path);
    header.prefix.flags = common_flags;
    if (tag.is_critical()) header.prefix.flags |= MLT_FLAG_CRITICAL;
    // PROTOCOL 6.5.2: With one path to the peer, the last packet of a round MUST carry END_OF_ROUND: it asks like a
    //     probe.
    // With several paths END_OF_ROUND says nothing about the others: a probe names the newest packet of each.
    if (state.is_round_sent() && shared_.config.paths == 1) header.prefix.flags |= MLT_FLAG_END_OF_ROUND;
    header.offset_bytes = state.grid.offset(segment);
    std::byte* at = run.scratch.data() + std::size_t{run.datagram_count} * MLT_DATA_HEADER_BYTES;
    wire::encode_data_header(header, at);
    run.slices[run.slice_count++] = {at, MLT_DATA_HEADER_BYTES};
    if (length > 0) run.slices[run.slice_count++] = {state.request.data.data() + header.offset_bytes, length};
    run.total_bytes += MLT_DATA_HEADER_BYTES + length;
    ++run.datagram_count;
    if (state.pending_count == 0 || MLT_DATA_HEADER_BYTES + length < run.datagram_bytes) break;
    if (!order_.next_segment(state, segment)) {
      order_.defer(now, state.request.peer);
      break;
    }
  }

  state.newest[path] = header.prefix.sequence;
  state.last_class = std::max(state.last_class, first_tag.traffic_class());
  peer.spray.sent(now, path, run.datagram_count);
  mtu_checks_.on_data_sent(now, run);
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
  const bool round_sent = state.is_round_sent();
  MLT_CHECK(state.machine.on(round_sent ? SendEvent::k_round_sent : SendEvent::k_run_sent, shared_.counters));
  if (state.pending_count == 0) order_.unlink(state);
  if (round_sent) {
    // PROTOCOL 6.5.3: After the last packet of a round a sender MUST send a PROBE if there are several paths, or if the
    //     transfer has critical segments, whose number only a probe tells.
    // END_OF_ROUND in the last packet acts as a probe, but only a PROBE carries the number of critical segments.
    if (state.critical_segments > 0 || shared_.config.paths > 1) schedule_probe(state, false);
    // PROTOCOL 6.5.9: With one path to the peer, that has lost one of its last few thousand packets, but less than a
    //     tenth lately (the estimate of R2.2.2 is above 0 and below 0.1), a sender SHOULD send a trailing probe after
    //     the last packet of a round, unless the receiver has said NOT_POSTED and not READY since.
    // PROTOCOL 6.5.10: After a round with a packet that carries OVERTAKES a sender MUST send a trailing probe on every
    //     path with a packet of the transfer, as 6.5.8 says.
    if (state.overtakes || (shared_.config.paths == 1 && peer.spray.loses_some(path))) schedule_trailing_probes(state);
    state.overtakes = false;
    await_reply(now, state);
  }
}

// Repeats an unanswered probe over another path: this one may have failed in either direction.
std::uint8_t Sender::probe_path(TimeNs now, SendState& state) {
  PathSpray& spray = shared_.peers[state.request.peer].spray;
  // RECOVERY R2.4.2: A probe that repeats an unanswered one MUST take another path, as long as there is another that is
  //     not silent. A sender SHOULD NOT probe on the path that failed for 100 ms, twice as long each time, up to 3.2 s.
  if (state.probe.send(shared_.counters)) spray.try_another_control_path(now);
  return spray.control_path();
}

std::size_t Sender::encode_probe_of(TimeNs now, SendState& state, std::uint8_t trailing_path, std::byte* out) {
  Peer& peer = shared_.peers[state.request.peer];
  wire::Probe probe;
  probe.prefix.type = wire::PacketType::kProbe;
  probe.prefix.path = peer.spray.control_path();  // replies return on it
  probe.prefix.element = state.request.element;
  probe.prefix.round = state.repair.round();
  probe.prefix.cookie = peer.remote_cookie;
  if (trailing_path != kNoPath) {
    // PROTOCOL 4.7.5: A sender MUST set TRAILING in a probe that travels behind the data: on the path that its prefix
    //     names, ECN-capable, in the least urgent class of the transfer's packets, with a sequence number of its own
    //     there.
    probe.prefix.flags |= MLT_PROBE_FLAG_TRAILING;
    probe.prefix.path = trailing_path;
    probe.prefix.sequence = peer.spray.next_sequence(trailing_path);
    peer.spray.sent(now, trailing_path, 1);
    mtu_checks_.on_trailing_probe_sent(state.request.peer, trailing_path);
  }
  // PROTOCOL 4.7.3: A sender MUST set ACK_ONLY in a probe of a round that is not over (6.5.6): the probe asks whether
  //     the receive is posted, or what has arrived.
  // A trailing probe follows the round's last packet, even if a measurement (R1.2.11) is due at the same time.
  const bool is_ack_only = state.probe.is_ack_only() && trailing_path == kNoPath;
  if (is_ack_only) probe.prefix.flags |= MLT_PROBE_FLAG_ACK_ONLY;
  // PROTOCOL 4.7.4: A sender MUST set CRITICAL if, and only if, the number of critical segments is not zero.
  if (state.critical_segments > 0) probe.prefix.flags |= MLT_PROBE_FLAG_CRITICAL;
  probe.transfer = state.transfer();
  probe.total_bytes = state.grid.total_bytes();
  probe.critical_segments = state.critical_segments;
  probe.timestamp_ns = nonzero_timestamp(now);
  // PROTOCOL 4.7.1: A PROBE MUST carry the transfer's size, element type and number of critical segments, and for each
  //     path the sequence number of the transfer's newest packet there, 0 if there is none.
  probe.path_count = shared_.config.paths;
  for (std::uint8_t path = 0; path < probe.path_count; ++path) {
    probe.last_sequence[path] = state.newest[path];
    // PROTOCOL 4.7.6: Paths given up, 16 bits, MUST have bit i set for each path i with a packet of the transfer that
    //     is silent while another path is not (R2.3.2): the sender sends nothing more of it there, and waits for
    //     nothing.
    if (state.newest[path] != 0 && peer.spray.is_given_up(path)) {
      probe.given_up_paths = static_cast<std::uint16_t>(probe.given_up_paths | 1U << path);
    }
  }
  if (is_ack_only) peer.window.on_probe_sent(now, shared_.counters);
  shared_.counters.add(Counter::k_probes_sent);
  return wire::encode_probe(probe, out);
}

bool Sender::fill_probe(TimeNs now, base::DatagramRun& run) {
  if (probes_due_.empty()) return false;
  const std::uint32_t slot = probes_due_.first();
  SendState& state = sends_[slot];
  std::uint8_t trailing_path = kNoPath;
  if (state.probe.has_trailing()) {
    trailing_path = state.probe.take_trailing_path();
    if (!state.probe.has_trailing() && !state.probe.is_due()) probes_due_.clear(slot);
    run.path = trailing_path;
    run.dscp = shared_.config.dscp.data[state.last_class];
  } else {
    probes_due_.clear(slot);
    run.path = probe_path(now, state);
    // PROTOCOL 4.1.3: An endpoint MUST send a control datagram, but for a trailing probe (4.7.5), in the control class,
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
  if (!aborts_due_.empty()) {
    const std::uint32_t given_up = aborts_due_.first();
    aborts_due_.clear(given_up);
    const SendState& state = sends_[given_up];
    wire::Abort abort;
    abort.prefix.type = wire::PacketType::kAbort;
    abort.prefix.cookie = shared_.peers[state.request.peer].remote_cookie;
    abort.transfer = state.transfer();
    output.peer = state.request.peer;
    output.size = wire::encode_abort(abort, output.bytes);
    shared_.counters.add(Counter::k_aborts_sent);
    return true;
  }
  // After every ABORT: the peer must process ABORTs of a tag before its retirement.
  if (tags_.fill_retirement(output)) return true;
  if (backstops_due_.empty()) return false;
  const std::uint32_t slot = backstops_due_.first();
  backstops_due_.clear(slot);
  SendState& state = sends_[slot];
  output.peer = state.request.peer;
  output.size = encode_probe_of(now, state, kNoPath, output.bytes);
  shared_.counters.add(Counter::k_backstop_messages_sent);
  return true;
}

}  // namespace mlt::core
