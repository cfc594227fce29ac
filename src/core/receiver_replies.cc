// Replies of the receiver: ACK, BITMAP, STOP.
#include <algorithm>
#include <array>
#include <bit>

#include "base/bytes.h"
#include "core/receiver.h"

namespace mlt::core {

namespace {

wire::Prefix reply_prefix(wire::PacketType type, const Peer& peer, std::uint32_t by_path) {
  wire::Prefix prefix;
  prefix.type = type;
  // PROTOCOL 7.6.3: A BITMAP or STOP MUST carry the acknowledgement block of the path on which the newest packet of the
  //     peer came. After a STOP, an ACK MUST follow at once if other paths have news.
  prefix.path = peer.last_path;  // of the block: the path of the newest data packet
  // PROTOCOL 4.5.3: The sequence number of an ACK, BITMAP or STOP MUST be the path that the answer itself takes, and
  //     255 over the control connection: round trips are comparable only if the answers came back on the same path.
  prefix.sequence = by_path;
  prefix.cookie = peer.remote_cookie;
  return prefix;
}

}  // namespace

void Receiver::reply_finished(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t probe_timestamp_ns,
                              bool by_control, bool unseen) {
  Reply reply;
  reply.kind = ReplyKind::kStop;
  reply.unseen = unseen;
  reply.peer = peer;
  reply.transfer = transfer;
  reply.probe_timestamp_ns = probe_timestamp_ns;
  // PROTOCOL 7.7.6: It reports an outcome that is forgotten as finished before.
  reply.status = wire::StopStatus::kFinishedBefore;
  const ReceiveTag* entry = shared_.receive_tags.find(peer, transfer.tag);
  if (entry != nullptr && entry->has_outcome && entry->outcome_generation == transfer.generation) {
    reply.status = entry->outcome_status;
    reply.element = entry->outcome_element;
    reply.missing_bytes = entry->outcome_missing_bytes;
    reply.total_bytes = entry->outcome_total_bytes;
  } else if (const FinishedReceive* finished = finished_.find(peer, transfer)) {
    reply.status = finished->status;
    reply.element = finished->element;
    reply.missing_bytes = finished->missing_bytes;
    reply.total_bytes = finished->total_bytes;
  }
  // PROTOCOL 9.1.3: A receiver MUST answer a probe that comes over the control connection over that connection.
  (by_control ? control_replies_ : replies_).push(reply);
}

wire::AckBlock Receiver::block_of(TimeNs now, std::uint16_t rank, std::uint8_t path, bool& fresh) {
  PathIn& in = shared_.peers[rank].in[path];
  wire::AckBlock block;
  // PROTOCOL 4.5.1: Every ACK, BITMAP and STOP MUST carry the acknowledgement block of one path, named in its prefix. A
  //     sender MUST take whatever carries it as an ACK of that path.
  block.highest_sequence = in.highest_sequence;
  block.received_packets = in.received_packets;
  block.ce_packets = in.ce_packets;
  block.echo_timestamp_ns = in.echo_timestamp_ns;
  block.hold_ns = static_cast<std::uint32_t>(std::clamp<DurationNs>(now - in.echo_arrival_ns, 0, 0xFFFF'FFFFLL));
  // PROTOCOL 4.5.2: A receiver MUST set ECHO if, and only if, the echoed timestamp was not echoed before: it is then a
  //     sample of the round trip.
  fresh = in.echo_fresh;
  in.echo_fresh = false;
  // PROTOCOL 4.5.1: A sender MUST take whatever carries it as an ACK of that path.
  // Any packet with this block acknowledges the path.
  Peer& peer = shared_.peers[rank];
  peer.unreported_paths &= ~(1U << path);
  peer.since_ack -= in.since_ack;
  // PROTOCOL 7.2.5: A receiver MUST NOT use a timer for ACKs: the answer to the marker or probe acknowledges fewer
  //     packets than that.
  in.since_ack = 0;
  if (peer.since_ack < peer.packets_per_ack) acks_due_.clear(rank);
  return block;
}

void Receiver::add_other_paths(TimeNs now, std::uint16_t rank, std::uint32_t paths, wire::Ack& ack) {
  for (paths &= ~(1U << ack.prefix.path); paths != 0; paths &= paths - 1) {
    wire::PathBlock& other = ack.others[ack.other_count++];
    other.path = static_cast<std::uint8_t>(std::countr_zero(paths));
    other.block = block_of(now, rank, other.path, other.fresh);
  }
}

std::size_t Receiver::encode_ack_of(TimeNs now, std::uint16_t rank, std::byte* out) {
  Peer& peer = shared_.peers[rank];
  wire::Ack ack;
  ack.prefix = reply_prefix(wire::PacketType::kAck, peer, reply_path(peer));
  bool fresh = false;
  ack.block = block_of(now, rank, ack.prefix.path, fresh);
  if (fresh) ack.prefix.flags |= MLT_ACK_FLAG_ECHO;
  // PROTOCOL 4.6.3: An ACK MUST carry, behind the block of the path on which the newest packet came, those of all other
  //     paths that have news, each path once. The flags of each are ECHO (0x02) or none.
  add_other_paths(now, rank, peer.unreported_paths, ack);
  // PROTOCOL 4.6.1: An ACK MUST name the transfer of the newest packet, or of the probe, that made it due.
  if (peer.ack_posted) ack.prefix.flags |= MLT_ACK_FLAG_POSTED;
  ack.transfer = peer.ack_transfer;
  shared_.counters.add(Counter::k_acks_sent);
  return wire::encode_ack(ack, out);
}

std::size_t Receiver::encode_ack_reply(TimeNs now, const Reply& reply, std::uint32_t by_path, std::byte* out) {
  const Peer& peer = shared_.peers[reply.peer];
  wire::Ack ack;
  ack.prefix = reply_prefix(wire::PacketType::kAck, peer, by_path);
  ack.prefix.flags = MLT_ACK_FLAG_POSTED;
  bool fresh = false;
  ack.block = block_of(now, reply.peer, ack.prefix.path, fresh);
  if (fresh) ack.prefix.flags |= MLT_ACK_FLAG_ECHO;
  // PROTOCOL 4.6.4: An ACK that answers an ACK_ONLY probe MUST carry the blocks of all paths on which a packet ever
  //     came: the sender is waiting, and an earlier ACK may have been lost.
  // The sender probes because it waits and an ACK may have been lost: include paths without new packets too.
  std::uint32_t used = 0;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    if (peer.in[path].highest_sequence != 0) used |= 1U << path;
  }
  add_other_paths(now, reply.peer, used, ack);
  ack.transfer = reply.transfer;
  // PROTOCOL 4.6.2: The probe timestamp MUST be that of the ACK_ONLY probe that the ACK answers, or zero if it answers
  //     none.
  ack.probe_timestamp_ns = reply.probe_timestamp_ns;
  shared_.counters.add(Counter::k_acks_sent);
  return wire::encode_ack(ack, out);
}

std::size_t Receiver::encode_stop_of(TimeNs now, const Reply& reply, std::uint32_t by_path, std::byte* out) {
  const Peer& peer = shared_.peers[reply.peer];
  wire::Stop stop;
  stop.prefix = reply_prefix(wire::PacketType::kStop, peer, by_path);
  stop.prefix.element = reply.element;
  bool fresh = false;
  stop.block = block_of(now, reply.peer, stop.prefix.path, fresh);
  if (fresh) stop.prefix.flags |= MLT_STOP_FLAG_ECHO;
  // PROTOCOL 4.9.2: A receiver MUST set UNSEEN in the STOP with which a receive ends before anything of the transfer
  //     has come (cancelled, out of time, or at its deadline), and MUST NOT set it in a STOP of any other receive.
  if (reply.unseen) stop.prefix.flags |= MLT_STOP_FLAG_UNSEEN;
  // PROTOCOL 7.6.3: After a STOP, an ACK MUST follow at once if other paths have news.
  if (peer.unreported_paths != 0) acks_due_.set(reply.peer);  // the transfer's last packets on the other paths
  stop.transfer = reply.transfer;
  stop.probe_timestamp_ns = reply.probe_timestamp_ns;
  stop.status = reply.status;
  // PROTOCOL 4.9.1: A STOP says that the transfer is over. It MUST state how the transfer ended, how many bytes are
  //     missing, and the receiver's own size and element type.
  stop.missing_bytes = reply.missing_bytes;
  stop.receiver_total_bytes = reply.total_bytes;
  shared_.counters.add(Counter::k_stops_sent);
  return wire::encode_stop(stop, out);
}

void Receiver::on_mtu_probe(std::uint16_t from, const wire::MtuProbe& probe) {
  shared_.counters.add(Counter::k_mtu_probes_received);
  Reply reply;
  reply.kind = ReplyKind::kMtuReply;
  reply.peer = from;
  reply.path = probe.prefix.path;
  reply.probe_timestamp_ns = probe.timestamp_ns;
  reply.total_bytes = probe.bytes;
  replies_.push(reply);
}

std::size_t Receiver::encode_mtu_reply_of(const Reply& reply, std::byte* out) {
  wire::MtuReply answer;
  // PROTOCOL 4.12.2: A receiver MUST answer an MTU_PROBE at once with an MTU_REPLY that repeats its path, timestamp and
  //     bytes.
  answer.prefix.type = wire::PacketType::kMtuReply;
  answer.prefix.path = reply.path;
  answer.prefix.cookie = shared_.peers[reply.peer].remote_cookie;
  answer.timestamp_ns = reply.probe_timestamp_ns;
  answer.bytes = reply.total_bytes;
  shared_.counters.add(Counter::k_mtu_replies_sent);
  return wire::encode_mtu_reply(answer, out);
}

// Encodes BITMAP, and NOT_POSTED and READY, which have its format.
std::size_t Receiver::encode_bitmap_of(TimeNs now, Reply& reply, std::uint32_t by_path, std::byte* out, bool& more) {
  wire::BitmapMessage bitmap;
  bitmap.prefix = reply_prefix(wire::PacketType::kBitmap, shared_.peers[reply.peer], by_path);
  bitmap.prefix.round = reply.round;
  bitmap.transfer = reply.transfer;
  bitmap.probe_timestamp_ns = reply.probe_timestamp_ns;
  std::array<std::byte, MLT_BITMAP_CHUNK_SEGMENTS / 8> bits;
  // PROTOCOL 4.8.2: A BITMAP with NOT_POSTED (no receive is posted yet) or READY (it was posted just now) MUST have no
  //     bits and a segment count of zero.
  if (reply.kind == ReplyKind::kNotPosted) bitmap.prefix.flags |= MLT_BITMAP_FLAG_NOT_POSTED;
  if (reply.kind == ReplyKind::kReady) bitmap.prefix.flags |= MLT_BITMAP_FLAG_READY;
  if (reply.kind == ReplyKind::kBitmap) {
    const ReceiveState* state = find(reply.peer, reply.transfer);
    if (state == nullptr || state->round != reply.round) return 0;  // ended or started a new round since
    // PROTOCOL 7.6.1: A BITMAP MUST report what has arrived when it leaves.
    // Skip chunks without missing segments.
    const std::size_t missing = state->received.find_clear(reply.next_segment);
    if (missing >= state->grid.count()) return 0;
    bitmap.first_segment = static_cast<std::uint32_t>(missing) / MLT_BITMAP_CHUNK_SEGMENTS * MLT_BITMAP_CHUNK_SEGMENTS;
    // PROTOCOL 4.8.1: A BITMAP reports which of up to 8,192 consecutive segments have arrived.
    bitmap.segment_count = std::min(MLT_BITMAP_CHUNK_SEGMENTS, state->grid.count() - bitmap.first_segment);
    for (std::size_t w = 0; w < base::words_for_bits(bitmap.segment_count); ++w) {
      base::store_le64(bits.data() + 8 * w, state->received.words()[bitmap.first_segment / 64 + w]);
    }
    bitmap.bits = std::span<const std::byte>(bits).first((bitmap.segment_count + 7) / 8);
    reply.next_segment = bitmap.first_segment + bitmap.segment_count;
    reply.probe_timestamp_ns = 0;
    more = state->received.find_clear(reply.next_segment) < state->grid.count();
  }
  bool fresh = false;
  bitmap.block = block_of(now, reply.peer, bitmap.prefix.path, fresh);
  if (fresh) bitmap.prefix.flags |= MLT_BITMAP_FLAG_ECHO;
  shared_.counters.add(Counter::k_bitmaps_sent);
  return wire::encode_bitmap(bitmap, out);
}

// Encodes one datagram of the reply. Sets `more` if a bitmap has further chunks. Returns 0 if the reply is obsolete.
std::size_t Receiver::encode_reply(TimeNs now, Reply& reply, std::uint32_t by_path, std::byte* out, bool& more) {
  more = false;
  if (reply.kind == ReplyKind::kStop) return encode_stop_of(now, reply, by_path, out);
  if (reply.kind == ReplyKind::kAck) return encode_ack_reply(now, reply, by_path, out);
  if (reply.kind == ReplyKind::kMtuReply) return encode_mtu_reply_of(reply, out);
  return encode_bitmap_of(now, reply, by_path, out, more);
}

// Reply on the newest probe's path: the sender switches to another path after an unanswered probe.
std::uint8_t Receiver::reply_path(const Peer& peer) const {
  // RECOVERY R2.4.3: Answers, and ACKs, MUST take the path of the sender's newest probe, or before the first one that
  //     of its newest packet. Where that path is silent for the receiver's own packets, they take the receiver's
  //     control path.
  const std::uint8_t path = peer.probe_path != kNoPath ? peer.probe_path : peer.last_path;
  return peer.spray.is_silent(path) ? peer.spray.control_path() : path;
}

void Receiver::fill_control_run(std::uint16_t peer, std::size_t size, base::DatagramRun& run) const {
  run.peer = peer;
  run.path = reply_path(shared_.peers[peer]);
  // PROTOCOL 4.1.3: An endpoint MUST send a control datagram, but for a trailing probe (4.7.5), in the control class,
  //     ECN-capable (ECT(0)), and alone in its run.
  run.dscp = shared_.config.dscp.control;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 1;
  run.slice_count = 1;
  run.slices[0] = {run.scratch.data(), size};
  run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
}

bool Receiver::fill_reply(TimeNs now, base::DatagramRun& run) {
  while (Reply* reply = replies_.front()) {
    bool more = false;
    const std::uint16_t peer = reply->peer;
    const std::size_t size = encode_reply(now, *reply, reply_path(shared_.peers[peer]), run.scratch.data(), more);
    if (!more) replies_.pop();
    if (size == 0) continue;
    fill_control_run(peer, size, run);
    return true;
  }
  const std::size_t rank = acks_due_.find_set(0);
  if (rank >= shared_.config.peers) return false;
  const auto peer = static_cast<std::uint16_t>(rank);
  fill_control_run(peer, encode_ack_of(now, peer, run.scratch.data()), run);
  return true;
}

bool Receiver::fill_backstop(TimeNs now, ControlOutput& output) {
  while (Reply* reply = control_replies_.front()) {
    bool more = false;
    output.peer = reply->peer;
    output.size = encode_reply(now, *reply, wire::kNoReplyPath, output.bytes, more);
    if (!more) control_replies_.pop();
    if (output.size == 0) continue;
    shared_.counters.add(Counter::k_backstop_messages_sent);
    return true;
  }
  return false;
}

}  // namespace mlt::core
