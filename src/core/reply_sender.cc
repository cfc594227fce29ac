#include "core/reply_sender.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace mlt::core {

namespace {

// A sender waits for these, and for a timeout if one is lost. A NOT_POSTED leads only to another wait.
bool is_worth_repeating(const Reply& reply) {
  const ReplyKind kind = reply.kind;
  return !reply.is_repeated && (kind == ReplyKind::kBitmap || kind == ReplyKind::kReady || kind == ReplyKind::kStop);
}

}  // namespace

ReplySender::ReplySender(Shared& shared, AckLedger& acks, TransferSlots<ReceiveState>& receives)
    : shared_(shared),
      acks_(acks),
      receives_(receives),
      as_datagrams_(shared.config.reply_queue),
      over_tcp_(shared.config.reply_queue),
      probe_paths_(shared.config.peers, kNoPath) {}

wire::Prefix ReplySender::prefix_of(wire::PacketType type, std::uint16_t peer, std::uint32_t sequence) const {
  wire::Prefix prefix;
  prefix.type = type;
  // PROTOCOL 7.6.3: A BITMAP or STOP MUST carry the acknowledgement block of the path on which the newest packet of the
  //     peer came. After a STOP, an ACK MUST follow at once if other paths have news.
  prefix.path = acks_.newest_path(peer);
  // PROTOCOL 4.5.3: The low 8 bits of the sequence number of an ACK, BITMAP or STOP MUST be the path that the reply
  //     itself takes, and 255 over the control connection: round trips are comparable only if the replies came back on
  //     the same path. The other 24 bits MUST be the same bits of its sender's clock, in ns, when the reply was made,
  //     and zero over the control connection
  prefix.sequence = sequence;
  prefix.cookie = shared_.peers[peer].remote_cookie;
  return prefix;
}

std::size_t ReplySender::encode_due_ack(TimeNs now, std::uint16_t peer, std::byte* out) {
  wire::Ack ack;
  ack.prefix = prefix_of(wire::PacketType::kAck, peer, wire::reply_sequence(path_to(peer), now));
  bool fresh = false;
  ack.block = acks_.take_block(now, peer, ack.prefix.path, fresh);
  if (fresh) ack.prefix.flags |= MLT_ACK_FLAG_ECHO;
  // PROTOCOL 4.6.3: An ACK MUST carry, behind the block of the path on which the newest packet came, those of all other
  //     paths that have news, each path once. The flags of each are ECHO (0x02) or none.
  acks_.add_other_blocks(now, peer, acks_.unreported(peer), ack);
  // PROTOCOL 4.6.1: An ACK MUST name the transfer of the newest packet, or of the probe, that made it due.
  if (acks_.is_newest_posted(peer)) ack.prefix.flags |= MLT_ACK_FLAG_POSTED;
  ack.transfer = acks_.newest_transfer(peer);
  shared_.counters.add(Counter::k_acks_sent);
  return wire::encode_ack(ack, out);
}

std::size_t ReplySender::encode_ack(TimeNs now, const Reply& reply, std::uint32_t sequence, std::byte* out) {
  wire::Ack ack;
  ack.prefix = prefix_of(wire::PacketType::kAck, reply.peer, sequence);
  ack.prefix.flags = MLT_ACK_FLAG_POSTED;
  bool fresh = false;
  ack.block = acks_.take_block(now, reply.peer, ack.prefix.path, fresh);
  if (fresh) ack.prefix.flags |= MLT_ACK_FLAG_ECHO;
  // PROTOCOL 4.6.4: An ACK in reply to an ACK_ONLY probe MUST carry the blocks of all paths on which a packet ever
  //     came: the sender is waiting, and an earlier ACK may have been lost.
  // The sender probes because it waits and an ACK may have been lost: include paths without new packets too.
  acks_.add_other_blocks(now, reply.peer, acks_.used(reply.peer), ack);
  ack.transfer = reply.transfer;
  // PROTOCOL 4.6.2: The probe timestamp MUST be that of the ACK_ONLY probe that the ACK replies to, or zero if there is
  //     none.
  ack.probe_timestamp_ns = reply.probe_timestamp_ns;
  shared_.counters.add(Counter::k_acks_sent);
  return wire::encode_ack(ack, out);
}

std::size_t ReplySender::encode_stop(TimeNs now, const Reply& reply, std::uint32_t sequence, std::byte* out) {
  wire::Stop stop;
  stop.prefix = prefix_of(wire::PacketType::kStop, reply.peer, sequence);
  stop.prefix.element = reply.element;
  bool fresh = false;
  stop.block = acks_.take_block(now, reply.peer, stop.prefix.path, fresh);
  if (fresh) stop.prefix.flags |= MLT_STOP_FLAG_ECHO;
  // PROTOCOL 4.9.2: A receiver MUST set UNSEEN in the STOP with which a receive ends before anything of the transfer
  //     has come (cancelled, out of time, or at its deadline), and MUST NOT set it in a STOP of any other receive.
  if (reply.unseen) stop.prefix.flags |= MLT_STOP_FLAG_UNSEEN;
  // PROTOCOL 7.6.3: After a STOP, an ACK MUST follow at once if other paths have news.
  if (acks_.unreported(reply.peer) != 0) acks_.request(reply.peer);  // the transfer's last packets on the other paths
  stop.transfer = reply.transfer;
  stop.probe_timestamp_ns = reply.probe_timestamp_ns;
  stop.status = reply.status;
  // PROTOCOL 4.9.1: A STOP reports that the transfer has ended. It MUST state how the transfer ended, how many bytes
  //     are missing, and the receiver's own size and element type.
  stop.missing_bytes = reply.missing_bytes;
  stop.receiver_total_bytes = reply.total_bytes;
  shared_.counters.add(Counter::k_stops_sent);
  return wire::encode_stop(stop, out);
}

std::size_t ReplySender::encode_mtu_reply(const Reply& reply, std::byte* out) {
  wire::MtuReply mtu_reply;
  // PROTOCOL 4.12.2: A receiver MUST reply to an MTU_PROBE at once with an MTU_REPLY that repeats its path, timestamp
  //     and bytes.
  mtu_reply.prefix.type = wire::PacketType::kMtuReply;
  mtu_reply.prefix.path = reply.path;
  mtu_reply.prefix.cookie = shared_.peers[reply.peer].remote_cookie;
  mtu_reply.timestamp_ns = reply.probe_timestamp_ns;
  mtu_reply.bytes = reply.total_bytes;
  shared_.counters.add(Counter::k_mtu_replies_sent);
  return wire::encode_mtu_reply(mtu_reply, out);
}

// Encodes BITMAP, and NOT_POSTED and READY, which have its format.
std::size_t ReplySender::encode_bitmap(TimeNs now, Reply& reply, std::uint32_t sequence, std::byte* out, bool& more) {
  wire::BitmapMessage bitmap;
  bitmap.prefix = prefix_of(wire::PacketType::kBitmap, reply.peer, sequence);
  bitmap.prefix.round = reply.round;
  bitmap.transfer = reply.transfer;
  bitmap.probe_timestamp_ns = reply.probe_timestamp_ns;
  std::array<std::byte, MLT_BITMAP_CHUNK_SEGMENTS / 8> bits;
  // PROTOCOL 4.8.2: A BITMAP with NOT_POSTED (no receive is posted yet) or READY (it was posted just now) MUST have no
  //     bits and a segment count of zero.
  if (reply.kind == ReplyKind::kNotPosted) bitmap.prefix.flags |= MLT_BITMAP_FLAG_NOT_POSTED;
  if (reply.kind == ReplyKind::kReady) bitmap.prefix.flags |= MLT_BITMAP_FLAG_READY;
  if (reply.kind == ReplyKind::kBitmap) {
    const ReceiveState* state = receives_.find(reply.peer, reply.transfer);
    if (state == nullptr || state->loss.round() != reply.round) return 0;  // ended or started a new round since
    // PROTOCOL 7.6.1: A BITMAP MUST report what has arrived when it leaves.
    // Skip chunks without missing segments.
    const Placement& placement = state->placement;
    const std::uint32_t segments = placement.grid().count();
    const std::size_t missing = placement.first_missing(reply.next_segment);
    if (missing >= segments) return 0;
    bitmap.first_segment = static_cast<std::uint32_t>(missing) / MLT_BITMAP_CHUNK_SEGMENTS * MLT_BITMAP_CHUNK_SEGMENTS;
    // PROTOCOL 4.8.1: A BITMAP reports which of up to 8,192 consecutive segments have arrived.
    bitmap.segment_count = std::min(MLT_BITMAP_CHUNK_SEGMENTS, segments - bitmap.first_segment);
    for (std::size_t w = 0; w < base::words_for_bits(bitmap.segment_count); ++w) {
      base::store_le64(bits.data() + 8 * w, placement.words()[bitmap.first_segment / 64 + w]);
    }
    bitmap.bits = std::span<const std::byte>(bits).first((bitmap.segment_count + 7) / 8);
    reply.next_segment = bitmap.first_segment + bitmap.segment_count;
    reply.probe_timestamp_ns = 0;
    more = placement.first_missing(reply.next_segment) < segments;
  }
  bool fresh = false;
  bitmap.block = acks_.take_block(now, reply.peer, bitmap.prefix.path, fresh);
  if (fresh) bitmap.prefix.flags |= MLT_BITMAP_FLAG_ECHO;
  shared_.counters.add(Counter::k_bitmaps_sent);
  return wire::encode_bitmap(bitmap, out);
}

// Encodes one datagram of the reply. Sets `more` if a bitmap has further chunks. Returns 0 if the reply is obsolete.
std::size_t ReplySender::encode(TimeNs now, Reply& reply, std::uint32_t sequence, std::byte* out, bool& more) {
  more = false;
  if (reply.kind == ReplyKind::kStop) return encode_stop(now, reply, sequence, out);
  if (reply.kind == ReplyKind::kAck) return encode_ack(now, reply, sequence, out);
  if (reply.kind == ReplyKind::kMtuReply) return encode_mtu_reply(reply, out);
  return encode_bitmap(now, reply, sequence, out, more);
}

// Reply on the newest probe's path: the sender switches to another path after an unanswered probe.
std::uint8_t ReplySender::path_to(std::uint16_t peer) const {
  // RECOVERY R2.4.3: Replies, and ACKs, MUST take the path of the sender's newest probe, or before the first one that
  //     of its newest packet. Where that path is suspended for the receiver's own packets, they take the receiver's
  //     control path.
  const std::uint8_t path = probe_paths_[peer] != kNoPath ? probe_paths_[peer] : acks_.newest_path(peer);
  const PathSpray& spray = shared_.peers[peer].spray;
  return spray.is_suspended(path) ? spray.control_path() : path;
}

void ReplySender::fill_run(std::uint16_t peer, std::size_t size, base::DatagramRun& run) const {
  run.peer = peer;
  run.path = path_to(peer);
  // PROTOCOL 4.1.3: An endpoint MUST send a control packet, except a trailing probe (4.7.5), in the control class,
  //     ECN-capable (ECT(0)), and alone in its batch.
  run.dscp = shared_.config.dscp.control;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 1;
  run.slice_count = 1;
  run.slices[0] = {run.scratch.data(), size};
  run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
}

// Queues the reply once more, without the timestamp of its probe: it is held back. Not in place of others' first ones.
void ReplySender::repeat(Reply reply) {
  if (2 * as_datagrams_.size() >= as_datagrams_.capacity()) return;
  reply.is_repeated = true;
  reply.next_segment = 0;
  reply.probe_timestamp_ns = 0;
  if (as_datagrams_.push(reply)) shared_.counters.add(Counter::k_replies_repeated);
}

// Whether packets to or from the peer were lost lately.
bool ReplySender::loses_some(std::uint16_t peer) const {
  return acks_.loses_some(peer) || shared_.peers[peer].spray.loses_some(path_to(peer), false);
}

bool ReplySender::fill(TimeNs now, base::DatagramRun& run) {
  while (Reply* reply = as_datagrams_.front()) {
    bool more = false;
    const std::uint16_t peer = reply->peer;
    const Reply queued = *reply;
    const std::size_t size = encode(now, *reply, wire::reply_sequence(path_to(peer), now), run.scratch.data(), more);
    if (!more) as_datagrams_.pop();
    if (size == 0) continue;
    // PROTOCOL 7.6.4: Where a packet in either direction was lost lately, a receiver SHOULD send BITMAP, READY and STOP
    //     twice, the second time behind the replies that wait, unless half of their queue is taken.
    if (!more && is_worth_repeating(queued) && loses_some(peer)) repeat(queued);
    fill_run(peer, size, run);
    return true;
  }
  const std::size_t rank = acks_.first_due();
  if (rank >= shared_.config.peers) return false;
  const auto peer = static_cast<std::uint16_t>(rank);
  fill_run(peer, encode_due_ack(now, peer, run.scratch.data()), run);
  return true;
}

bool ReplySender::fill_over_tcp(TimeNs now, ControlOutput& output) {
  while (Reply* reply = over_tcp_.front()) {
    bool more = false;
    output.peer = reply->peer;
    output.size = encode(now, *reply, wire::kNoReplyPath, output.bytes, more);
    if (!more) over_tcp_.pop();
    if (output.size == 0) continue;
    shared_.counters.add(Counter::k_tcp_fallback_packets_sent);
    return true;
  }
  return false;
}

void ReplySender::reset(std::uint16_t peer) {
  as_datagrams_.forget(peer);
  over_tcp_.forget(peer);
  probe_paths_[peer] = kNoPath;
}

void ReplySender::add_usage(Usage& usage) const {
  for (const ReplyQueue* queue : {&as_datagrams_, &over_tcp_}) {
    usage.replies.used += queue->size();
    usage.replies.limit += queue->capacity();
  }
}

}  // namespace mlt::core
