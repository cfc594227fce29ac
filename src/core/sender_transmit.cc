// Output: batches of data, ABORT, and sends that wait at the limit of early data. Paper section 4.2.2. For how much may
// leave see flow_control.h, for the order send_order.h.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "core/sender.h"
#include "core/transfer_header.h"

namespace mlt::core {

namespace {

// Max sends that wait at a peer's early-data limit before the first probes of further ones are spread over time.
constexpr std::uint32_t kProbeAtOnce = 64;

}  // namespace

// The send reached the early-data limit: it probes, and other sends continue.
void Sender::wait_for_space(TimeNs now, SendState& state) {
  // The limit follows the window (6.4.6) and may be reached first: the window must grow all the same.
  shared_.peers[state.request.peer].path_window.on_full();
  order_.unlink(state);
  if (early_.wait(state) <= kProbeAtOnce) {
    probes_.schedule(state, true);
    return await_reply(now, state);
  }
  // Behind many other sends: its first probe waits for its turn, like a repeated one.
  state.probe_ns = base::after(now, repeat_after(state, 0));
  arm(state);
}

// The early data of the send has left the peer's early buffer: wakes the first sends that wait for space there.
void Sender::release_early(SendState& state) {
  if (early_.release(state)) wake_early(state.request.peer);
}

void Sender::wake_early(std::uint16_t rank) {
  early_.wake(rank, [this](SendState& woken) {
    woken.probe_ns = base::kNever;
    probes_.cancel(woken);
    arm(woken);
    order_.link(woken);
  });
}

bool Sender::fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run) {
  flow_.begin_poll();
  return order_.serve([&](std::uint16_t rank) { return fill_from_peer(now, rank, capabilities, run); });
}

bool Sender::fill_from_peer(TimeNs now, std::uint16_t rank, const TransmitCapabilities& capabilities,
                            base::DatagramRun& run) {
  Peer& peer = shared_.peers[rank];
  if (peer.classification_deferred || !flow_.may_send(now, rank, capabilities)) return false;
  while (peer.work_head != kNil) {
    SendState& state = sends_[peer.work_head];
    std::uint32_t limit = flow_.max_datagrams(now, rank, capabilities);
    if (limit == 0) return false;
    if (state.pending_count == 0) {  // parity takes no space in the peer's early buffer
      fill_parity(now, state, limit, run);
      return true;
    }
    if (!state.receiver_ready) limit = std::min(limit, early_.allowed(state));
    // PROTOCOL 6.4.2: At that limit a sender MUST send an ACK_ONLY probe and continue with the transfers behind.
    if (limit == 0) {
      wait_for_space(now, state);
      continue;
    }
    std::uint32_t segment = 0;
    if (!order_.next_segment(state, segment)) {
      order_.defer(now, rank);
      return false;
    }
    // The probe measures the path, so that any transfer may carry it.
    // RECOVERY R1.2.11: A sender whose rate is below line rate SHOULD send an ACK_ONLY probe with its data every 50 ms.
    if (peer.rate->base_sample_due(now)) probes_.schedule(state, true);
    fill_run(now, state, segment, limit, run);
    return true;
  }
  return false;
}

void Sender::fill_run(TimeNs now, SendState& state, std::uint32_t segment, std::uint32_t limit,
                      base::DatagramRun& run) {
  Peer& peer = shared_.peers[state.request.peer];
  // One, not 0: only the next reply acknowledges a trailing probe that arrived after STOP.
  if (peer.spray.packets_in_flight() <= 1) peer.rate->on_resumed();
  // RECOVERY R2.1.2: A sender MAY choose a path for every batch.
  const std::uint8_t path = peer.spray.choose(now, limit);

  const SegmentPriority first_priority = state.priority_of(segment);
  const std::uint8_t pass = state.pass;
  run.peer = state.request.peer;
  run.path = path;
  // PROTOCOL 13.1.2: The class decides the DSCP of its packets, by a map that hosts and switches share.
  run.dscp = shared_.config.dscp.data[first_priority.traffic_class()];
  run.ecn = first_priority.ecn();
  run.datagram_bytes = MLT_DATA_HEADER_BYTES + state.grid.length(segment);
  run.datagram_count = 0;
  run.slice_count = 0;
  run.total_bytes = 0;

  auto header = transfer_header<wire::DataHeader>(wire::PacketType::kData, state, peer.remote_cookie, path, now);
  // PROTOCOL 4.4.3: A sender MUST set REPAIR if, and only if, the packet belongs to a later round than the first.
  std::uint8_t common_flags = state.repair.round() > 0 || state.repaired_segments > 0 ? MLT_FLAG_REPAIR : 0;
  // PROTOCOL 4.4.2: It MUST set HAS_CRITICAL in every packet of a transfer if, and only if, some segment of the
  //     transfer is critical.
  if (state.critical_segments > 0) common_flags |= MLT_FLAG_HAS_CRITICAL;
  // PROTOCOL 4.4.6: A sender MUST set UNCONFIRMED in every packet of a transfer of which one was sent before anything
  //     had come from the peer, datagram or fallback frame, on this connection.
  state.unconfirmed = state.unconfirmed || !peer.heard;
  if (state.unconfirmed) common_flags |= MLT_FLAG_UNCONFIRMED;
  // PROTOCOL 4.4.5: A sender MUST set OVERTAKES in a packet whose class is more urgent than that of a packet of the
  //     transfer sent before, and in no other.
  if (first_priority.traffic_class() < state.last_class) {
    common_flags |= MLT_FLAG_OVERTAKES;
    state.overtakes = true;
  }

  // PROTOCOL 6.2.1: All packets of a batch MUST have the same peer, path, transfer, round, kind (6.1.1), DSCP and
  //     length; the last may be shorter.
  // One class, one ECN codepoint, one length (the last datagram may be shorter): the kernel can then segment the batch.
  while (run.datagram_count < limit) {
    const SegmentPriority priority = state.priority_of(segment);
    const std::uint32_t length = state.grid.length(segment);
    if (state.pass != pass || priority.traffic_class() != first_priority.traffic_class()) break;
    if (MLT_DATA_HEADER_BYTES + length > run.datagram_bytes) break;
    state.pending.clear(segment);
    --state.pending_count;
    state.repair.count_sent();
    parity_.on_segment(peer, state, segment);
    // PROTOCOL 4.4.4: Sequence numbers MUST count the packets and trailing probes to a peer on a path, over all
    //     transfers; the first is 1, and a repair gets a new one.
    header.prefix.sequence = peer.spray.next_sequence(path);
    header.prefix.flags = common_flags;
    if (priority.is_critical()) header.prefix.flags |= MLT_FLAG_CRITICAL;
    // PROTOCOL 6.5.2: With one path to the peer, the last packet of a round MUST carry END_OF_ROUND, which requests a
    //     reply as a probe does.
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

  state.last_class = std::max(state.last_class, first_priority.traffic_class());
  if (!state.receiver_ready) early_.count_sent(state, run.datagram_count);
  if (common_flags & MLT_FLAG_REPAIR) {
    state.repaired_segments += run.datagram_count;
    shared_.counters.add(Counter::k_segments_repaired, run.datagram_count);
  }
  shared_.counters.add(Counter::k_runs_sent);
  shared_.counters.add(Counter::k_data_packets_sent, run.datagram_count);
  shared_.counters.add(Counter::k_data_bytes_sent,
                       run.total_bytes - std::uint64_t{run.datagram_count} * MLT_DATA_HEADER_BYTES);
  on_run_filled(now, state, run, header.prefix.sequence);
}

// Of the paths with a packet of this round, those whose last packet may well be lost; bit mask.
std::uint32_t Sender::lossy_paths(const SendState& state) const {
  const Peer& peer = shared_.peers[state.request.peer];
  std::uint32_t lossy = 0;
  for (std::uint32_t left = state.round_paths; left != 0; left &= left - 1) {
    const auto path = static_cast<std::uint8_t>(std::countr_zero(left));
    // PROTOCOL 6.5.9: A sender SHOULD send a trailing probe after the last packet of a round on every path with a
    //     packet of the round that has lost one of its last few thousand packets, unless the receiver has sent
    //     NOT_POSTED and not READY since.
    // PROTOCOL 6.5.9: It SHOULD NOT where the path lost a tenth or more lately (the estimate of R2.2.2) and the newest
    //     round trip is not below T_low (R1.2.3).
    if (peer.spray.loses_some(path, peer.rate->is_queued())) lossy |= 1U << path;
  }
  return lossy;
}

void Sender::on_run_filled(TimeNs now, SendState& state, const base::DatagramRun& run, std::uint32_t last_sequence) {
  const std::uint8_t path = run.path;
  state.newest[path] = last_sequence;
  state.round_paths = static_cast<std::uint16_t>(state.round_paths | 1U << path);
  shared_.peers[state.request.peer].spray.sent(now, path, run.datagram_count);
  mtu_checks_.on_data_sent(now, run);
  flow_.on_sent(now, run.peer, run.total_bytes);
  const bool round_sent = state.is_round_sent();
  MLT_CHECK(state.machine.on(round_sent ? SendEvent::k_round_sent : SendEvent::k_run_sent, shared_.counters));
  if (!state.has_work()) order_.unlink(state);
  if (round_sent) {
    // PROTOCOL 6.5.3: After the last packet of a round a sender MUST send a PROBE if there are several paths, or if the
    //     transfer has critical segments, whose number only a probe carries.
    // END_OF_ROUND in the last packet acts as a probe, but only a PROBE carries the number of critical segments.
    if (state.critical_segments > 0 || shared_.config.paths > 1) probes_.schedule(state, false);
    // PROTOCOL 6.5.10: After a round with a packet that carries OVERTAKES a sender MUST send a trailing probe on every
    //     path with a packet of the transfer, as 6.5.8 says.
    probes_.schedule_trailing(state, state.overtakes ? ~0U : lossy_paths(state));
    state.round_paths = 0;
    state.overtakes = false;
    await_reply(now, state);
  }
}

namespace {

wire::AbortReason abort_reason(const SendState& state) {
  if (state.status == CompletionStatus::kPeerFailed) return {wire::AbortCause::kPathTooSmall, state.path_bytes};
  const bool timed_out = state.status == CompletionStatus::kTimedOut;
  return {timed_out ? wire::AbortCause::kTimedOut : wire::AbortCause::kCancelled, 0};
}

}  // namespace

bool Sender::fill_fallback(TimeNs now, ControlOutput& output) {
  if (!aborts_due_.empty()) {
    const std::uint32_t aborted = aborts_due_.first();
    aborts_due_.clear(aborted);
    const SendState& state = sends_[aborted];
    wire::Abort abort;
    abort.prefix.type = wire::PacketType::kAbort;
    abort.prefix.cookie = shared_.peers[state.request.peer].remote_cookie;
    abort.transfer = state.transfer();
    // PROTOCOL 8.1.8: ABORT MUST carry why the sender ended the transfer: cancelled, timed out, or by 18.1.5 or 18.1.6,
    //     with the largest payload that arrives.
    abort.reason = abort_reason(state);
    output.peer = state.request.peer;
    output.size = wire::encode_abort(abort, output.bytes);
    shared_.counters.add(Counter::k_aborts_sent);
    return true;
  }
  // After every ABORT: the peer must process ABORTs of a tag before its retirement.
  return tags_.fill_retirement(output) || probes_.fill_over_tcp(now, output);
}

}  // namespace mlt::core
