#include "sim/receive_watch.h"

#include <algorithm>

namespace mlt::sim {

ReceiveWatch::ReceiveWatch(VirtualDriver& driver)
    : driver_(driver), hosts_(driver.hosts()), flows_(std::size_t{driver.hosts()} * driver.hosts()) {}

void ReceiveWatch::fail(int rule, std::uint16_t rank, std::uint16_t peer, const std::string& text) {
  driver_.fail("rule " + std::to_string(rule) + ": rank " + std::to_string(rank) + ", of peer " + std::to_string(peer) +
               ": " + text);
}

void ReceiveWatch::came_up(std::uint16_t rank, const core::PeerUp& up) {
  Flow& of = flow(rank, up.peer);
  of = Flow{};
  of.up = true;
  of.peer = up;
}

void ReceiveWatch::went_down(std::uint16_t rank, std::uint16_t peer) { flow(rank, peer) = Flow{}; }

void ReceiveWatch::crashed(std::uint16_t rank) {
  for (std::uint16_t peer = 0; peer < hosts_; ++peer) flow(rank, peer) = Flow{};
}

bool ReceiveWatch::is_up(std::uint16_t rank, std::uint64_t cookie) const {
  const std::uint16_t from = wire::cookie_rank(cookie);
  if (from >= hosts_) return false;
  const Flow& of = flows_[std::size_t{rank} * hosts_ + from];
  return of.up && of.peer.local_cookie == cookie;
}

ReceiveWatch::Early ReceiveWatch::posted(std::uint16_t rank, std::uint16_t peer, const WatchedReceive& receive) {
  Flow& of = flow(rank, peer);
  const Name name{receive.tag, receive.generation};
  of.next[receive.tag] = receive.generation + 1;
  Early early;
  if (const auto waiting = of.waiting.find(name); waiting != of.waiting.end()) {
    early.kept = waiting->second.offsets;
    early.must_end = waiting->second.aborted;
    of.kept -= static_cast<std::uint32_t>(waiting->second.offsets.size());
    of.waiting.erase(waiting);
  }
  Receiving& receiving = of.open[name];
  receiving.receive = receive;
  receiving.left = std::max(1U, (receive.bytes + of.peer.segment_bytes - 1) / of.peer.segment_bytes);
  receiving.arrived.assign(receiving.left, 0);
  for (const std::uint32_t offset : early.kept) {
    const std::uint32_t segment = offset / of.peer.segment_bytes;
    if (segment >= receiving.arrived.size() || receiving.arrived[segment] != 0) continue;
    receiving.arrived[segment] = 1;
    --receiving.left;
  }
  if (receiving.left == 0) early.must_end = true;
  return early;
}

void ReceiveWatch::ended(std::uint16_t rank, std::uint16_t peer, core::OperationId operation) {
  Flow& of = flow(rank, peer);
  std::erase_if(of.open, [&](const auto& entry) { return entry.second.receive.operation == operation; });
}

// Clause 5.2.3
bool ReceiveWatch::is_over(const Flow& of, const Name& name) {
  const auto next = of.next.find(name.tag);
  return next != of.next.end() && static_cast<std::int32_t>(next->second - name.generation) > 0;
}

// ---- what is read --------------------------------------------------------------------------------------------------

core::OperationId ReceiveWatch::reads(std::uint16_t rank, const wire::Prefix& prefix, std::span<const std::byte> bytes,
                                      bool by_control) {
  Flow& of = flow(rank, wire::cookie_rank(prefix.cookie));
  of.paths.resize(driver_.host(rank).config().endpoint.paths);
  switch (prefix.type) {
    case wire::PacketType::kData:
      return by_control ? 0 : take_data(rank, of, prefix, bytes);
    case wire::PacketType::kProbe:
      return take_probe(of, prefix, bytes, by_control);
    case wire::PacketType::kAbort:
      return by_control ? take_abort(rank, of, prefix, bytes) : 0;
    default:
      return 0;
  }
}

void ReceiveWatch::count(Flow& of, const wire::Prefix& prefix) {
  PathIn& path = of.paths[prefix.path];
  ++path.packets;
  if (path.highest == 0 || static_cast<std::int32_t>(prefix.sequence - path.highest) > 0) {
    path.highest = prefix.sequence;
  }
}

core::OperationId ReceiveWatch::take_data(std::uint16_t rank, Flow& of, const wire::Prefix& prefix,
                                          std::span<const std::byte> bytes) {
  wire::DataHeader header;
  header.prefix = prefix;
  std::span<const std::byte> payload;
  if (wire::decode_data(bytes, header, payload) != wire::DropReason::kNone) return 0;
  count(of, prefix);
  const Name name{header.tag, header.generation};
  const auto open = of.open.find(name);
  if (open == of.open.end()) {
    if (!is_over(of, name)) take_early(rank, of, header);
    return 0;
  }
  Receiving& receiving = open->second;
  const WatchedReceive& receive = receiving.receive;
  // Clause 7.1.1: another size or type ends it.
  if (header.total_bytes != receive.bytes || prefix.element != receive.element) return receive.operation;
  const std::uint32_t segment = header.offset_bytes / of.peer.segment_bytes;
  if (segment >= receiving.arrived.size() || header.offset_bytes % of.peer.segment_bytes != 0) return 0;
  if (receiving.arrived[segment] == 0) {
    receiving.arrived[segment] = 1;
    --receiving.left;
  }
  // Clause 7.5.1: all have arrived.
  return receiving.left == 0 ? receive.operation : 0;
}

// Clause 7.3.1: kept, as far as the early buffer has room for that peer.
void ReceiveWatch::take_early(std::uint16_t rank, Flow& of, const wire::DataHeader& header) {
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  const auto with_data = static_cast<std::uint32_t>(
      std::ranges::count_if(of.waiting, [](const auto& entry) { return entry.second.has_data; }));
  Waiting& waiting = of.waiting[{header.tag, header.generation}];
  if (waiting.aborted) return;
  if (!waiting.has_data && with_data >= endpoint.early_transfers_per_peer()) return;
  waiting.has_data = true;
  if (std::ranges::count(waiting.offsets, header.offset_bytes) > 0) return;  // 7.3.7: kept already
  if (of.kept >= endpoint.early_segments_per_peer()) return;
  ++of.kept;
  waiting.offsets.push_back(header.offset_bytes);
}

core::OperationId ReceiveWatch::take_probe(Flow& of, const wire::Prefix& prefix, std::span<const std::byte> bytes,
                                           bool by_control) {
  wire::Probe probe;
  if (wire::decode_probe(bytes, prefix, probe) != wire::DropReason::kNone) return 0;
  if ((prefix.flags & MLT_PROBE_FLAG_TRAILING) != 0) {
    if (by_control) return 0;
    count(of, prefix);
  }
  const auto open = of.open.find({probe.transfer.tag, probe.transfer.generation});
  if (open == of.open.end()) return 0;
  const WatchedReceive& receive = open->second.receive;
  return probe.total_bytes != receive.bytes || prefix.element != receive.element ? receive.operation : 0;
}

core::OperationId ReceiveWatch::take_abort(std::uint16_t rank, Flow& of, const wire::Prefix& prefix,
                                           std::span<const std::byte> bytes) {
  wire::Abort abort;
  if (wire::decode_abort(bytes, prefix, abort) != wire::DropReason::kNone) return 0;
  const Name name{abort.transfer.tag, abort.transfer.generation};
  const auto open = of.open.find(name);
  if (open != of.open.end()) return open->second.receive.operation;
  if (is_over(of, name)) return 0;
  // Clause 8.1.3: its early data is forgotten, and it is remembered as far as there is room for notes: one of an
  // ABORT takes the place of one of a probe.
  if (const auto waiting = of.waiting.find(name); waiting != of.waiting.end()) {
    if (waiting->second.aborted) return 0;
    of.kept -= static_cast<std::uint32_t>(waiting->second.offsets.size());
    of.waiting.erase(waiting);
  }
  const auto aborted = static_cast<std::uint32_t>(
      std::ranges::count_if(of.waiting, [](const auto& entry) { return entry.second.aborted; }));
  if (aborted >= driver_.host(rank).config().endpoint.early_transfers_per_peer()) return 0;
  of.waiting[name].aborted = true;
  return 0;
}

// ---- what is sent --------------------------------------------------------------------------------------------------

void ReceiveWatch::sends(std::uint16_t rank, const Packet& packet) {
  wire::Prefix prefix;
  if (wire::decode_prefix(packet.datagram(), prefix) != wire::DropReason::kNone) return;
  if (prefix.type == wire::PacketType::kAck) {
    wire::Ack ack;
    if (wire::decode_ack(packet.datagram(), prefix, ack) != wire::DropReason::kNone) return;
    check_block(rank, packet, prefix.path, ack.block);
    for (std::uint8_t i = 0; i < ack.other_count; ++i) {
      check_block(rank, packet, ack.others[i].path, ack.others[i].block);
    }
  } else if (prefix.type == wire::PacketType::kBitmap) {
    wire::BitmapMessage bitmap;
    if (wire::decode_bitmap(packet.datagram(), prefix, bitmap) != wire::DropReason::kNone) return;
    check_block(rank, packet, prefix.path, bitmap.block);
  } else if (prefix.type == wire::PacketType::kStop) {
    wire::Stop stop;
    if (wire::decode_stop(packet.datagram(), prefix, stop) != wire::DropReason::kNone) return;
    check_block(rank, packet, prefix.path, stop.block);
  } else {
    return;
  }
  if (prefix.sequence != packet.path) fail(15, rank, packet.to, "an answer that names another path than it takes");
}

void ReceiveWatch::check_block(std::uint16_t rank, const Packet& packet, std::uint8_t path_number,
                               const wire::AckBlock& block) {
  Flow& of = flow(rank, packet.to);
  of.paths.resize(driver_.host(rank).config().endpoint.paths);
  if (path_number >= of.paths.size()) return fail(15, rank, packet.to, "an answer about a path that there is not");
  const PathIn& path = of.paths[path_number];
  if (block.highest_sequence == path.highest && block.received_packets == path.packets) return;
  fail(15, rank, packet.to,
       "path " + std::to_string(path_number) + " is said to have brought " + std::to_string(block.received_packets) +
           " packets up to " + std::to_string(block.highest_sequence) + ", it brought " + std::to_string(path.packets) +
           " up to " + std::to_string(path.highest));
}

}  // namespace mlt::sim
