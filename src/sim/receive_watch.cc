#include "sim/receive_watch.h"

#include <algorithm>

namespace mlt::sim {

namespace {

// The longest suspension of a host (sim/scenario.cc).
constexpr base::DurationNs kLongestWaitNs = 500 * base::kMillisecond;

}  // namespace

ReceiveWatch::ReceiveWatch(VirtualDriver& driver) : driver_(driver), flows_(driver.hosts()) {}

void ReceiveWatch::fail(int rule, std::uint16_t rank, std::uint16_t peer, const std::string& text) {
  driver_.fail("rule " + std::to_string(rule) + ": rank " + std::to_string(rank) + ", of peer " + std::to_string(peer) +
               ": " + text);
}

void ReceiveWatch::went_down(std::uint16_t rank, std::uint16_t peer) { flow(rank, peer) = Flow{}; }

bool ReceiveWatch::is_up(std::uint16_t rank, std::uint64_t cookie) const {
  const std::uint16_t from = wire::cookie_rank(cookie);
  if (from >= flows_.hosts()) return false;
  const Flow& of = flows_.at(rank, from);
  return of.up && of.peer.local_cookie == cookie;
}

ReceiveWatch::Early ReceiveWatch::posted(std::uint16_t rank, std::uint16_t peer, const WatchedReceive& receive) {
  Flow& of = flow(rank, peer);
  const Name name{receive.tag, receive.generation};
  of.next[receive.tag] = receive.generation + 1;
  Early early;
  Receiving& receiving = of.open[name];
  receiving.receive = receive;
  set_size(of, receiving, receive.bytes);
  if (const auto waiting = of.waiting.find(name); waiting != of.waiting.end()) {
    early.kept = waiting->second.offsets;
    early.must_end = waiting->second.aborted;
    if (waiting->second.has_data) (void)matches(of, receiving, waiting->second.bytes, receive.element);
    of.kept -= static_cast<std::uint32_t>(waiting->second.offsets.size());
    of.waiting.erase(waiting);
  }
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

void ReceiveWatch::set_size(const Flow& of, Receiving& receiving, std::uint32_t bytes) {
  receiving.receive.bytes = bytes;
  receiving.left = std::max(1U, (bytes + of.peer.segment_bytes - 1) / of.peer.segment_bytes);
  receiving.arrived.assign(receiving.left, 0);
}

bool ReceiveWatch::matches(const Flow& of, Receiving& receiving, std::uint32_t bytes, wire::ElementType element) {
  WatchedReceive& receive = receiving.receive;
  if (element != receive.element || (receive.up_to ? bytes > receive.bytes : bytes != receive.bytes)) return false;
  if (receive.up_to) set_size(of, receiving, bytes);
  receive.up_to = false;
  return true;
}

// Clause 5.2.3
bool ReceiveWatch::is_over(const Flow& of, const Name& name) {
  const auto next = of.next.find(name.tag);
  return next != of.next.end() && static_cast<std::int32_t>(next->second - name.generation) > 0;
}

// ---- what is read --------------------------------------------------------------------------------------------------

core::OperationId ReceiveWatch::reads(std::uint16_t rank, base::TimeNs local, const wire::Prefix& prefix,
                                      std::span<const std::byte> bytes, bool by_control) {
  Flow& of = flow(rank, wire::cookie_rank(prefix.cookie));
  of.paths.resize(driver_.host(rank).config().endpoint.paths);
  switch (prefix.type) {
    case wire::PacketType::kData:
      return by_control ? 0 : take_data(rank, local, of, prefix, bytes);
    case wire::PacketType::kParity:
      return by_control ? 0 : take_parity(local, of, prefix, bytes);
    case wire::PacketType::kProbe:
      return take_probe(local, of, prefix, bytes, by_control);
    case wire::PacketType::kAbort:
      return by_control ? take_abort(rank, of, prefix, bytes) : 0;
    default:
      return 0;
  }
}

void ReceiveWatch::count(base::TimeNs local, Flow& of, const wire::Prefix& prefix, std::uint32_t timestamp_ns) {
  PathIn& path = of.paths[prefix.path];
  ++path.packets;
  if (path.highest == 0 || static_cast<std::int32_t>(prefix.sequence - path.highest) > 0) {
    path.highest = prefix.sequence;
    path.timestamp_ns = timestamp_ns;
    path.read_ns = local;
    path.echoed = false;
  }
}

core::OperationId ReceiveWatch::take_data(std::uint16_t rank, base::TimeNs local, Flow& of, const wire::Prefix& prefix,
                                          std::span<const std::byte> bytes) {
  wire::DataHeader header;
  header.prefix = prefix;
  std::span<const std::byte> payload;
  if (wire::decode_data(bytes, header, payload) != wire::DropReason::kNone) return 0;
  count(local, of, prefix, header.timestamp_ns);
  const Name name{header.tag, header.generation};
  const auto open = of.open.find(name);
  if (open == of.open.end()) {
    if (!is_over(of, name)) take_early(rank, of, header);
    return 0;
  }
  Receiving& receiving = open->second;
  const WatchedReceive& receive = receiving.receive;
  // Clause 7.1.1: another size or type fails it.
  if (!matches(of, receiving, header.total_bytes, prefix.element)) return receive.operation;
  const std::uint32_t segment = header.offset_bytes / of.peer.segment_bytes;
  if (segment >= receiving.arrived.size() || header.offset_bytes % of.peer.segment_bytes != 0) return 0;
  if (receiving.arrived[segment] == 0) {
    receiving.arrived[segment] = 1;
    --receiving.left;
  }
  // Clause 7.5.1: all have arrived.
  return receiving.left == 0 ? receive.operation : 0;
}

// What it restores the model leaves open: the oracle compares the contents.
core::OperationId ReceiveWatch::take_parity(base::TimeNs local, Flow& of, const wire::Prefix& prefix,
                                            std::span<const std::byte> bytes) {
  wire::ParityHeader header;
  header.prefix = prefix;
  std::span<const std::byte> payload;
  if (wire::decode_parity(bytes, header, payload) != wire::DropReason::kNone) return 0;
  count(local, of, prefix, header.timestamp_ns);
  const auto open = of.open.find({header.tag, header.generation});
  if (open == of.open.end()) return 0;
  return matches(of, open->second, header.total_bytes, prefix.element) ? 0 : open->second.receive.operation;
}

// Clause 7.3.1: buffered, as far as the early buffer has space for that peer.
void ReceiveWatch::take_early(std::uint16_t rank, Flow& of, const wire::DataHeader& header) {
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  const auto with_data = static_cast<std::uint32_t>(
      std::ranges::count_if(of.waiting, [](const auto& entry) { return entry.second.has_data; }));
  Waiting& waiting = of.waiting[{header.tag, header.generation}];
  if (waiting.aborted) return;
  if (!waiting.has_data && with_data >= endpoint.early_transfers_per_peer()) return;
  waiting.has_data = true;
  waiting.bytes = header.total_bytes;
  if (std::ranges::count(waiting.offsets, header.offset_bytes) > 0) return;  // 7.3.7: buffered already
  if (of.kept >= endpoint.early_segments_per_peer()) return;
  ++of.kept;
  waiting.offsets.push_back(header.offset_bytes);
}

core::OperationId ReceiveWatch::take_probe(base::TimeNs local, Flow& of, const wire::Prefix& prefix,
                                           std::span<const std::byte> bytes, bool by_control) {
  wire::Probe probe;
  if (wire::decode_probe(bytes, prefix, probe) != wire::DropReason::kNone) return 0;
  if ((prefix.flags & MLT_PROBE_FLAG_TRAILING) != 0) {
    if (by_control) return 0;
    count(local, of, prefix, probe.timestamp_ns);
  }
  const auto open = of.open.find({probe.transfer.tag, probe.transfer.generation});
  if (open == of.open.end()) return 0;
  return matches(of, open->second, probe.total_bytes, prefix.element) ? 0 : open->second.receive.operation;
}

core::OperationId ReceiveWatch::take_abort(std::uint16_t rank, Flow& of, const wire::Prefix& prefix,
                                           std::span<const std::byte> bytes) {
  wire::Abort abort;
  if (wire::decode_abort(bytes, prefix, abort) != wire::DropReason::kNone) return 0;
  const Name name{abort.transfer.tag, abort.transfer.generation};
  const auto open = of.open.find(name);
  if (open != of.open.end()) return open->second.receive.operation;
  if (is_over(of, name)) return 0;
  // Clause 8.1.3: its early data is discarded, and the ABORT is recorded if there is space for notes: it may replace
  // the note of a probe.
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

void ReceiveWatch::sends(std::uint16_t rank, base::TimeNs local, std::uint16_t to, std::span<const std::byte> bytes,
                         std::uint32_t by_path) {
  wire::Prefix prefix;
  if (wire::decode_prefix(bytes, prefix) != wire::DropReason::kNone) return;
  wire::Ack ack;
  wire::BitmapMessage bitmap;
  wire::Stop stop;
  if (prefix.type == wire::PacketType::kAck) {
    if (wire::decode_ack(bytes, prefix, ack) != wire::DropReason::kNone) return;
    check_block(rank, local, to, prefix.path, ack.block, (prefix.flags & MLT_ACK_FLAG_ECHO) != 0);
    for (std::uint8_t i = 0; i < ack.other_count; ++i) {
      check_block(rank, local, to, ack.others[i].path, ack.others[i].block, ack.others[i].fresh);
    }
  } else if (prefix.type == wire::PacketType::kBitmap) {
    if (wire::decode_bitmap(bytes, prefix, bitmap) != wire::DropReason::kNone) return;
    check_block(rank, local, to, prefix.path, bitmap.block, (prefix.flags & MLT_BITMAP_FLAG_ECHO) != 0);
  } else if (prefix.type == wire::PacketType::kStop) {
    if (wire::decode_stop(bytes, prefix, stop) != wire::DropReason::kNone) return;
    check_block(rank, local, to, prefix.path, stop.block, (prefix.flags & MLT_STOP_FLAG_ECHO) != 0);
  } else {
    return;
  }
  // Clause 4.5.3
  if (wire::reply_path(prefix.sequence) != by_path) fail(15, rank, to, "a reply that names another path than it takes");
  if (prefix.sequence != (by_path == wire::kNoReplyPath ? by_path : wire::reply_sequence(by_path, local))) {
    fail(15, rank, to, "a reply that names another time than that of its making");
  }
}

void ReceiveWatch::check_block(std::uint16_t rank, base::TimeNs local, std::uint16_t to, std::uint8_t path_number,
                               const wire::AckBlock& block, bool fresh) {
  Flow& of = flow(rank, to);
  of.paths.resize(driver_.host(rank).config().endpoint.paths);
  if (path_number >= of.paths.size()) return fail(15, rank, to, "a reply about an unknown path");
  PathIn& path = of.paths[path_number];
  if (block.highest_sequence != path.highest || block.received_packets != path.packets) {
    fail(15, rank, to,
         "path " + std::to_string(path_number) + " is said to have brought " + std::to_string(block.received_packets) +
             " packets up to " + std::to_string(block.highest_sequence) + ", it brought " +
             std::to_string(path.packets) + " up to " + std::to_string(path.highest));
  }
  // Clause 4.5.2
  if (fresh == path.echoed) fail(15, rank, to, "an echo that is fresh and not said to be, or the other way round");
  path.echoed = true;
  if (path.packets == 0) return;
  if (block.echo_timestamp_ns != path.timestamp_ns) fail(15, rank, to, "an echo of another packet than the highest");
  // Its host may have been late to read it.
  const auto held = static_cast<base::DurationNs>(block.hold_ns);
  if (held < std::min<base::DurationNs>(local - path.read_ns, 0xFFFF'FFFF) ||
      held > local - path.read_ns + kLongestWaitNs) {
    fail(15, rank, to,
         "an echo that was held for " + std::to_string(held) + " ns, it was read " +
             std::to_string(local - path.read_ns) + " ns ago");
  }
}

}  // namespace mlt::sim
