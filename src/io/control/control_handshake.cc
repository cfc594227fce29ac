// The handshake of a control connection after the proofs: hello, validation, refusal, confirmation.
#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "io/control/control_connection.h"

namespace mlt::io {

void ControlChannel::send_hello(Connection& connection, std::uint16_t to) {
  Hello hello;
  hello.version = options_.version;
  hello.rank = options_.rank;
  hello.expected_rank = to;
  hello.world_size = options_.world_size;
  hello.job_id = options_.job_id;
  hello.incarnation = options_.incarnation;
  hello.cookie = options_.cookies[to];
  hello.path_count = static_cast<std::uint16_t>(options_.paths.size());
  std::copy(options_.paths.begin(), options_.paths.end(), hello.paths.begin());
  hello.control_port = listen_address_.port();
  hello.segment_bytes = options_.segment_bytes;
  hello.window_bytes = options_.window_bytes;
  hello.early_segments = options_.early_segments;
  hello.early_transfers = options_.early_transfers;
  std::array<std::byte, kHelloMaxBytes> bytes;
  const std::size_t size = encode_hello(hello, bytes.data());
  // PROTOCOL 3.2.1: Each side MUST send a hello of exactly 56 bytes and 20 for each path, with its proof (3.8.4): the
  //     connecting side first, then, if it accepts, the listening side.
  MLT_CHECK(queue_proved(connection, FrameType::kHello, std::span(bytes).first(size)));
  connection.stream.flush();
  watch(connection);
}

// Collects the addresses at which the sender of `hello` receives, per path. False if an address is of another IP
// version than the connection.
bool ControlChannel::resolve_paths(const Connection& connection, const Hello& hello,
                                   std::vector<SocketAddress>& out) const {
  for (std::size_t i = 0; i < hello.path_count; ++i) {
    const HelloPath& path = hello.paths[i];
    const bool same_host = path.address == HelloPath{}.address;
    // PROTOCOL 3.2.10: An endpoint MUST send datagrams of a path to the address and port that the peer's hello names
    //     for this path; where the address is zero, to the address that the TCP connection shows.
    out.push_back(same_host ? connection.remote.with_port(path.port)
                            : SocketAddress::from_ip_bytes(path.address, path.port));
    if (out.back().family() != connection.remote.family()) return false;
  }
  return true;
}

// PROTOCOL 3.10.3: A rank that connects on first use MUST take a valid hello from a lower rank as its request, unless
//     that rank is up with another incarnation. It MUST close the connection that brought it, and connect to that rank
//     as 3.5.3 says, unless it has begun to, or is up.
bool ControlChannel::is_request(const Connection& connection, const Hello& hello) const {
  if (connection.outgoing || hello.rank >= options_.rank) return false;
  const Peer& peer = peers_[hello.rank];
  return peer.limit_ns > 0 && (peer.state != PeerState::kUp || peer.incarnation == hello.incarnation);
}

// False, with the refusal filled, if this hello is not acceptable.
bool ControlChannel::validate(const Connection& connection, const Hello& hello, Refusal& refusal) const {
  const auto differs = [&](RefusalReason reason, std::uint64_t ours, std::uint64_t theirs) {
    refusal = {reason, options_.rank, ours, theirs};
    return false;
  };
  // PROTOCOL 3.3.1: A side MUST validate a hello in the order of the table below; the first rule that the hello breaks
  //     is the refusal's reason.
  if (hello.job_id != options_.job_id) return differs(RefusalReason::kJob, options_.job_id, hello.job_id);
  if (hello.world_size != options_.world_size) {
    return differs(RefusalReason::kWorldSize, options_.world_size, hello.world_size);
  }
  // RECOVERY R2.1.1: A job MUST configure the same number of paths, 1 to 16, at every rank; it is not negotiated.
  if (hello.path_count != options_.paths.size()) {
    return differs(RefusalReason::kPaths, options_.paths.size(), hello.path_count);
  }
  if (hello.rank >= options_.world_size) {
    return differs(RefusalReason::kRankRange, options_.world_size, hello.rank);
  }
  if (hello.expected_rank != options_.rank) {
    return differs(RefusalReason::kWrongRank, options_.rank, hello.expected_rank);
  }
  if (hello.rank == options_.rank) return differs(RefusalReason::kRankTaken, options_.rank, hello.rank);
  if (connection.outgoing) {
    return hello.rank == *connection.rank || differs(RefusalReason::kWrongRank, hello.rank, *connection.rank);
  }
  const Peer& peer = peers_[hello.rank];
  // PROTOCOL 3.3.2: A rank that went down stays down: a side MUST refuse every later connection as this rank, whatever
  //     its incarnation.
  if (peer.state == PeerState::kGone) {
    return differs(RefusalReason::kRankGone, peer.incarnation, hello.incarnation);
  }
  if (is_request(connection, hello)) return true;
  // A request of this side does not hold the rank.
  const bool held_by_other =
      peer.connection != nullptr && !peer.connection->outgoing && peer.incarnation != hello.incarnation;
  if (peer.state == PeerState::kUp || held_by_other) {
    return differs(RefusalReason::kRankTaken, options_.rank, hello.rank);
  }
  return true;
}

void ControlChannel::on_hello(Connection& connection, std::span<const std::byte> payload, base::TimeNs now,
                              ControlSink& sink) {
  Hello hello;
  if (decode_hello(payload, options_.version, hello) != HelloError::kNone) {
    return malformed(connection, "an invalid hello", now, sink);
  }
  Refusal refusal;
  if (!validate(connection, hello, refusal)) return refuse(connection, hello, refusal, now, sink);
  if (is_request(connection, hello)) {
    close(connection);
    peers_[hello.rank].reached_at = now;  // it runs, and reaches this host
    peers_[hello.rank].is_refused = false;
    return use(now, hello.rank);
  }
  // PROTOCOL 3.3.4: The listening side MUST treat a hello from a lower rank as malformed: the listening side has to
  //     connect to that rank. On first use it is a request (3.10.3).
  if (!connection.outgoing && hello.rank < options_.rank) {
    return malformed(connection,
                     "a hello as rank " + std::to_string(hello.rank) + ", to which this rank connects instead", now,
                     sink);
  }
  std::vector<SocketAddress> addresses;
  if (!resolve_paths(connection, hello, addresses)) {
    // PROTOCOL 3.2.12: A receiver MUST treat a hello as malformed if an address in it is not of the IP version of the
    //     connection.
    return malformed(connection,
                     "a hello as rank " + std::to_string(hello.rank) + " with a path of another IP version than " +
                         connection.remote.format(),
                     now, sink);
  }
  connection.handshake->hello = hello;
  if (connection.outgoing) {
    // PROTOCOL 3.5.1: The connecting side MUST send confirm once it accepts the hello that replies to its own, and is
    //     up then.
    // Queued after come_up(): whatever the sink does there for the peer is done when the peer receives the confirm
    // (23.1.2).
    connection.stream.queue(static_cast<std::uint8_t>(FrameType::kConfirm), {});
    come_up(connection, now, sink);
    if (connection.state == State::kClosed) return;
    connection.stream.flush();
    watch(connection);
    return;
  }
  Peer& peer = peers_[hello.rank];
  // PROTOCOL 3.3.3: A second connection from the same rank with the same incarnation MUST replace one that is not up
  //     yet, because the process has abandoned that attempt. The listening side counts it in control_abandoned.
  // An earlier attempt of the same process, which the process has abandoned.
  if (peer.connection != nullptr && !peer.connection->outgoing) {
    counters_.add(ControlCounter::kAbandoned);
    close(*peer.connection);
  }
  // Its own request to connect is overtaken then, and ends by itself.
  connection.rank = hello.rank;
  connection.state = State::kAwaitConfirm;
  // PROTOCOL 3.5.4: Once it has replied to a hello it waits for confirm as long as the connecting side waits, and for
  //     the silence limit longer: the connecting side may be up already.
  connection.closes_at = base::after(now, options_.hello_timeout_ns + options_.dead_after_ns);
  connection.handshake->heartbeat_at = base::after(now, options_.heartbeat_ns);
  call_at(std::min(connection.closes_at, connection.handshake->heartbeat_at));
  peer.connection = &connection;
  peer.incarnation = hello.incarnation;
  send_hello(connection, hello.rank);
}

void ControlChannel::refuse(Connection& connection, const Hello& hello, const Refusal& refusal, base::TimeNs now,
                            ControlSink& sink) {
  counters_.add(ControlCounter::kRefusals);
  std::array<std::byte, kRefusalBytes> bytes;
  encode_refusal(refusal, bytes.data());
  // PROTOCOL 3.4.1: A side that refuses a hello MUST send a refusal of 20 bytes, with its proof, and then end its half
  //     of the connection.
  queue_proved(connection, FrameType::kRefuse, bytes);
  const SocketAddress from = connection.remote;
  const std::string text =
      "rank " + std::to_string(options_.rank) + " " + describe_refusal(refusal, hello.rank, true, from.format());
  const bool outgoing = connection.outgoing;
  if (outgoing) peers_[*connection.rank].connection = nullptr;  // going down must leave it open for the refusal
  end_after_output(connection, now);
  // PROTOCOL 3.4.3: The connecting side MUST treat a refusal that it sends or receives as final: the peer goes down and
  //     no attempt follows.
  if (outgoing) return go_down(*connection.rank, PeerDownCause::kRefused, text, sink);
  const bool waits_for_it = hello.rank < peers_.size() && peers_[hello.rank].state == PeerState::kExpected;
  // PROTOCOL 3.4.4: The listening side MUST NOT change the state of a peer because of a refusal, as anybody can
  //     connect.
  if (waits_for_it) peers_[hello.rank].last_cause = text;
  sink.on_refused(from, text);
}

void ControlChannel::on_refusal(Connection& connection, std::span<const std::byte> payload, base::TimeNs now,
                                ControlSink& sink) {
  Refusal refusal;
  if (!decode_refusal(payload, refusal)) return malformed(connection, "a refusal without a known reason", now, sink);
  counters_.add(ControlCounter::kRefusals);
  const std::string text = describe_refusal(refusal, options_.rank, false, connection.remote.format());
  if (connection.outgoing) {
    // PROTOCOL 3.4.3: The connecting side MUST treat a refusal that it sends or receives as final: the peer goes down
    //     and no attempt follows.
    go_down(*connection.rank, PeerDownCause::kRefused, text, sink);
    return;
  }
  Peer& peer = peers_[*connection.rank];
  if (peer.state == PeerState::kExpected) peer.last_cause = text;
  const SocketAddress from = connection.remote;
  close(connection);
  sink.on_refused(from, text);
}

void ControlChannel::come_up(Connection& connection, base::TimeNs now, ControlSink& sink) {
  Peer& peer = peers_[*connection.rank];
  const Hello hello = connection.handshake->hello;
  connection.handshake.reset();
  connection.state = State::kUp;
  connection.liveness.on_up(now);
  neighbours_changed_ = true;
  call_at(base::after(now, options_.heartbeat_ns));
  connection.stream.set_max_payload(options_.max_message_bytes);
  peer.state = PeerState::kUp;
  peer.connection = &connection;
  peer.incarnation = hello.incarnation;
  peer.deadline = base::kNever;
  peer.next_attempt = base::kNever;
  PeerHello event;
  event.hello = hello;
  event.control_address = connection.remote.with_port(hello.control_port);
  resolve_paths(connection, hello, event.udp_addresses);
  sink.on_peer_up(event);
}

}  // namespace mlt::io
