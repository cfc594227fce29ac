// The peers of the control channel and their timers: attempts to connect, deadlines, heartbeats, silence.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "io/control/control_connection.h"
#include "io/control/tcp_socket.h"

namespace mlt::io {

namespace {

std::string seconds_text(base::DurationNs duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration) / static_cast<double>(base::kSecond));
  return text;
}

}  // namespace

// "rank 1 at 192.0.2.1:5000, seen from rank 0,": the start of every text about a peer.
std::string ControlChannel::peer_text(std::uint16_t rank, const SocketAddress& address) const {
  return "rank " + std::to_string(rank) + " at " + address.format() + ", seen from rank " +
         std::to_string(options_.rank) + ",";
}

bool ControlChannel::check_rank(std::uint16_t rank, bool below, OsError& error) const {
  // PROTOCOL 3.1.1: A connection MUST be one TCP connection of a pair of ranks: the higher rank connects to the lower,
  //     which listens.
  if (rank >= peers_.size() || (below ? rank >= options_.rank : rank <= options_.rank)) {
    error = bad_argument("rank " + std::to_string(options_.rank) + " of " + std::to_string(peers_.size()) + " cannot " +
                         (below ? "connect to" : "wait for") + " rank " + std::to_string(rank) +
                         ": the higher rank connects to the lower.");
    return false;
  }
  if (peers_[rank].state != PeerState::kUnknown && !(peers_[rank].state == PeerState::kUp && !below)) {
    error = bad_argument("rank " + std::to_string(rank) + " was already given to the control channel.");
    return false;
  }
  return true;
}

bool ControlChannel::connect_to(base::TimeNs now, std::uint16_t rank, const SocketAddress& address,
                                base::TimeNs deadline, OsError& error) {
  if (!check_rank(rank, true, error)) return false;
  if (address.family() != AF_INET && address.family() != AF_INET6) {
    error = bad_argument("rank " + std::to_string(rank) + " has no IPv4 or IPv6 address to connect to.");
    return false;
  }
  Peer& peer = peers_[rank];
  peer.state = PeerState::kConnecting;
  peer.address = address;
  peer.asked_at = now;
  peer.deadline = deadline;
  peer.next_attempt = now;
  peer.backoff_ns = options_.connect_backoff_ns;
  next_timeout_ = std::min(next_timeout_, now);
  return true;
}

bool ControlChannel::expect(base::TimeNs now, std::uint16_t rank, base::TimeNs deadline, OsError& error) {
  if (!check_rank(rank, false, error)) return false;
  Peer& peer = peers_[rank];
  if (peer.state == PeerState::kUp) return true;
  peer.state = PeerState::kExpected;
  peer.asked_at = now;
  peer.deadline = deadline;
  next_timeout_ = std::min(next_timeout_, deadline);
  return true;
}

void ControlChannel::attempt(std::uint16_t rank, base::TimeNs now, ControlSink&) {
  Peer& peer = peers_[rank];
  counters_.add(ControlCounter::kConnectAttempts);
  OsError error;
  auto fd = start_connect_tcp(peer.address, options_.dscp, error);
  if (!fd) {
    attempt_failed(rank, errno_text(error.number), now);
    return;
  }
  Connection& connection =
      add_connection(std::move(*fd), State::kConnecting, base::after(now, options_.hello_timeout_ns));
  connection.outgoing = true;
  connection.rank = rank;
  connection.remote = peer.address;
  peer.connection = &connection;
}

void ControlChannel::attempt_failed(std::uint16_t rank, const std::string& cause, base::TimeNs now) {
  Peer& peer = peers_[rank];
  peer.last_cause = cause;
  // PROTOCOL 3.5.3: After a failed attempt to connect, the connecting side SHOULD try again after 10 ms, then after
  //     twice as long each time up to 500 ms, until the caller's deadline. Then the peer is down as unreachable.
  peer.next_attempt = base::after(now, peer.backoff_ns);
  peer.backoff_ns = std::min(2 * peer.backoff_ns, options_.connect_backoff_max_ns);
}

void ControlChannel::give_up(std::uint16_t rank, const std::string& text) {
  if (!is_up(rank)) return;
  peers_[rank].connection->given_up = text;
  next_timeout_ = 0;
}

void ControlChannel::go_down(std::uint16_t rank, PeerDownCause cause, const std::string& text, ControlSink& sink) {
  Peer& peer = peers_[rank];
  // PROTOCOL 3.7.5: A peer that is up MUST go down exactly once; every operation with it then fails (18.1.1).
  peer.state = PeerState::kGone;
  peer.deadline = base::kNever;
  peer.next_attempt = base::kNever;
  if (peer.connection != nullptr) close(*peer.connection);
  sink.on_peer_down(rank, cause, text);
}

base::TimeNs ControlChannel::silent_at(const Connection& connection) const {
  // PROTOCOL 3.6.4: An endpoint MUST NOT take a peer as silent before 100 ms for each rank of the job have passed since
  //     the connection came up.
  return std::max(base::after(connection.last_heard, options_.dead_after_ns),
                  base::after(connection.up_since, options_.world_size * kConnectNsPerRank));
}

void ControlChannel::run_connection_timers(Connection& connection, base::TimeNs now, ControlSink& sink) {
  const bool overdue = now >= connection.give_up_at;
  switch (connection.state) {
    case State::kClosed:
      return;
    case State::kClosing:
      if (!overdue) return;
      counters_.add(ControlCounter::kDrainsCut);
      close(connection);
      return;
    case State::kConnecting:
    case State::kAwaitOpening:
    case State::kAwaitHello:
    case State::kAwaitConfirm:
      if (!overdue) return;
      if (connection.outgoing) {
        // PROTOCOL 3.5.4: The connecting side MUST close a connection that is not up 5 s after it opened it, or 100 ms
        //     for each rank of the job if that is longer, but 60 s at most.
        attempt_failed(*connection.rank, "no hello within " + seconds_text(options_.hello_timeout_ns), now);
        close(connection);
        return;
      }
      {
        counters_.add(ControlCounter::kTimedOut);
        const SocketAddress from = connection.remote;
        // PROTOCOL 3.5.4: The listening side MUST close a connection that has no proof 30 s after it came in, whatever
        //     the job's size.
        const std::string missed =
            connection.proved
                ? "did not confirm that it is up within " +
                      seconds_text(options_.hello_timeout_ns + options_.dead_after_ns)
                : "did not prove that it knows the job's secret within " + seconds_text(options_.unproved_timeout_ns);
        close(connection);
        reject_client(from, missed + ".", sink);
      }
      return;
    case State::kUp:
      break;
  }
  const std::uint16_t rank = *connection.rank;
  if (!connection.given_up.empty()) {
    const std::string text = connection.given_up;
    return go_down(rank, PeerDownCause::kMalformed, text, sink);
  }
  if (connection.overflowed) {
    go_down(rank, PeerDownCause::kOverflow,
            peer_text(rank, connection.remote) + " does not read: more than " +
                std::to_string(options_.outgoing_limit_bytes) +
                " bytes of control messages are queued for it. Its process hangs, or its host is overloaded.",
            sink);
    return;
  }
  // PROTOCOL 3.6.2: An endpoint MUST treat a peer as down when it has received nothing from it for the silence limit (3
  //     s unless the caller says otherwise).
  if (now >= silent_at(connection)) {
    go_down(rank, connection.goodbye_sent ? PeerDownCause::kGoodbye : PeerDownCause::kSilent,
            peer_text(rank, connection.remote) + " has been silent for " + seconds_text(now - connection.last_heard) +
                ": its process is stopped, its host hangs, or the network to it is down. Check them in this order.",
            sink);
    return;
  }
  if (now < connection.next_heartbeat) return;
  // PROTOCOL 3.6.1: A side that has sent no message for a heartbeat period MUST send a heartbeat.
  // Counted from the last message: counted from the time when a heartbeat was last due, two periods could pass in
  // silence.
  connection.next_heartbeat = base::after(connection.sent_at, options_.heartbeat_ns);
  if (now < connection.next_heartbeat) return;
  connection.sent_at = now;
  connection.next_heartbeat = base::after(now, options_.heartbeat_ns);
  // Full only if the peer does not read; its silence timeout will end it.
  if (!connection.stream.queue(static_cast<std::uint8_t>(FrameType::kHeartbeat), {})) return;
  counters_.add(ControlCounter::kHeartbeatsSent);
  connection.stream.flush();
  watch(connection);
}

void ControlChannel::run_peer_timers(std::uint16_t rank, base::TimeNs now, ControlSink& sink) {
  Peer& peer = peers_[rank];
  if (peer.state != PeerState::kConnecting && peer.state != PeerState::kExpected) return;
  if (now >= peer.deadline) {
    const std::string waited = seconds_text(peer.deadline - peer.asked_at);
    std::string text;
    if (peer.state == PeerState::kConnecting) {
      text = "rank " + std::to_string(options_.rank) + " could not reach rank " + std::to_string(rank) + " at " +
             peer.address.format() + " within " + waited + ": " +
             (peer.last_cause.empty() ? "no reply" : peer.last_cause) + ". Check that rank " + std::to_string(rank) +
             " was started, that it listens there, and that no firewall blocks the port.";
    } else {
      text = "rank " + std::to_string(rank) + " did not connect to rank " + std::to_string(options_.rank) + " at " +
             listen_address_.format() + " within " + waited + ". " +
             (!peer.last_cause.empty()  ? "The last attempt: " + peer.last_cause
              : !last_rejected_.empty() ? "Meanwhile this rank " + last_rejected_
                                        : "Check that it was started, that it uses this address, and that no "
                                          "firewall blocks the port.");
    }
    return go_down(rank, PeerDownCause::kUnreachable, text, sink);
  }
  if (peer.state == PeerState::kConnecting && peer.connection == nullptr && now >= peer.next_attempt) {
    attempt(rank, now, sink);
  }
}

base::TimeNs ControlChannel::compute_next_timeout() const {
  base::TimeNs next = listener_paused_until_;
  for (const Peer& peer : peers_) {
    if (peer.state != PeerState::kConnecting && peer.state != PeerState::kExpected) continue;
    next = std::min(next, peer.deadline);
    if (peer.state == PeerState::kConnecting && peer.connection == nullptr) next = std::min(next, peer.next_attempt);
  }
  for (const auto& connection : connections_) {
    if (connection->overflowed || !connection->given_up.empty()) return 0;
    if (connection->state == State::kUp) {
      next = std::min({next, connection->next_heartbeat, silent_at(*connection)});
    } else {
      next = std::min(next, connection->give_up_at);
    }
  }
  return next;
}

}  // namespace mlt::io
