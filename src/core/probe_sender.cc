#include "core/probe_sender.h"

#include "core/path_spray.h"

namespace mlt::core {

namespace {

std::uint32_t nonzero_timestamp(TimeNs now) {
  const auto low = static_cast<std::uint32_t>(now);
  // PROTOCOL 4.7.2: The timestamp MUST be the low 32 bits of the sender's clock, and 1 where these are 0: in replies 0
  //     means "no probe".
  return low == 0 ? 1 : low;
}

}  // namespace

ProbeSender::ProbeSender(Shared& shared, TransferSlots<SendState>& sends, MtuChecks& mtu_checks)
    : shared_(shared),
      sends_(sends),
      mtu_checks_(mtu_checks),
      due_(shared.config.max_sends),
      over_tcp_due_(shared.config.max_sends) {}

void ProbeSender::schedule(SendState& state, bool ack_only) {
  // PROTOCOL 6.5.6: A probe that is sent while segments of the round are left MUST be ACK_ONLY.
  state.probe.schedule(ack_only, shared_.counters);
  due_.set(sends_.slot_of(state));
}

void ProbeSender::schedule_trailing(SendState& state, std::uint32_t among) {
  // Before the receive is posted they prove nothing: the receiver may have dropped the segments for lack of space.
  if (among == 0 || state.probe.is_not_posted()) return;
  const PathSpray& spray = shared_.peers[state.request.peer].spray;
  std::uint32_t paths = 0;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    if (state.newest[path] != 0 && !spray.is_excluded(path)) paths |= 1U << path;
  }
  paths &= among;
  state.probe.schedule_trailing(paths);
  if (paths != 0) due_.set(sends_.slot_of(state));
}

void ProbeSender::cancel(SendState& state) {
  state.probe.cancel(shared_.counters);
  due_.clear(sends_.slot_of(state));
}

void ProbeSender::forget(const SendState& state) {
  due_.clear(sends_.slot_of(state));
  over_tcp_due_.clear(sends_.slot_of(state));
}

// Repeats an unanswered probe over another path: this one may have failed in either direction.
std::uint8_t ProbeSender::path_of(TimeNs now, SendState& state) {
  PathSpray& spray = shared_.peers[state.request.peer].spray;
  // RECOVERY R2.4.2: A probe that repeats an unanswered one MUST take another path, as long as there is another that is
  //     not suspended. A sender SHOULD NOT probe on the path that failed for 100 ms, twice as long each time, up to 3.2
  //     s.
  if (state.probe.send(shared_.counters)) spray.try_another_control_path(now);
  return spray.control_path();
}

std::size_t ProbeSender::encode(TimeNs now, SendState& state, std::uint8_t trailing_path, std::byte* out) {
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
  // PROTOCOL 4.7.3: A sender MUST set ACK_ONLY in a probe of a round that has not ended (6.5.6): the probe requests
  //     whether the receive is posted, or what has arrived.
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
    // PROTOCOL 4.7.6: Suspended paths, 16 bits, MUST have bit i set for each path i with a packet of the transfer that
    //     is suspended while another path is not (R2.3.2): the sender sends nothing more of it there, and waits for
    //     nothing.
    if (state.newest[path] != 0 && peer.spray.is_excluded(path)) {
      probe.suspended_paths = static_cast<std::uint16_t>(probe.suspended_paths | 1U << path);
    }
  }
  if (is_ack_only) peer.window.on_probe_sent(now, shared_.counters);
  shared_.counters.add(Counter::k_probes_sent);
  return wire::encode_probe(probe, out);
}

bool ProbeSender::fill(TimeNs now, base::DatagramRun& run) {
  if (due_.empty()) return false;
  const std::uint32_t slot = due_.first();
  SendState& state = sends_[slot];
  std::uint8_t trailing_path = kNoPath;
  if (state.probe.has_trailing()) {
    trailing_path = state.probe.take_trailing_path();
    if (!state.probe.has_trailing() && !state.probe.is_due()) due_.clear(slot);
    run.path = trailing_path;
    run.dscp = shared_.config.dscp.data[state.last_class];
  } else {
    due_.clear(slot);
    run.path = path_of(now, state);
    // PROTOCOL 4.1.3: An endpoint MUST send a control packet, except a trailing probe (4.7.5), in the control class,
    //     ECN-capable (ECT(0)), and alone in its batch.
    run.dscp = shared_.config.dscp.control;
  }
  const std::size_t size = encode(now, state, trailing_path, run.scratch.data());
  run.peer = state.request.peer;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 1;
  run.slice_count = 1;
  run.slices[0] = {run.scratch.data(), size};
  run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
  return true;
}

bool ProbeSender::fill_over_tcp(TimeNs now, ControlOutput& output) {
  if (over_tcp_due_.empty()) return false;
  SendState& state = sends_[over_tcp_due_.first()];
  over_tcp_due_.clear(sends_.slot_of(state));
  output.peer = state.request.peer;
  output.size = encode(now, state, kNoPath, output.bytes);
  shared_.counters.add(Counter::k_tcp_fallback_packets_sent);
  return true;
}

}  // namespace mlt::core
