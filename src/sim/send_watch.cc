// A sender's inputs: posts, replies, ends. Its output: send_watch_runs.cc.
#include "sim/send_watch.h"

#include <algorithm>

namespace mlt::sim {

namespace {

// A packet is not declared lost before one sent at least this much later is known to have arrived (R2.3.1).
constexpr base::DurationNs kMinLatenessNs = base::kMillisecond;

}  // namespace

SendWatch::SendWatch(VirtualDriver& driver) : driver_(driver), flows_(driver.hosts()), senders_(driver.hosts()) {}

void SendWatch::fail(int rule, std::uint16_t rank, std::uint16_t peer, const std::string& text) {
  driver_.fail("rule " + std::to_string(rule) + ": rank " + std::to_string(rank) + " to " + std::to_string(peer) +
               ": " + text);
}

void SendWatch::went_down(std::uint16_t rank, std::uint16_t peer) {
  Flow& of = flow(rank, peer);
  for (const auto& sending : of.open) forget(senders_[rank], *sending);
  of.open.clear();
  of.up = false;
}

void SendWatch::crashed(std::uint16_t rank) {
  flows_.crashed(rank);
  senders_[rank] = Sender{};
}

std::uint32_t SendWatch::segment_count(const Flow& of, const WatchedSend& send) {
  return std::max(1U, (send.bytes + of.peer.segment_bytes - 1) / of.peer.segment_bytes);
}

core::SegmentPriority SendWatch::priority_of(const WatchedSend& send, std::uint32_t segment) {
  return send.priorities.empty() ? send.uniform : send.priorities[segment];
}

void SendWatch::posted(std::uint16_t rank, std::uint16_t peer, WatchedSend send) {
  Flow& of = flow(rank, peer);
  auto made = std::make_unique<Sending>();
  Sending& sending = *made;
  sending.number = of.posts++;
  sending.left = segment_count(of, send);
  sending.pending.assign(sending.left, 1);
  // Critical segments first, then important ones, then the rest.
  for (int kind = 0; kind < 3 && !send.priorities.empty(); ++kind) {
    for (std::uint32_t i = 0; i < sending.left; ++i) {
      const core::SegmentPriority tag = send.priorities[i];
      const int of_segment = tag.is_critical() ? 0 : (tag.bits & core::SegmentPriority::kImportant) != 0 ? 1 : 2;
      if (of_segment == kind) sending.in_order.push_back(i);
    }
    if (kind == 0) sending.critical = static_cast<std::uint32_t>(sending.in_order.size());
  }
  if (send.priorities.empty() && send.uniform.is_critical()) sending.critical = sending.left;
  // Clause 6.5.11
  if (send.is_fed) {
    std::swap(sending.left, sending.withheld);
    std::ranges::fill(sending.pending, 0);
  }
  sending.send = std::move(send);
  sending.may_wait = is_exhausted(of);
  const auto place = std::find_if(of.open.begin(), of.open.end(),
                                  [&](const auto& other) { return sending.send.order < other->send.order; });
  of.open.insert(place, std::move(made));
}

void SendWatch::fed(std::uint16_t rank, std::uint16_t peer, core::OperationId operation, std::uint32_t segment) {
  for (const auto& sending : flow(rank, peer).open) {
    if (sending->send.operation != operation) continue;
    sending->pending[segment] = 1;
    ++sending->left;
    --sending->withheld;
    sending->cursor = 0;
  }
}

void SendWatch::forget(Sender& sender, Sending& sending) {
  if (sending.owes_probe) --sender.owed_probes;
  sending.owes_probe = false;
}

void SendWatch::ended(std::uint16_t rank, std::uint16_t peer, core::OperationId operation) {
  Flow& of = flow(rank, peer);
  for (auto at = of.open.begin(); at != of.open.end(); ++at) {
    Sending& sending = **at;
    if (sending.send.operation != operation) continue;
    forget(senders_[rank], sending);
    if (!sending.ready && !sending.over && sending.early > 0) {
      of.aborted.push_back({{sending.send.tag, sending.send.generation}, sending.early});
    }
    of.open.erase(at);
    return;
  }
}

void SendWatch::release(Flow& of, const wire::TransferId& transfer) {
  std::erase_if(of.aborted, [&](const Flow::Aborted& aborted) { return aborted.transfer == transfer; });
}

SendWatch::EarlyOut SendWatch::early_out(const Flow& of) {
  EarlyOut out;
  for (const auto& sending : of.open) {
    if (sending->ready || sending->over || sending->early == 0) continue;
    out.segments += sending->early;
    ++out.transfers;
  }
  for (const Flow::Aborted& aborted : of.aborted) {
    out.segments += aborted.early;
    ++out.transfers;
  }
  return out;
}

bool SendWatch::is_exhausted(const Flow& of) {
  const EarlyOut out = early_out(of);
  // Clause 6.4.6: some of what was offered may be left.
  const std::uint32_t min_segments = std::min(of.peer.early_segments, std::max(of.peer.early_segments / 8, 256U));
  return out.segments >= std::max(min_segments, 1U) || out.transfers >= std::max(of.peer.early_transfers, 1U);
}

SendWatch::Sending* SendWatch::find(Flow& of, const wire::TransferId& transfer) {
  for (const auto& sending : of.open) {
    if (sending->send.tag == transfer.tag && sending->send.generation == transfer.generation) return sending.get();
  }
  return nullptr;
}

// ---- what is read --------------------------------------------------------------------------------------------------

void SendWatch::reads(std::uint16_t rank, base::TimeNs local, const wire::Prefix& prefix,
                      std::span<const std::byte> bytes) {
  stopped_ = 0;
  const std::uint16_t from = wire::cookie_rank(prefix.cookie);
  Flow& of = flow(rank, from);
  of.heard = true;
  Sender& sender = senders_[rank];
  if (prefix.type == wire::PacketType::kAck) {
    wire::Ack ack;
    if (wire::decode_ack(bytes, prefix, ack) != wire::DropReason::kNone) return;
    for (std::uint8_t i = 0; i < ack.other_count; ++i) {
      if (ack.others[i].path >= driver_.host(rank).config().endpoint.paths) return;
    }
    take_block(of, prefix.path, ack.block);
    for (std::uint8_t i = 0; i < ack.other_count; ++i) take_block(of, ack.others[i].path, ack.others[i].block);
    take_answer(of, local, ack.probe_timestamp_ns);
    Sending* sending = find(of, ack.transfer);
    if (sending != nullptr && (prefix.flags & MLT_ACK_FLAG_POSTED) != 0) become_ready(*sending);
  } else if (prefix.type == wire::PacketType::kBitmap) {
    wire::BitmapMessage bitmap;
    if (wire::decode_bitmap(bytes, prefix, bitmap) != wire::DropReason::kNone) return;
    take_block(of, prefix.path, bitmap.block);
    take_answer(of, local, bitmap.probe_timestamp_ns);
    Sending* sending = find(of, bitmap.transfer);
    const bool not_posted = (prefix.flags & MLT_BITMAP_FLAG_NOT_POSTED) != 0;
    if (not_posted && bitmap.probe_timestamp_ns == 0) release(of, bitmap.transfer);
    if (sending == nullptr || not_posted) return;
    become_ready(*sending);
    take_bitmap(sender, of, *sending, bitmap);
  } else if (prefix.type == wire::PacketType::kStop) {
    wire::Stop stop;
    if (wire::decode_stop(bytes, prefix, stop) != wire::DropReason::kNone) return;
    take_block(of, prefix.path, stop.block);
    take_answer(of, local, stop.probe_timestamp_ns);
    release(of, stop.transfer);
    Sending* sending = find(of, stop.transfer);
    if (sending == nullptr || sending->over) return;
    // Clause 6.9.5: a success with another size is dropped.
    const bool success = stop.status == wire::StopStatus::kComplete || stop.status == wire::StopStatus::kWithinBound;
    if (success && stop.receiver_total_bytes != sending->send.bytes) return;
    forget(sender, *sending);
    sending->over = true;
    stopped_ = sending->send.operation;
  }
}

void SendWatch::take_block(Flow& of, std::uint8_t path_number, const wire::AckBlock& block) {
  if (path_number >= of.paths.size()) return;  // nothing was sent on it yet
  Path& path = of.paths[path_number];
  if (const std::uint32_t arrived = block.received_packets - path.reported; arrived < 0x8000'0000U) {
    of.reported_packets += arrived;
    path.reported = block.received_packets;
  }
  const std::uint32_t highest = block.highest_sequence;
  if (highest == 0 || static_cast<std::int32_t>(highest - path.acknowledged) <= 0) return;
  if (static_cast<std::int32_t>(highest - path.last) > 0) return;
  path.acknowledged = highest;
  for (; path.first < path.bursts.size(); ++path.first) {
    Burst& burst = path.bursts[path.first];
    const bool beyond = static_cast<std::int32_t>(burst.last - highest) > 0;
    // 0 is not a sequence number: after 2^32 - 1 comes 1.
    const std::uint32_t left = beyond ? burst.last - highest - (burst.last < highest ? 1 : 0) : 0;
    if (left >= burst.packets) break;  // it begins after `highest`
    of.newest_arrived_ns = std::max(of.newest_arrived_ns, burst.sent_ns);
    if (left == 0) continue;
    burst.packets = left;
    burst.data = std::min(burst.data, left);
    break;
  }
}

// Clause 6.3.6: the reply to a probe of a stalled window resolves everything sent before that probe.
void SendWatch::take_answer(Flow& of, base::TimeNs local, std::uint32_t probe_timestamp_ns) {
  if (probe_timestamp_ns != 0) {
    for (const Flow::Probe& probe : of.probes) {
      const auto low = static_cast<std::uint32_t>(probe.sent_ns);
      if (!probe.behind_stall || (low == 0 ? 1 : low) != probe_timestamp_ns || probe.sent_ns > local) continue;
      for (Path& path : of.paths) {
        while (path.first < path.bursts.size() && path.bursts[path.first].sent_ns <= probe.sent_ns) ++path.first;
      }
    }
  }
  if (of.paths.size() < 2) return;
  // Clause R2.3.1: with several paths, also what must have arrived by now if its path worked.
  for (Path& path : of.paths) {
    while (path.first < path.bursts.size() && path.bursts[path.first].sent_ns < of.newest_arrived_ns - kMinLatenessNs) {
      ++path.first;
    }
  }
}

void SendWatch::become_ready(Sending& sending) {
  sending.ready = true;
  sending.early = 0;
}

// Clause 6.7.2 to 6.7.5.
void SendWatch::take_bitmap(Sender& sender, Flow& of, Sending& sending, const wire::BitmapMessage& bitmap) {
  const std::uint32_t count = segment_count(of, sending.send);
  if (bitmap.segment_count == 0 || bitmap.first_segment >= count ||
      bitmap.segment_count > count - bitmap.first_segment) {
    return;
  }
  const auto is_missing = [&](std::uint32_t i) {
    return (std::to_integer<unsigned>(bitmap.bits[i / 8]) >> (i % 8) & 1U) == 0;
  };
  std::uint32_t i = 0;
  while (i < bitmap.segment_count && !is_missing(i)) ++i;
  if (i == bitmap.segment_count) return;
  const bool begins = bitmap.prefix.round == sending.round && sending.is_round_over();
  const bool adds = sending.round != sending.requested_round && bitmap.prefix.round == sending.requested_round;
  if (!begins && !adds) return;
  const std::size_t chunk = bitmap.first_segment / MLT_BITMAP_CHUNK_SEGMENTS;
  sending.merged.resize(count / MLT_BITMAP_CHUNK_SEGMENTS + 1);
  if (begins) {
    sending.merged.assign(sending.merged.size(), false);
    sending.requested_round = sending.round;
  } else if (sending.merged[chunk]) {
    return;
  }
  if (sending.is_round_over()) {
    ++sending.round;
    ++sending.rounds;
    forget(sender, sending);
  }
  sending.merged[chunk] = true;
  for (i = 0; i < bitmap.segment_count; ++i) {
    std::uint8_t& pending = sending.pending[bitmap.first_segment + i];
    if (!is_missing(i) || pending != 0) continue;
    pending = 1;
    ++sending.left;
  }
  sending.cursor = 0;
}

void SendWatch::sends_message(std::uint16_t rank, base::TimeNs local, const core::ControlOutput& output) {
  const std::span<const std::byte> bytes{output.bytes, output.size};
  wire::Prefix prefix;
  if (wire::decode_prefix(bytes, prefix) != wire::DropReason::kNone) {
    return fail(15, rank, output.peer, "a message over the control connection that its peer would reject");
  }
  if (prefix.type == wire::PacketType::kProbe) check_probe(rank, local, output.peer, prefix, bytes, nullptr);
}

std::vector<SendWatch::Path>& SendWatch::paths(std::uint16_t rank, Flow& of) {
  if (!of.paths.empty()) return of.paths;
  const core::EndpointConfig& endpoint = driver_.host(rank).config().endpoint;
  of.paths.resize(endpoint.paths);
  for (Path& path : of.paths) path.last = path.acknowledged = endpoint.first_sequence - 1;
  return of.paths;
}

// Minimum number of packets in flight: DATA packets neither known to have arrived nor allowed to be declared lost.
std::uint64_t SendWatch::in_flight(Flow& of) const {
  std::uint64_t packets = 0;
  for (Path& path : of.paths) {
    if (path.first > 64 && 2 * path.first > path.bursts.size()) {
      path.bursts.erase(path.bursts.begin(), path.bursts.begin() + static_cast<std::ptrdiff_t>(path.first));
      path.first = 0;
    }
    for (std::size_t i = path.first; i < path.bursts.size(); ++i) packets += path.bursts[i].data;
  }
  return packets;
}

}  // namespace mlt::sim
