// Datagrams and messages in flight between the two hosts of a micro-swarm world, and their faults.
#include <algorithm>
#include <cstring>

#include "sim/micro_world.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::TimeNs;

constexpr DurationNs kPropagationNs = 10 * kMicrosecond;
constexpr DurationNs kSecondPathNs = 4 * kMicrosecond;
constexpr DurationNs kMessageNs = 60 * kMicrosecond;
constexpr DurationNs kNewConnectionNs = kMillisecond;
// In flight at once: 1.5 s of a transfer are some 1,000 packets and trailing probes.
constexpr std::size_t kMaxEvents = 5'000;

}  // namespace

// ---- datagrams -----------------------------------------------------------------------------------------------------

MicroWorld::Event& MicroWorld::add_event(What what, TimeNs at) {
  if (free_.empty()) free_.push_back(new Event);  // freed with the world's memory
  Event* event = free_.back();
  free_.pop_back();
  event->at = at;
  event->number = ++pushed_;
  event->what = what;
  event->is_copy = false;
  event->sent = 0;
  event->size = 0;
  events_.push_back(event);
  due_known_ = false;
  return *event;
}

// Its contents stay readable until the next event is added.
void MicroWorld::remove(Event* event) {
  const auto at = std::ranges::find(events_, event);
  *at = events_.back();
  events_.pop_back();
  free_.push_back(event);
  due_known_ = false;
}

std::uint64_t MicroWorld::cookie(std::uint16_t from) const {
  return ((connections_made_ * 2 + from) * 0x9E37'79B9'7F4A'0000ULL & ~std::uint64_t{MLT_COOKIE_RANK_MASK}) | from;
}

TimeNs MicroWorld::arrival_ns(const Event& event) const {
  const Stall& stalled = stalls_[event.from][event.path];
  TimeNs at = now_ + kPropagationNs + event.path * kSecondPathNs;
  at = std::max(at, stalled.all_until);
  if (event.dscp != kMicroControlDscp) at = std::max(at, stalled.data_until);
  return at;
}

void MicroWorld::transmit(std::uint16_t host, const core::Transmit& run) {
  std::uint32_t slice = 0;
  std::uint32_t left = run.total_bytes;
  const TimeNs local = hosts_[host].config().clock.local(now_);
  if (observer != nullptr) observer->sends_run(host, local, run);
  for (std::uint32_t i = 0; i < run.datagram_count; ++i) {
    const std::uint32_t size = std::min(run.datagram_bytes, left);
    left -= size;
    if (size > Event::kMaxBytes) return violation(host, "a datagram that no world of this size needs");
    if (events_.size() >= kMaxEvents) return violation(host, "more on the way than any world needs");
    Event& event = add_event(What::kDatagram, 0);
    event.from = static_cast<std::uint8_t>(host);
    event.to = static_cast<std::uint8_t>(run.peer);
    event.path = run.path;
    event.dscp = run.dscp;
    event.ecn = run.ecn;
    event.size = static_cast<std::uint16_t>(size);
    event.sent = ++sent_;
    std::uint32_t filled = 0;
    for (int part = 0; part < 2 && filled < size; ++part, ++slice) {  // a datagram is one or two whole slices
      const base::Slice& s = run.slices[slice];
      if (slice >= run.slice_count || s.size > size - filled) return violation(host, "slices across datagrams");
      if (s.size > 0) std::memcpy(event.bytes.data() + filled, s.data, s.size);
      filled += static_cast<std::uint32_t>(s.size);
    }
    wire::Prefix prefix;
    if (filled != size || wire::decode_prefix(std::span(event.bytes).first(size), prefix) != wire::DropReason::kNone ||
        prefix.cookie != cookie(host)) {
      // A connection may have just been replaced; the endpoint learns of it in its next turn.
      if (hosts_[host].connection(run.peer) == connection_) return violation(host, "a datagram that its peer rejects");
    }
    event.type = prefix.type;
    event.at = arrival_ns(event);
    ledger_.add(Fate::k_sent, wire::has_payload(event.type), size);
    record(TraceKind::kSent, host, &event, Fate::k_sent, "");
    if (observer != nullptr) observer->sends(host, local, packet_of(event));
    if (scenario_.control_lost && event.dscp == kMicroControlDscp) drop(event);
  }
}

// Notes that the network is not faultless if data, or a copy of it, overtakes data of the same path and class.
void MicroWorld::note_overtaking(const Event& event) {
  if (!faultless_ || event.dscp == kMicroControlDscp) return;
  for (const Event* other : events_) {
    if (other->what == What::kDatagram && !other->is_copy && other->from == event.from && other->path == event.path &&
        other->dscp == event.dscp && other->sent < event.sent) {
      faultless_ = false;
      oracle_->on_network_fault();
      return;
    }
  }
}

void MicroWorld::deliver(Event& event) {
  ++steps_;
  remove(&event);
  note_overtaking(event);
  record(TraceKind::kDelivered, event.to, &event, Fate::k_delivered, "");
  ledger_.add(Fate::k_delivered, wire::has_payload(event.type), event.size);
  // The host may send before it has read all of this one: its output must use other memory.
  Event* const own = free_.back();
  free_.pop_back();
  hosts_[own->to].receive(now_, packet_of(*own));
  free_.push_back(own);
}

void MicroWorld::drop(Event& event) {
  ++steps_;
  faultless_ = false;
  oracle_->on_network_fault();
  ledger_.add(Fate::k_dropped_loss, wire::has_payload(event.type), event.size);
  record(TraceKind::kDropped, event.to, &event, Fate::k_dropped_loss, "");
  remove(&event);
}

void MicroWorld::copy(const Event& event, TimeNs at) {
  ++steps_;
  Event& made = add_event(What::kDatagram, at);
  const std::uint32_t number = made.number;
  made = event;
  made.at = at;
  made.number = number;
  made.is_copy = true;
  ledger_.add(Fate::k_duplicated, wire::has_payload(event.type), event.size);
  record(TraceKind::kDropped, event.to, &event, Fate::k_duplicated, "");
}

void MicroWorld::postpone(Event& event, TimeNs at) {
  event.number = ++pushed_;
  if (event.what == What::kMessage) {
    // The control connection preserves order.
    for (Event* other : events_) {
      if (other->what == What::kMessage && other->from == event.from && other != &event) {
        other->at = std::max(other->at, at);
        if (other->at == at) other->number = ++pushed_;
      }
    }
  }
  event.at = at;
  record(TraceKind::kNote, event.to, nullptr, Fate::k_sent, "what is due is put off");
}

void MicroWorld::stall(const Event& event, DurationNs duration_ns, bool data_only) {
  const TimeNs until = event.at + duration_ns;
  Stall& stalled = stalls_[event.from][event.path];
  TimeNs& end = data_only ? stalled.data_until : stalled.all_until;
  end = std::max(end, until);
  const std::uint8_t from = event.from;
  const std::uint8_t path = event.path;
  for (Event* each : events_) {
    if (each->what != What::kDatagram || each->from != from || each->path != path) continue;
    if (data_only && each->dscp == kMicroControlDscp) continue;
    each->at = std::max(each->at, until);  // their numbers preserve the order
  }
  record(TraceKind::kNote, event.to, nullptr, Fate::k_sent, data_only ? "data to it is held" : "its path is stalled");
}

// ---- connections and calls -----------------------------------------------------------------------------------------

void MicroWorld::message(std::uint16_t host, const core::ControlOutput& output) {
  if (known_[host] == 0) return;
  if (output.size > Event::kMaxBytes) return violation(host, "a message that no world of this size needs");
  if (events_.size() >= kMaxEvents) return violation(host, "more on the way than any world needs");
  if (observer != nullptr) observer->sends_message(host, hosts_[host].config().clock.local(now_), output);
  TimeNs at = now_ + kMessageNs;
  for (const Event* other : events_) {
    if (other->what == What::kMessage && other->from == host) at = std::max(at, other->at);
  }
  Event& event = add_event(What::kMessage, at);
  event.from = static_cast<std::uint8_t>(host);
  event.to = static_cast<std::uint8_t>(output.peer);
  event.connection = known_[host];
  event.size = static_cast<std::uint16_t>(output.size);
  std::memcpy(event.bytes.data(), output.bytes, output.size);
}

void MicroWorld::connect() {
  connection_ = ++connections_made_;
  peer_up(0);
  peer_up(1);
}

void MicroWorld::peer_up(std::uint16_t rank) {
  const auto peer = static_cast<std::uint16_t>(1 - rank);
  if (known_[rank] != 0) hosts_[rank].control(now_, core::PeerDown{peer});
  known_[rank] = connection_;
  core::PeerUp up;
  up.peer = peer;
  up.local_cookie = cookie(peer);
  up.remote_cookie = cookie(rank);
  up.segment_bytes = MicroScenario::kSegmentBytes;
  up.window_bytes = up.own_window_bytes = scenario_.window_bytes;
  up.early_segments = hosts_[peer].config().endpoint.early_segments_per_peer();
  up.early_transfers = hosts_[peer].config().endpoint.early_transfers_per_peer();
  record(TraceKind::kPeerUp, rank, nullptr, Fate::k_sent, "the peer is up");
  hosts_[rank].control(now_, up, connection_);
}

void MicroWorld::disconnect(MicroChoice choice) {
  ++steps_;
  disconnected_ = true;
  const std::uint64_t before = connection_;
  connection_ = 0;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    const bool later = choice.action == MicroAction::k_disconnect_apart && choice.argument == rank;
    Event& event = add_event(What::kPeerDown, now_ + (later ? micro_action_ns(choice.action) : 0));
    event.from = static_cast<std::uint8_t>(1 - rank);
    event.to = static_cast<std::uint8_t>(rank);
    event.connection = before;
  }
  add_event(What::kConnect, now_ + kNewConnectionNs);
}

void MicroWorld::call(const Event& event) {
  const MicroTransfer& transfer = scenario_.transfers[event.call];
  disturbed_until_ns_ = std::max(disturbed_until_ns_, now_);
  const core::OperationId id =
      event.call_is_send ? oracle_->post_send(transfer.send) : oracle_->post_receive(transfer.receive);
  record(TraceKind::kNote, event.call_is_send ? transfer.send.host : transfer.receive.host, nullptr, Fate::k_sent,
         event.call_is_send ? "posts a send" : "posts a receive");
  if (id != 0) operations_.push_back(id);
}

Packet MicroWorld::packet_of(const Event& event) {
  Packet packet;
  packet.from = event.from;
  packet.to = event.to;
  packet.path = event.path;
  packet.dscp = event.dscp;
  packet.ecn = event.ecn;
  packet.type = event.type;
  packet.size = event.size;
  packet.bytes = const_cast<std::byte*>(event.bytes.data());
  return packet;
}

}  // namespace mlt::sim
