#include "core/endpoint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace mlt::core {

Endpoint::Endpoint(const EndpointConfig& config)
    : shared_(config),
      links_(config.peers),
      arena_(config.bitmap_words),
      sender_(shared_, arena_),
      receiver_(shared_, arena_) {
  // RECOVERY R2.1.1: A job MUST configure the same number of paths, 1 to 16, at every rank; it is not negotiated.
  MLT_CHECK(config.paths >= 1 && config.paths <= MLT_MAX_PATHS);
  MLT_CHECK(config.rank < config.peers);
  MLT_CHECK(config.first_sequence != 0);
  MLT_CHECK(config.max_receives < kGenerationGap);
  MLT_CHECK(config.dscp.data_classes >= 1 && config.dscp.data_classes <= kMaxClasses);
  MLT_CHECK(config.timely.line_rate_bytes_per_second > 0);
}

// Frees the slot of a polled completion only when the driver calls again, so that the returned bitmap stays valid.
void Endpoint::release_polled() {
  if (!has_polled_) return;
  has_polled_ = false;
  polled_.kind == CompletionKind::kSend ? sender_.release(polled_.slot) : receiver_.release(polled_.slot);
}

PostStatus Endpoint::post_send(TimeNs now, const SendRequest& request) {
  release_polled();
  use(request.peer);
  return sender_.post(now, request);
}

PostStatus Endpoint::post_recv(TimeNs now, const ReceiveRequest& request) {
  release_polled();
  use(request.peer);
  return receiver_.post(now, request);
}

void Endpoint::count_drop(wire::DropReason reason) {
  switch (reason) {
    case wire::DropReason::kNone:
      return;
    case wire::DropReason::kTooShort:
      return shared_.counters.add(Counter::k_drop_too_short);
    case wire::DropReason::kBadVersion:
      return shared_.counters.add(Counter::k_drop_bad_version);
    case wire::DropReason::kUnknownType:
      return shared_.counters.add(Counter::k_drop_unknown_type);
    case wire::DropReason::kUnknownFlags:
      return shared_.counters.add(Counter::k_drop_unknown_flags);
    case wire::DropReason::kUnknownElement:
      return shared_.counters.add(Counter::k_drop_unknown_element);
    case wire::DropReason::kBadLength:
      return shared_.counters.add(Counter::k_drop_bad_length);
  }
}

// Finds the connection by the cookie's low 16 bits; all 64 must match.
bool Endpoint::identify(std::span<const std::byte> datagram, wire::Prefix& prefix, std::uint16_t& from) {
  if (const wire::DropReason reason = wire::decode_prefix(datagram, prefix); reason != wire::DropReason::kNone) {
    count_drop(reason);
    return false;
  }
  // PROTOCOL 4.1.4: An endpoint MUST identify the sender of a datagram by the cookie alone, never by the source
  //     address.
  from = wire::cookie_rank(prefix.cookie);
  // PROTOCOL 4.3.4: It MUST drop the datagram unless that connection is up and all 64 bits are its cookie
  //     (drop_bad_cookie).
  const bool is_rank = from < shared_.config.peers;
  if (!is_rank || !view(from).is_up || view(from).up.local_cookie != prefix.cookie) {
    shared_.counters.add(Counter::k_drop_bad_cookie);
    if (is_rank) {
      // PROTOCOL 7.5.10: provided that it dropped a datagram of the peer before this connection was up. That datagram
      //     named the peer's rank, with the cookie that the receiver gave it if cookies are drawn before connections.
      // Without the right cookie anyone could have sent it, and would delay the peer's first receives.
      Link& link = links_[from];
      link.refused = link.refused || link.issued_cookie == 0 || link.issued_cookie == prefix.cookie;
    }
    return false;
  }
  // Replies take the path in the packet: it must be one that the driver has.
  if (prefix.path >= shared_.config.paths) {
    shared_.counters.add(Counter::k_drop_bad_path);
    return false;
  }
  use(from);
  shared_.peers[from].heard = true;
  return true;
}

void Endpoint::set_issued_cookie(std::uint64_t cookie) {
  const std::uint16_t peer = wire::cookie_rank(cookie);
  MLT_CHECK(peer < shared_.config.peers);
  links_[peer].issued_cookie = cookie;
}

void Endpoint::on_datagram(TimeNs now, std::span<const std::byte> datagram, base::Ecn ecn, TimeNs arrival_ns) {
  release_polled();
  arrival_ns = std::min(arrival_ns, now);
  wire::DataHeader header;
  const wire::Prefix& prefix = header.prefix;
  std::uint16_t from = 0;
  // PROTOCOL 4.3.5: A receiver MUST make it before it looks at anything that the table of 4.11 lists after it.
  if (!identify(datagram, header.prefix, from)) return;
  shared_.peers[from].datagram_at = now;
  if (prefix.type == wire::PacketType::kParity) {
    return on_parity_datagram(now, arrival_ns, from, datagram, prefix, ecn);
  }
  if (prefix.type != wire::PacketType::kData) {
    return on_control_datagram(now, arrival_ns, from, datagram, prefix, ecn, false);
  }
  std::span<const std::byte> payload;
  const wire::DropReason reason = wire::decode_data(datagram, header, payload);
  if (reason != wire::DropReason::kNone) return count_drop(reason);
  receiver_.on_data(now, arrival_ns, from, header, payload, ecn);
}

void Endpoint::on_parity_datagram(TimeNs now, TimeNs arrival_ns, std::uint16_t from,
                                  std::span<const std::byte> datagram, const wire::Prefix& prefix, base::Ecn ecn) {
  wire::ParityHeader header;
  header.prefix = prefix;
  std::span<const std::byte> payload;
  const wire::DropReason reason = wire::decode_parity(datagram, header, payload);
  if (reason != wire::DropReason::kNone) return count_drop(reason);
  receiver_.on_parity(now, arrival_ns, from, header, payload, ecn);
}

void Endpoint::on_control_datagram(TimeNs now, TimeNs arrival_ns, std::uint16_t from,
                                   std::span<const std::byte> datagram, const wire::Prefix& prefix, base::Ecn ecn,
                                   bool by_control) {
  wire::DropReason reason = wire::DropReason::kUnknownType;
  switch (prefix.type) {
    case wire::PacketType::kData:  // never over the control connection
    case wire::PacketType::kParity:
      break;
    case wire::PacketType::kAck: {
      wire::Ack ack;
      reason = wire::decode_ack(datagram, prefix, ack);
      if (reason != wire::DropReason::kNone) break;
      for (std::uint8_t i = 0; i < ack.other_count; ++i) {
        // PROTOCOL 4.11.8: A receiver MUST drop ACK if it names a path that is not configured (drop_bad_path).
        if (ack.others[i].path >= shared_.config.paths) return shared_.counters.add(Counter::k_drop_bad_path);
      }
      sender_.on_ack(now, arrival_ns, from, ack);
      break;
    }
    case wire::PacketType::kProbe: {
      wire::Probe probe;
      reason = wire::decode_probe(datagram, prefix, probe);
      if (reason == wire::DropReason::kNone) receiver_.on_probe(now, arrival_ns, from, probe, ecn, by_control);
      break;
    }
    case wire::PacketType::kBitmap: {
      wire::BitmapMessage bitmap;
      reason = wire::decode_bitmap(datagram, prefix, bitmap);
      if (reason == wire::DropReason::kNone) sender_.on_bitmap(now, arrival_ns, from, bitmap);
      break;
    }
    case wire::PacketType::kStop: {
      wire::Stop stop;
      reason = wire::decode_stop(datagram, prefix, stop);
      if (reason == wire::DropReason::kNone) sender_.on_stop(now, arrival_ns, from, stop);
      break;
    }
    case wire::PacketType::kAbort: {
      // PROTOCOL 4.10.1: ABORT MUST be sent over the control connection only, as a fallback frame, because it is rare,
      //     final, and must arrive.
      if (!by_control) break;  // never in a datagram
      wire::Abort abort;
      reason = wire::decode_abort(datagram, prefix, abort);
      if (reason == wire::DropReason::kNone) receiver_.on_abort(now, from, abort);
      break;
    }
    case wire::PacketType::kMtuProbe: {
      if (by_control) break;  // only applies to datagrams
      wire::MtuProbe probe;
      reason = wire::decode_mtu_probe(datagram, prefix, probe);
      if (reason == wire::DropReason::kNone) receiver_.on_mtu_probe(from, probe);
      break;
    }
    case wire::PacketType::kMtuReply: {
      if (by_control) break;
      wire::MtuReply reply;
      reason = wire::decode_mtu_reply(datagram, prefix, reply);
      if (reason == wire::DropReason::kNone) sender_.on_mtu_reply(now, from, reply);
      break;
    }
    case wire::PacketType::kRetire: {
      if (!by_control) break;
      wire::Retire retire;
      reason = wire::decode_retire(datagram, prefix, retire);
      if (reason == wire::DropReason::kNone) receiver_.on_retire(now, from, retire);
      break;
    }
  }
  count_drop(reason);
}

std::uint32_t Endpoint::packets_per_ack(const PeerUp& up) const {
  const std::uint32_t max_packets = shared_.config.packets_per_ack;
  if (up.own_window_bytes == 0) return max_packets;
  return std::clamp(up.own_window_bytes / 2 / (up.segment_bytes + MLT_DATA_HEADER_BYTES), 1U, max_packets);
}

void Endpoint::bring_up(const PeerUp& up) {
  MLT_CHECK(up.peer < shared_.config.peers && up.peer != shared_.config.rank);
  MLT_CHECK(up.segment_bytes > 0 && up.segment_bytes % 8 == 0 && up.segment_bytes <= shared_.config.max_segment_bytes);
  MLT_CHECK(wire::cookie_rank(up.local_cookie) == up.peer && wire::cookie_rank(up.remote_cookie) == config().rank);
  Link& link = links_[up.peer];
  MLT_CHECK(!link.is_up);
  MLT_CHECK(link.issued_cookie == 0 || link.issued_cookie == up.local_cookie);
  link.up = up;
  link.is_up = true;
  link.refused_before_up = std::exchange(link.refused, false);
  if (link.is_used) begin(link);  // what an earlier connection left ends with the new one
}

void Endpoint::use(std::uint16_t peer) {
  if (peer >= shared_.config.peers) return;
  const Link& link = std::as_const(links_)[peer];
  if (link.is_up && !link.is_used) begin(links_[peer]);
}

double Endpoint::line_rate(const Link& link) const {
  // PROTOCOL 23.3.2: A sender MUST NOT control the rate to such a peer: a round trip shows how busy the processes are,
  //     not a network.
  return link.up.holds_back ? kUncontrolledBytesPerSecond : shared_.config.timely.line_rate_bytes_per_second;
}

void Endpoint::begin(Link& link) {
  const PeerUp& up = link.up;
  link.is_used = true;
  // PROTOCOL 3.5.2: An endpoint MUST start a connection that comes up with fresh state for the peer: sequence numbers,
  //     rate, round trip and every tag's generations from zero.
  Peer& peer = shared_.peers[up.peer];
  static_cast<PeerConnection&>(peer) = PeerConnection{};
  peer.spray.restart(shared_.paths_out.row(up.peer), shared_.config.first_sequence);
  peer.refused_before_up = link.refused_before_up;
  peer.up = true;
  peer.remote_cookie = up.remote_cookie;
  peer.segment_bytes = up.segment_bytes;
  peer.path_window = PathWindow(up.window_bytes, shared_.config.max_window_bytes);
  peer.holds_back = up.holds_back;
  peer.rtt = RttEstimator(up.holds_back);
  TimelyConfig timely = shared_.config.timely;
  timely.line_rate_bytes_per_second = line_rate(link);
  peer.rate.emplace(timely);
  sender_.on_peer_up(up);
  receiver_.on_peer_up(up.peer, packets_per_ack(up));
}

void Endpoint::on_control(TimeNs now, const ControlInput& input) {
  release_polled();
  if (const auto* up = std::get_if<PeerUp>(&input)) {
    bring_up(*up);
  } else if (const auto* down = std::get_if<PeerDown>(&input)) {
    if (down->peer >= shared_.config.peers || !view(down->peer).is_up) return;
    Link& link = links_[down->peer];
    link.is_up = false;
    if (!link.is_used) return;
    shared_.peers[down->peer].up = false;
    sender_.on_peer_down(now, down->peer);
    receiver_.on_peer_down(now, down->peer);
  } else if (const auto* limit = std::get_if<PathLimit>(&input)) {
    sender_.on_path_limit(now, limit->peer, limit->payload_bytes);
  } else if (const auto* message = std::get_if<PeerMessage>(&input)) {
    wire::Prefix prefix;
    std::uint16_t from = 0;
    if (!identify(message->bytes, prefix, from)) return;
    // PROTOCOL 4.11.6: A receiver MUST drop a message over TCP whose cookie is another rank's than the connection's
    //     (drop_bad_cookie).
    if (from != message->peer) return shared_.counters.add(Counter::k_drop_bad_cookie);
    // PROTOCOL 9.1.4: A receiver MUST apply the checks of 4.11 to a fallback frame, and then take it like the datagram.
    on_control_datagram(now, now, from, message->bytes, prefix, base::Ecn::kNotEct, true);
  } else if (const auto* cancel = std::get_if<Cancel>(&input)) {
    cancel->kind == CompletionKind::kSend ? sender_.cancel(now, cancel->operation)
                                          : receiver_.cancel(now, cancel->operation);
  } else if (std::holds_alternative<Closing>(input)) {
    receiver_.on_closing(now);
  } else if (std::holds_alternative<DatagramsDropped>(input)) {
    receiver_.on_datagrams_dropped(now);
  }
}

void Endpoint::on_timeout(TimeNs now) {
  release_polled();
  std::uint32_t slot = 0;
  // RECOVERY R3.1.1: Every wait MUST end: by what it waits for, or by one of these timers. An endpoint has one timer
  //     per send and per receive, and two per peer
  while (shared_.timers.pop_due(now, slot)) {
    const std::uint32_t number = slot / Shared::kTimerKinds;
    const auto peer_of_timer = [&] { return static_cast<std::uint16_t>(shared_.peers.item_at(number)); };
    switch (slot % Shared::kTimerKinds) {
      case Shared::kPeerTimer:
        sender_.on_peer_timer(now, peer_of_timer());
        break;
      case Shared::kMtuTimer:
        sender_.on_mtu_timer(now, peer_of_timer());
        break;
      case Shared::kSendTimer:
        sender_.on_send_timer(now, number);
        break;
      default:
        receiver_.on_receive_timer(now, number);
    }
  }
}

// Replies first, then probes, then data: the peer waits for replies and probes, and they are small.
bool Endpoint::poll_transmit(TimeNs now, const TransmitCapabilities& capabilities, Transmit& transmit) {
  release_polled();
  // PROTOCOL 6.1.4: An endpoint MUST send replies before probes, and probes before data: the peer waits for replies and
  //     probes, and they are small.
  return receiver_.fill_reply(now, transmit) || sender_.fill_probe(now, transmit) ||
         sender_.fill_mtu_probe(now, transmit) || sender_.fill_data(now, capabilities, transmit);
}

bool Endpoint::poll_control(TimeNs now, ControlOutput& output) {
  release_polled();
  return receiver_.fill_fallback(now, output) || sender_.fill_fallback(now, output);
}

bool Endpoint::poll_completion(Completion& completion) {
  release_polled();
  if (!shared_.completions.pop(polled_)) return false;
  has_polled_ = true;
  polled_.kind == CompletionKind::kSend ? sender_.complete(polled_.slot, completion)
                                        : receiver_.complete(polled_.slot, completion);
  return true;
}

Usage Endpoint::usage() const {
  Usage usage;
  sender_.add_usage(usage);
  receiver_.add_usage(usage);
  usage.bitmap_words = {arena_.capacity_words() - arena_.free_words(), arena_.capacity_words()};
  usage.completions = {shared_.completions.size(), shared_.completions.capacity()};
  return usage;
}

TimeNs Endpoint::next_timeout() const { return shared_.timers.next(); }

std::uint32_t Endpoint::segment_count(std::uint16_t peer, std::uint64_t total_bytes) const {
  if (peer >= shared_.config.peers || !view(peer).is_up || total_bytes > ~std::uint32_t{0}) return 0;
  return SegmentGrid(static_cast<std::uint32_t>(total_bytes), view(peer).up.segment_bytes).count();
}

double Endpoint::rate_bytes_per_second(std::uint16_t peer) const {
  if (peer >= shared_.config.peers) return 0;
  const Peer& state = shared_.peer_view(peer);
  if (state.rate) return state.rate->rate_bytes_per_second();
  return view(peer).is_up ? line_rate(view(peer)) : 0;
}

double Endpoint::port_rate_bytes_per_second(TimeNs now, std::uint16_t peer) const {
  if (peer >= shared_.config.peers) return 0;
  const Peer& state = shared_.peer_view(peer);
  if (state.rate) return state.holds_back ? 0 : state.rate->port_rate_bytes_per_second(now);
  return view(peer).is_up && !view(peer).up.holds_back ? line_rate(view(peer)) : 0;
}

PathView Endpoint::path_view(std::uint16_t peer, std::uint8_t path) const {
  PathView path_of;
  if (peer >= shared_.config.peers || path >= shared_.config.paths) return path_of;
  if (view(peer).is_used) return shared_.peer_view(peer).spray.view(path);
  path_of.weight = PathSpray::kFullWeight;
  return path_of;
}

std::uint32_t Endpoint::path_limit_bytes(std::uint16_t peer) const {
  return peer < shared_.config.peers && shared_.peer_view(peer).up ? sender_.path_limit_bytes(peer) : 0;
}

}  // namespace mlt::core
