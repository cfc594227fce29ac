// The peers of the control channel and their timers: attempts to connect, deadlines, connections that do not come up.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "io/control/control_connection.h"
#include "io/control/tcp_socket.h"

namespace mlt::io {

namespace {

// After the port of a control connection.
constexpr const char* kPortRange = " (the system chooses it at each start, from net.ipv4.ip_local_port_range there).";

}  // namespace

std::string seconds_text(base::DurationNs duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration) / static_cast<double>(base::kSecond));
  return text;
}

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
  call_at(now);
  return true;
}

bool ControlChannel::expect(base::TimeNs now, std::uint16_t rank, base::TimeNs deadline, OsError& error) {
  if (!check_rank(rank, false, error)) return false;
  Peer& peer = peers_[rank];
  if (peer.state == PeerState::kUp) return true;
  peer.state = PeerState::kExpected;
  peer.asked_at = now;
  peer.deadline = deadline;
  call_at(deadline);
  return true;
}

bool ControlChannel::know(std::uint16_t rank, const SocketAddress& address, base::DurationNs limit_ns, OsError& error) {
  const bool is_below = rank < options_.rank;
  if (!check_rank(rank, is_below, error)) return false;
  Peer& peer = peers_[rank];
  if (peer.limit_ns > 0 || limit_ns <= 0 || (address.family() != AF_INET && address.family() != AF_INET6)) {
    error = bad_argument("rank " + std::to_string(rank) + " was given twice, without a time, or without an address.");
    return false;
  }
  peer.limit_ns = limit_ns;
  peer.address = address;
  return true;
}

// PROTOCOL 3.10.1: Where a job connects on first use, a rank MUST set up the connection with another when it first
//     posts something to that rank, or when that rank asks it to (3.10.2).
void ControlChannel::use(base::TimeNs now, std::uint16_t rank) {
  Peer& peer = peers_[rank];
  if (peer.state != PeerState::kUnknown || peer.limit_ns == 0 || goodbye_) return;
  peer.state = PeerState::kConnecting;
  peer.asked_at = peer.reached_at = now;
  peer.deadline = base::after(now, peer.limit_ns);
  peer.backoff_ns = options_.connect_backoff_ns;
  // PROTOCOL 3.10.2: The lower rank of a pair MUST ask the higher one to connect, by a hello on a connection that it
  //     opens itself, 10 ms after it needs the connection, and again as 3.5.3 says until the other's hello has arrived.
  peer.next_attempt = rank < options_.rank ? now : base::after(now, options_.connect_backoff_ns);
  call_at(peer.next_attempt);
}

// When a rank that connects on first use is unreachable, if nothing changes.
base::TimeNs ControlChannel::unreachable_at(const Peer& peer) const {
  if (peer.limit_ns == 0) return peer.deadline;
  if (peer.connection != nullptr && peer.connection->state != State::kConnecting) return peer.deadline;
  // PROTOCOL 3.10.4: A rank that connects on first use MUST treat another as unreachable when that rank's host has
  //     refused TCP for the silence limit (3.6.2), or has not replied to TCP for the longest of that time, 7 s, and 100
  //     ms for each rank of the job.
  const base::DurationNs unanswered =
      std::max({options_.dead_after_ns, kNoReplyNs, options_.world_size * kConnectNsPerRank});
  return std::min(peer.deadline, base::after(peer.reached_at, peer.is_refused ? options_.dead_after_ns : unanswered));
}

bool ControlChannel::is_overtaken(const Connection& connection) const {
  return connection.outgoing && peers_[*connection.rank].connection != &connection;
}

void ControlChannel::attempt(std::uint16_t rank, base::TimeNs now, ControlSink&) {
  Peer& peer = peers_[rank];
  counters_.add(ControlCounter::kConnectAttempts);
  OsError error;
  // PROTOCOL 3.5.7: The connecting side MUST connect from the address at which it listens, unless that is a wildcard:
  //     the other side takes it for the address of its paths (3.2.10).
  auto fd = start_connect_tcp(peer.address, options_.listen, options_.dscp, error);
  if (!fd) {
    peer.is_refused = error.number == ECONNREFUSED;
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
  // Until now its host had accepted TCP: its process is slow or stopped, and has until the deadline.
  if (peer.connection != nullptr && peer.connection->state != State::kConnecting) peer.reached_at = now;
  // PROTOCOL 3.5.3: After a failed attempt to connect, the connecting side SHOULD try again after 10 ms, then after
  //     twice as long each time up to 500 ms, until the caller's deadline. Then the peer is down as unreachable.
  peer.next_attempt = base::after(now, peer.backoff_ns);
  call_at(peer.next_attempt);
  peer.backoff_ns = std::min(2 * peer.backoff_ns, options_.connect_backoff_max_ns);
}

void ControlChannel::fail_peer(std::uint16_t rank, const std::string& text) {
  if (!is_up(rank)) return;
  peers_[rank].connection->failure = text;
  next_timeout_ = 0;
}

void ControlChannel::go_down(std::uint16_t rank, PeerDownCause cause, const std::string& text, ControlSink& sink) {
  Peer& peer = peers_[rank];
  // PROTOCOL 3.7.5: A peer that is up MUST go down exactly once; every operation with it then fails (18.1.1).
  peer.state = PeerState::kGone;
  neighbours_changed_ = true;
  peer.deadline = base::kNever;
  peer.next_attempt = base::kNever;
  if (peer.connection != nullptr) close(*peer.connection);
  sink.on_peer_down(rank, cause, text);
}

void ControlChannel::run_timers(base::TimeNs now, ControlSink& sink) {
  // 0: at once, whatever the time.
  if (next_timeout_ > 0) excuse_silence(now, now - next_timeout_);
  next_timeout_ = base::kNever;
  if (std::exchange(neighbours_changed_, false)) find_neighbours();
  const base::TimeNs beat_until = heartbeats_until(now);
  heard_heartbeat_ = false;
  // By index: a sink may add connections during the loop.
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = *connections_[i];
    if (connection.state == State::kUp) {
      run_liveness(connection, beat_until, now, sink);
    } else {
      run_opening_timers(connection, now, sink);
    }
  }
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    run_peer_timers(static_cast<std::uint16_t>(rank), now, sink);
  }
  if (now >= listener_paused_until_) resume_listener(now, sink);
  call_at(compute_next_timeout(now));
}

void ControlChannel::run_opening_timers(Connection& connection, base::TimeNs now, ControlSink& sink) {
  const bool overdue = now >= connection.closes_at;
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
      if (!overdue) return beat_before_up(connection, now);
      if (connection.outgoing) {
        // PROTOCOL 3.5.4: The connecting side MUST close a connection that is not up 5 s after it opened it, or 100 ms
        //     for each rank of the job if that is longer, but at most 60 s.
        const std::string within = " within " + seconds_text(options_.hello_timeout_ns);
        attempt_failed(
            *connection.rank,
            (connection.state == State::kConnecting ? "no reply to TCP" : "TCP connects, but no hello came") + within,
            now);
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
      return;
  }
}

// PROTOCOL 3.5.8: A listening side that waits for confirm MUST send a heartbeat for each heartbeat period (3.6.1): the
//     connecting side is up already, and would take it as silent while the network loses the confirm.
void ControlChannel::beat_before_up(Connection& connection, base::TimeNs now) {
  if (connection.state != State::kAwaitConfirm || now < connection.handshake->heartbeat_at) return;
  connection.handshake->heartbeat_at = base::after(now, options_.heartbeat_ns);
  counters_.add(ControlCounter::kHeartbeatsSent);
  say(connection, FrameType::kHeartbeat);
}

// Why no connection to a peer came up by now.
std::string ControlChannel::unreached_text(std::uint16_t rank, base::TimeNs now) const {
  const Peer& peer = peers_[rank];
  const bool has_no_reply = peer.connection != nullptr && peer.connection->state == State::kConnecting;
  std::string text = "rank " + std::to_string(options_.rank) + " could not reach rank " + std::to_string(rank) +
                     " at " + peer.address.format() + " within " +
                     seconds_text(std::min(peer.deadline, now) - peer.asked_at) + ": ";
  if (peer.limit_ns > 0 && peer.is_refused) {
    return text + "its host refuses TCP to this port: its process has ended, or left the job. Look at its output.";
  }
  if (has_no_reply) {
    return text + "no reply to TCP. A firewall drops the connections, or the host is down: let TCP pass to this port" +
           kPortRange;
  }
  text += peer.last_cause.empty() ? "no reply" : peer.last_cause;
  return text + ". Check that rank " + std::to_string(rank) +
         " was started, that it listens there, and that no firewall blocks TCP to this port" + kPortRange;
}

// Why no connection of a peer came up by the deadline.
std::string ControlChannel::unseen_text(std::uint16_t rank) const {
  const Peer& peer = peers_[rank];
  const std::string text = "rank " + std::to_string(rank) + " did not connect to rank " +
                           std::to_string(options_.rank) + " at " + listen_address_.format() + " within " +
                           seconds_text(peer.deadline - peer.asked_at);
  if (!peer.last_cause.empty()) return text + ". The last attempt: " + peer.last_cause;
  if (!last_rejected_.empty()) return text + ". Meanwhile this rank " + last_rejected_;
  return text + ": no TCP connection arrived. If rank " + std::to_string(rank) +
         " runs and uses this address, a firewall blocks TCP: let it pass to this port" + kPortRange;
}

void ControlChannel::run_peer_timers(std::uint16_t rank, base::TimeNs now, ControlSink& sink) {
  Peer& peer = peers_[rank];
  if (peer.state != PeerState::kConnecting && peer.state != PeerState::kExpected) return;
  if (now >= unreachable_at(peer)) {
    const std::string text = peer.state == PeerState::kConnecting ? unreached_text(rank, now) : unseen_text(rank);
    return go_down(rank, PeerDownCause::kUnreachable, text, sink);
  }
  if (peer.state == PeerState::kConnecting && peer.connection == nullptr && now >= peer.next_attempt) {
    attempt(rank, now, sink);
  }
}

base::TimeNs ControlChannel::compute_next_timeout(base::TimeNs now) {
  const LivenessLimits limits = liveness_limits();
  base::TimeNs next = listener_paused_until_;
  next_heartbeat_ = base::kNever;
  for (const Peer& peer : peers_) {
    if (peer.state != PeerState::kConnecting && peer.state != PeerState::kExpected) continue;
    next = std::min(next, unreachable_at(peer));
    if (peer.state == PeerState::kConnecting && peer.connection == nullptr) next = std::min(next, peer.next_attempt);
  }
  for (const auto& connection : connections_) {
    if (connection->overflowed || !connection->failure.empty()) return now;
    if (connection->state == State::kUp) {
      const Liveness& liveness = connection->liveness;
      next_heartbeat_ = std::min(next_heartbeat_, liveness.heartbeat_at(limits));
      next = std::min({next, next_heartbeat_, liveness.silent_at(limits), liveness.ask_at(limits),
                       base::after(now, options_.heartbeat_ns)});
    } else {
      next = std::min(next, connection->closes_at);
      if (connection->state == State::kAwaitConfirm) next = std::min(next, connection->handshake->heartbeat_at);
    }
  }
  return std::max(next, now);
}

}  // namespace mlt::io
