// Checks a sender's output against the model: runs of data and probes.
#include <algorithm>
#include <string>

#include "sim/send_watch.h"

namespace mlt::sim {

namespace {

// Minimum retransmission timeout (R1.1.2): a window must stall for that long before it is probed.
constexpr base::DurationNs kMinTimeoutNs = 250 * base::kMicrosecond;
constexpr base::DurationNs kCreditNs = 200 * base::kMicrosecond;
constexpr std::uint64_t kCreditBytes = 30'000;
constexpr std::uint64_t kIdleCreditBytes = 7'500;
constexpr double kRunSeconds = 100e-6;
constexpr double kPairSeconds = 1e-3;  // of two packets
constexpr std::size_t kProbesKept = 1'024;

std::string in_order(const WatchedSend& send) {
  return "operation " + std::to_string(send.operation) + " (tag " + std::to_string(send.tag) + ", order " +
         std::to_string(send.order) + ")";
}

}  // namespace

void SendWatch::sends_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run) {
  Sender& sender = senders_[rank];
  wire::Prefix prefix;
  const std::span<const std::byte> first{run.slices[0].data, run.slices[0].size};
  if (wire::decode_prefix(first, prefix) != wire::DropReason::kNone) {
    return fail(15, rank, run.peer, "a run that begins with no header");
  }
  run_left_ = run.datagram_count;
  Flow& of = flow(rank, run.peer);
  if (!of.up) return fail(15, rank, run.peer, "a run for a peer that is down");
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  if (run.path >= endpoint.paths) return fail(15, rank, run.peer, "a run over a path that there is not");
  paths(rank, of);
  const bool is_data = wire::has_payload(prefix.type);
  const bool is_probe = prefix.type == wire::PacketType::kProbe;
  const bool is_trailing = is_probe && (prefix.flags & MLT_PROBE_FLAG_TRAILING) != 0;
  if (is_data) return check_data_run(rank, local, run);
  const bool is_answer = prefix.type == wire::PacketType::kAck || prefix.type == wire::PacketType::kBitmap ||
                         prefix.type == wire::PacketType::kStop;
  if (!is_probe && !is_answer) return;
  // Clause 4.1.3
  const bool urgent = run.dscp == endpoint.dscp.control && run.ecn == base::Ecn::kEct0;
  if (run.datagram_count != 1 || (!is_trailing && !urgent)) fail(15, rank, run.peer, "a control datagram in a run");
  // Clause 6.1.4
  if (!is_probe && sender.other_turn == sender.turn) {
    fail(12, rank, run.peer, "a reply leaves after probes or data");
  }
  if (is_probe) sender.other_turn = sender.turn;
}

void SendWatch::check_data_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run) {
  Sender& sender = senders_[rank];
  Flow& of = flow(rank, run.peer);
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  if (sender.owed_probes > 0 && owes_probe(rank, local)) {
    fail(12, rank, run.peer, "data leaves before the probe after a round (6.5.3)");
  }
  check_turns(rank, local, run.peer);
  sender.data_turn = sender.other_turn = sender.turn;
  sender.run_peer = run.peer;
  const double rate = driver_.endpoint(rank).rate_bytes_per_second(run.peer);
  if (rate > endpoint.timely.line_rate_bytes_per_second) fail(11, rank, run.peer, "sends faster than the line");
  if (local < of.next_run_ns) {
    fail(11, rank, run.peer, "a run leaves " + std::to_string(of.next_run_ns - local) + " ns too early for its rate");
  }
  const auto next_after = [&](base::TimeNs next, std::uint64_t credit_bytes) {
    const base::DurationNs credit = std::max(kCreditNs, base::serialisation_ns(credit_bytes, rate));
    return std::max(next, local - credit) + base::serialisation_ns(run.total_bytes, rate);
  };
  of.next_run_ns = next_after(of.next_run_ns, kCreditBytes);
  of.sure_run_ns = next_after(of.sure_run_ns, kIdleCreditBytes);
  of.last_data_ns = local;
  const std::uint64_t full = of.peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  const double longest = rate * (run.datagram_count == 2 ? kPairSeconds : kRunSeconds);
  if (run.datagram_count > 1 && static_cast<double>(run.datagram_count * full) > longest) {
    fail(11, rank, run.peer, std::to_string(run.datagram_count) + " packets in a run, which last too long");
  }
}

// A send that times out in this turn has no duties left, though its completion is still to come.
bool SendWatch::owes_probe(std::uint16_t rank, base::TimeNs local) {
  for (std::uint16_t peer = 0; peer < flows_.hosts(); ++peer) {
    for (const auto& sending : flow(rank, peer).open) {
      if (sending->owes_probe && local < sending->send.expires_ns) return true;
    }
  }
  return false;
}

// Clause 6.1.3: Peers take turns. Two runs for one peer with nothing read between them: no other peer can have had
// anything ready to send.
void SendWatch::check_turns(std::uint16_t rank, base::TimeNs local, std::uint16_t peer) {
  const Sender& sender = senders_[rank];
  if (sender.data_turn != sender.turn || sender.run_peer != peer) return;
  for (std::uint16_t other = 0; other < flows_.hosts(); ++other) {
    Flow& of = flow(rank, other);
    if (other == peer || of.open.empty() || local < of.sure_run_ns) continue;
    // Only if neither its window, nor its early budget, nor missing priorities may block it.
    const auto resolved = [](const Path& path) { return path.acknowledged == path.last; };
    if (!std::all_of(of.paths.begin(), of.paths.end(), resolved)) continue;
    if (std::any_of(of.open.begin(), of.open.end(), [](const auto& s) { return s->send.classified_late; })) continue;
    const auto can_send = [&](const auto& s) {
      return s->ready && s->left > 0 && !s->over && local < s->send.expires_ns;
    };
    if (std::none_of(of.open.begin(), of.open.end(), can_send)) continue;
    return fail(12, rank, peer, "two runs in a row, while rank " + std::to_string(other) + " has its turn");
  }
}

void SendWatch::sends(std::uint16_t rank, base::TimeNs local, const Packet& packet) {
  wire::Prefix prefix;
  if (wire::decode_prefix(packet.datagram(), prefix) != wire::DropReason::kNone) {
    return fail(15, rank, packet.to, "a datagram that its peer would reject");
  }
  if (prefix.type == wire::PacketType::kData) return check_data(rank, local, packet, prefix);
  if (prefix.type == wire::PacketType::kParity) return check_parity(rank, local, packet, prefix);
  if (prefix.type == wire::PacketType::kProbe) {
    check_probe(rank, local, packet.to, prefix, packet.datagram(), &packet);
  }
}

// Clause 6.1.2: of the transfers to a peer, the one with the smallest order goes first.
void SendWatch::check_rivals(std::uint16_t rank, base::TimeNs local, std::uint16_t peer, Flow& of,
                             const Sending& sending) {
  for (const auto& other : of.open) {
    if (other.get() == &sending) return;
    if (other->left == 0 || other->over || local >= other->send.expires_ns) continue;
    if (!other->ready && other->may_wait) continue;
    return fail(12, rank, peer,
                in_order(sending.send) + " sends before " + in_order(other->send) + ", which has " +
                    std::to_string(other->left) + " segments to send");
  }
}

void SendWatch::check_data(std::uint16_t rank, base::TimeNs local, const Packet& packet, const wire::Prefix& prefix) {
  const std::uint16_t peer = packet.to;
  Flow& of = flow(rank, peer);
  wire::DataHeader header;
  header.prefix = prefix;
  std::span<const std::byte> payload;
  if (wire::decode_data(packet.datagram(), header, payload) != wire::DropReason::kNone) {
    return fail(15, rank, peer, "data that its peer would reject");
  }
  Sending* sending = find(of, {header.tag, header.generation});
  if (sending == nullptr || sending->over || local >= sending->send.expires_ns) {
    return fail(15, rank, peer, "data of a transfer that is over, tag " + std::to_string(header.tag));
  }
  if (sending->left == 0 || sending->parity_follows)
    return fail(15, rank, peer, "data of a round that is over, or not ready yet");
  check_rivals(rank, local, peer, of, *sending);
  // Clause 6.1.1
  Sending& s = *sending;
  const auto segment_at = [&](std::uint32_t place) { return s.in_order.empty() ? place : s.in_order[place]; };
  while (s.pending[segment_at(s.cursor)] == 0) ++s.cursor;
  const std::uint32_t segment = segment_at(s.cursor);
  const std::uint32_t begin = segment * of.peer.segment_bytes;
  if (header.offset_bytes != begin || payload.size() != std::min(of.peer.segment_bytes, s.send.bytes - begin)) {
    return fail(12, rank, peer,
                in_order(s.send) + " sends offset " + std::to_string(header.offset_bytes) + " where " +
                    std::to_string(begin) + " is next");
  }
  s.pending[segment] = 0;
  --s.left;
  s.unconfirmed = s.unconfirmed || !of.heard;
  // Clause 6.12.2: where parity follows, the last segment does not end the round.
  s.parity_follows = s.are_segments_sent() && s.rounds == 0 && may_have_parity(rank, of, s) &&
                     (prefix.flags & MLT_FLAG_END_OF_ROUND) == 0;
  check_header(rank, packet, header, s, segment);
  if (header.timestamp_ns != static_cast<std::uint32_t>(local)) fail(15, rank, peer, "a timestamp of another time");
  s.last_class = std::max(s.last_class, priority_of(s.send, segment).traffic_class());
  s.newest[packet.path] = prefix.sequence;
  s.data_turn = senders_[rank].turn;
  if (s.is_round_over() && (of.paths.size() > 1 || s.critical > 0)) {
    s.owes_probe = true;
    ++senders_[rank].owed_probes;
  }
  add_to_flight(rank, local, peer, of, packet.path, prefix.sequence, true);
  if (!s.ready) count_early(rank, peer, of, s);
  if (--run_left_ == 0) check_window(rank, peer, of);
}

// Clause 6.12.1
bool SendWatch::may_have_parity(std::uint16_t rank, const Flow& of, const Sending& sending) const {
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  return endpoint.erasure_correction && of.paths.size() == 1 && sending.critical == 0 && sending.send.bytes > 0;
}

void SendWatch::check_parity(std::uint16_t rank, base::TimeNs local, const Packet& packet, const wire::Prefix& prefix) {
  const std::uint16_t peer = packet.to;
  Flow& of = flow(rank, peer);
  wire::ParityHeader header;
  header.prefix = prefix;
  std::span<const std::byte> payload;
  if (wire::decode_parity(packet.datagram(), header, payload) != wire::DropReason::kNone) {
    return fail(15, rank, peer, "parity that its peer would reject");
  }
  Sending* sending = find(of, {header.tag, header.generation});
  if (sending == nullptr || sending->over || local >= sending->send.expires_ns) {
    return fail(15, rank, peer, "parity of a transfer that is over, tag " + std::to_string(header.tag));
  }
  Sending& s = *sending;
  if (!s.parity_follows) return fail(15, rank, peer, "parity that does not follow a first round");
  check_rivals(rank, local, peer, of, s);
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  const auto check = [&](bool right, const char* what) {
    if (!right) fail(15, rank, peer, in_order(s.send) + ": a parity packet with the wrong " + what);
  };
  const std::uint32_t segments = segment_count(of, s.send);
  check(header.block * std::uint32_t{header.block_segments} < segments, "block");
  check(header.block_segments <= segments, "length of a block");
  check(header.total_bytes == s.send.bytes && payload.size() == std::min(of.peer.segment_bytes, s.send.bytes), "size");
  check(prefix.round == s.round && s.rounds == 0, "round");
  check(prefix.element == s.send.element, "element type");
  check(packet.dscp == endpoint.dscp.data[s.last_class], "DSCP");
  check(packet.ecn == base::Ecn::kEct0, "ECN mark");
  check(header.timestamp_ns == static_cast<std::uint32_t>(local), "timestamp");
  if ((prefix.flags & MLT_FLAG_END_OF_ROUND) != 0) {
    s.parity_follows = false;
    check((header.block + 1U) * header.block_segments >= segments, "flags: it is not of the last block");
  }
  s.newest[packet.path] = prefix.sequence;
  s.data_turn = senders_[rank].turn;
  add_to_flight(rank, local, peer, of, packet.path, prefix.sequence, true);
  if (--run_left_ == 0) check_window(rank, peer, of);
}

void SendWatch::check_window(std::uint16_t rank, std::uint16_t peer, Flow& of) {
  // Clauses 6.3.2, 6.3.7 and 6.3.8
  const std::uint64_t full = of.peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  const std::uint64_t packets = in_flight(of);
  const std::uint64_t grown = std::min(of.peer.window_bytes + of.reported_packets * full,
                                       driver_.host(rank).config().endpoint.max_window_bytes);
  const std::uint64_t window = std::max<std::uint64_t>(of.peer.window_bytes, grown);
  if (packets > 1 && packets * full > window) {
    fail(10, rank, peer, std::to_string(packets * full) + " bytes in flight, window " + std::to_string(window));
  }
}

void SendWatch::check_header(std::uint16_t rank, const Packet& packet, const wire::DataHeader& header,
                             const Sending& sending, std::uint32_t segment) {
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  const core::SegmentPriority tag = priority_of(sending.send, segment);
  unsigned flags = 0;
  if (tag.is_critical()) flags |= MLT_FLAG_CRITICAL;
  if (sending.critical > 0) flags |= MLT_FLAG_HAS_CRITICAL;
  if (sending.rounds > 0) flags |= MLT_FLAG_REPAIR;
  if (sending.is_round_over() && endpoint.paths == 1) flags |= MLT_FLAG_END_OF_ROUND;
  if (tag.traffic_class() < sending.last_class) flags |= MLT_FLAG_OVERTAKES;
  if (sending.unconfirmed) flags |= MLT_FLAG_UNCONFIRMED;
  const auto ecn = tag.is_important() ? base::Ecn::kEct0 : base::Ecn::kNotEct;
  const auto check = [&](bool right, const char* what) {
    if (!right) fail(15, rank, packet.to, in_order(sending.send) + ": a packet with the wrong " + what);
  };
  check(header.prefix.flags == flags, "flags");
  check(header.prefix.round == sending.round, "round");
  check(header.prefix.path == packet.path, "path");
  check(header.prefix.element == sending.send.element, "element type");
  check(header.total_bytes == sending.send.bytes, "size of the tensor");
  check(packet.dscp == endpoint.dscp.data[tag.traffic_class()], "DSCP");
  check(packet.ecn == ecn, "ECN mark");
}

// Clause 4.4.4: sequence numbers increase, per path.
void SendWatch::add_to_flight(std::uint16_t rank, base::TimeNs local, std::uint16_t peer, Flow& of,
                              std::uint8_t path_number, std::uint32_t sequence, bool is_data) {
  Path& path = of.paths[path_number];
  if (sequence != std::max(path.last + 1, 1U))
    fail(15, rank, peer, "sequence number " + std::to_string(sequence) + " out of turn");
  path.last = sequence;
  if (path.first == path.bursts.size() || path.bursts.back().sent_ns != local) path.bursts.push_back({0, 0, 0, local});
  path.bursts.back().last = sequence;
  ++path.bursts.back().packets;
  path.bursts.back().data += is_data ? 1 : 0;
}

// Clause 6.4.1
void SendWatch::count_early(std::uint16_t rank, std::uint16_t peer, Flow& of, Sending& sending) {
  ++sending.early;
  const EarlyOut out = early_out(of);
  const std::uint32_t max_segments = std::max(of.peer.early_segments, 1U);
  const std::uint32_t max_transfers = std::max(of.peer.early_transfers, 1U);
  if (out.segments > max_segments || out.transfers > max_transfers) {
    fail(13, rank, peer,
         std::to_string(out.segments) + " early segments of " + std::to_string(out.transfers) + " transfers, " +
             std::to_string(max_segments) + " of " + std::to_string(max_transfers) + " were offered");
  }
  if (!is_exhausted(of)) return;
  for (const auto& other : of.open) other->may_wait = other->may_wait || !other->ready;
}

void SendWatch::check_probe(std::uint16_t rank, base::TimeNs local, std::uint16_t peer, const wire::Prefix& prefix,
                            std::span<const std::byte> bytes, const Packet* packet) {
  Sender& sender = senders_[rank];
  Flow& of = flow(rank, peer);
  paths(rank, of);
  wire::Probe probe;
  if (wire::decode_probe(bytes, prefix, probe) != wire::DropReason::kNone) {
    return fail(15, rank, peer, "a probe that its peer would reject");
  }
  Sending* sending = find(of, probe.transfer);
  if (sending == nullptr || sending->over || local >= sending->send.expires_ns) {
    return fail(15, rank, peer, "a probe of a transfer that is over, tag " + std::to_string(probe.transfer.tag));
  }
  const bool trailing = (prefix.flags & MLT_PROBE_FLAG_TRAILING) != 0;
  const bool ack_only = (prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) != 0;
  const auto check = [&](bool right, const char* what) {
    if (!right) fail(15, rank, peer, in_order(sending->send) + ": a probe with the wrong " + what);
  };
  const auto low = static_cast<std::uint32_t>(local);
  check(prefix.round == sending->round, "round");
  check(prefix.element == sending->send.element, "element type");
  check(probe.total_bytes == sending->send.bytes, "size of the tensor");
  check(probe.critical_segments == sending->critical, "number of critical segments");
  check(((prefix.flags & MLT_PROBE_FLAG_CRITICAL) != 0) == (sending->critical > 0), "flag CRITICAL");
  check(probe.timestamp_ns == (low == 0 ? 1 : low), "timestamp");
  check(probe.path_count == of.paths.size(), "number of paths");
  // Clause 6.5.6
  check(ack_only || sending->is_round_over(), "flags: it is about a round that is not over");
  for (std::uint8_t path = 0; path < of.paths.size() && path < probe.path_count; ++path) {
    // Clauses 4.7.1 and 4.7.6
    check(probe.last_sequence[path] == sending->newest[path], "newest packet of a path");
    const bool suspended = (std::uint32_t{probe.suspended_paths} >> path & 1U) != 0;
    check(!suspended || (sending->newest[path] != 0 && of.paths.size() > 1), "suspended path");
  }
  if (trailing) {
    if (packet == nullptr) return check(false, "way: a trailing one goes behind the data");
    check(prefix.path == packet->path, "path");
    check(packet->dscp == driver_.host(rank).config().endpoint.dscp.data[sending->last_class], "DSCP");
    add_to_flight(rank, local, peer, of, packet->path, prefix.sequence, false);
  } else {
    if (of.probes.size() >= kProbesKept) of.probes.erase(of.probes.begin(), of.probes.begin() + kProbesKept / 2);
    of.probes.push_back({local, local - of.last_data_ns >= kMinTimeoutNs});
    forget(sender, *sending);
  }
  // Clause 6.1.4: a probe that no data of this turn requires was due before it.
  if (packet != nullptr && !ack_only && sender.data_turn == sender.turn && sending->data_turn != sender.turn) {
    fail(12, rank, peer, in_order(sending->send) + ": a probe leaves after data that does not require it");
  }
}

}  // namespace mlt::sim
