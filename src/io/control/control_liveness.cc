// Whether the peers of the control channel are alive: heartbeats, questions, silence. Liveness has the rules of one
// peer.
#include <algorithm>
#include <array>
#include <string>

#include "io/control/control_connection.h"
#include "io/control/tcp_socket.h"

namespace mlt::io {

namespace {

// In a job of so many ranks each is the neighbour of all others.
constexpr std::size_t kAllNeighbours = 8;
// Heartbeats that are due soon leave with one that is due now, or that arrives: one wake-up instead of two.
constexpr base::DurationNs kTogether = 2;  // within this part of a period

}  // namespace

LivenessLimits ControlChannel::liveness_limits() const {
  return {options_.heartbeat_ns, options_.dead_after_ns, options_.world_size * kConnectNsPerRank,
          options_.suspended_after_ns};
}

// PROTOCOL 3.6.1: A rank's neighbours are the next rank that is up and the one before, in a ring of all ranks; in a job
//     of at most 8 ranks, all others.
void ControlChannel::find_neighbours() {
  const std::size_t ranks = peers_.size();
  for (Peer& peer : peers_) peer.neighbour = ranks <= kAllNeighbours;
  const auto find = [&](std::size_t step) {
    for (std::size_t rank = (options_.rank + step) % ranks; rank != options_.rank; rank = (rank + step) % ranks) {
      if (peers_[rank].state != PeerState::kUp) continue;
      peers_[rank].neighbour = true;
      return;
    }
  };
  find(1);
  find(ranks - 1);
}

// Heartbeats that are due by then leave in this run of the timers. Neighbours of the same host thus fall into step:
// each wakes up with the heartbeats of the others, and sends its own at once.
base::TimeNs ControlChannel::heartbeats_until(base::TimeNs now) const {
  const LivenessLimits limits = liveness_limits();
  const auto is_due = [&](const auto& connection) {
    return connection->state == State::kUp && now >= connection->liveness.heartbeat_at(limits);
  };
  const bool beats = heard_heartbeat_ || std::ranges::any_of(connections_, is_due);
  return beats ? base::after(now, options_.heartbeat_ns / kTogether) : now;
}

// Whether this rank sends heartbeats now because one arrived.
bool ControlChannel::is_in_step(base::TimeNs now) const {
  return heard_heartbeat_ && base::after(now, options_.heartbeat_ns / kTogether) >= next_heartbeat_;
}

void ControlChannel::run_liveness(Connection& connection, base::TimeNs beat_until, base::TimeNs now,
                                  ControlSink& sink) {
  const std::uint16_t rank = *connection.rank;
  if (!connection.failure.empty()) {
    const std::string text = connection.failure;
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
  const LivenessLimits limits = liveness_limits();
  Liveness& liveness = connection.liveness;
  liveness.update(now, peers_[rank].neighbour, connection.goodbye_sent || sink.needs(rank));
  // PROTOCOL 3.6.2: An endpoint MUST treat a peer that it watches (3.6.5) as down when it has received nothing from it
  //     for the silence limit (3 s unless the caller says otherwise), counted from when it began to watch if that is
  //     later.
  if (now >= liveness.silent_at(limits) && !is_suspended(connection, now, sink)) {
    return take_as_silent(connection, now, sink);
  }
  if (now >= liveness.ask_at(limits)) {
    counters_.add(ControlCounter::kHeartbeatRequestsSent);
    liveness.on_asked(now);
    sink.on_quiet(rank);
    return say(connection, FrameType::kHeartbeatRequest);
  }
  if (liveness.heartbeat_at(limits) > beat_until) return;
  // PROTOCOL 3.6.1: A side that has sent no message to a neighbour for a heartbeat period MUST send it a heartbeat.
  counters_.add(ControlCounter::kHeartbeatsSent);
  say(connection, FrameType::kHeartbeat);
}

// Whether a peer that is silent on its connection by now sent a datagram lately, or its host acknowledged what was sent
// to it; it is asked again before that is too old.
bool ControlChannel::is_suspended(Connection& connection, base::TimeNs now, const ControlSink& sink) {
  // PROTOCOL 3.6.9: For a peer whose host acknowledges what is sent on the connection, or of which a datagram came
  //     within the silence limit, an endpoint SHOULD take the suspension limit (30 s unless the caller says otherwise)
  //     in place of the silence limit
  const LivenessLimits limits = liveness_limits();
  Liveness& liveness = connection.liveness;
  if (connection.goodbye_sent || !liveness.may_be_suspended(now, limits)) return false;
  base::DurationNs age = limits.dead_after_ns;
  // PROTOCOL 3.6.9: An endpoint MUST NOT wait longer than the silence limit for a peer whose silence was reported to it
  //     (3.6.7) and of which no datagram came.
  if (!liveness.is_suspected()) age = acknowledgement_age(connection.stream.fd()).value_or(age);
  if (const base::TimeNs at = sink.datagram_at(*connection.rank); at > 0) age = std::min(age, now - at);
  if (age >= limits.dead_after_ns) return false;
  liveness.on_acknowledged(now, age, limits);
  return true;
}

void ControlChannel::take_as_silent(Connection& connection, base::TimeNs now, ControlSink& sink) {
  const std::uint16_t rank = *connection.rank;
  const bool tells = (peers_[rank].neighbour || connection.host_hangs) && !connection.goodbye_sent;
  const SocketAddress remote = connection.remote;
  const base::TimeNs datagram_at = sink.datagram_at(rank);
  const bool sends_datagrams = datagram_at > 0 && now - datagram_at < options_.dead_after_ns;
  const base::TimeNs last_heard = connection.liveness.last_heard();
  const base::TimeNs silent_since = sends_datagrams ? last_heard : std::max(last_heard, datagram_at);
  const bool host_answers =
      acknowledgement_age(connection.stream.fd()).value_or(options_.dead_after_ns) < options_.dead_after_ns;
  go_down(rank, connection.goodbye_sent ? PeerDownCause::kGoodbye : PeerDownCause::kSilent,
          peer_text(rank, remote) + " has been silent for " + seconds_text(now - silent_since) +
              (sends_datagrams ? " on its control connection, while its datagrams arrive: something between the hosts "
                                 "stops TCP. Look for a firewall or a stale NAT entry on the path."
               : host_answers  ? ", while its host acknowledges what is sent to it: its process is stopped (SIGSTOP, a "
                                 "debugger, a frozen container) or hangs. To wait longer, raise suspended_timeout "
                                 "(MLT_SUSPENDED_TIMEOUT)."
                              : ": its process is stopped, its host hangs, or the network to it is down. Check them in "
                                "this order."),
          sink);
  if (!tells) return;
  // PROTOCOL 3.6.7: A side that declares a neighbour silent MUST report it to all other peers, with a frame of type 8.
  //     It SHOULD then treat the peers with the same host address as if their silence had been reported to it, and
  //     report to the others those that are silent, too
  tell_silence(rank);
  for (const auto& other : connections_) {
    if (other->state == State::kUp && other->remote.host() == remote.host()) {
      other->liveness.suspect(now, liveness_limits());
      other->host_hangs = true;
    }
  }
}

void ControlChannel::tell_silence(std::uint16_t rank) {
  std::array<std::byte, kSilentPayloadBytes> payload{static_cast<std::byte>(rank & 0xFF),
                                                     static_cast<std::byte>(rank >> 8)};
  for (const auto& connection : connections_) {
    if (connection->state != State::kUp) continue;
    counters_.add(ControlCounter::kSilenceReportsSent);
    say(*connection, FrameType::kSilent, payload);
  }
}

// Only makes this rank ask: whether the peer is silent here, it finds out itself.
void ControlChannel::on_silence_told(std::span<const std::byte> payload, base::TimeNs now) {
  const auto rank =
      static_cast<std::uint16_t>(std::to_integer<unsigned>(payload[0]) | std::to_integer<unsigned>(payload[1]) << 8);
  if (!is_up(rank)) return;
  peers_[rank].connection->liveness.suspect(now, liveness_limits());
  call_at(now);
}

void ControlChannel::excuse_silence(base::TimeNs now, base::DurationNs late) {
  // PROTOCOL 3.6.8: A side whose timers ran late by more than a heartbeat period MUST NOT count that time as silence:
  //     the host is slow, and its peers may have had no turn either.
  if (late <= options_.heartbeat_ns) return;
  for (const auto& connection : connections_) {
    if (connection->state == State::kUp) connection->liveness.excuse(now, late);
  }
}

// Full only if the peer does not read; its silence will end it.
void ControlChannel::say(Connection& connection, FrameType type, std::span<const std::byte> payload) {
  connection.liveness.on_spoken(serviced_at_);
  if (connection.goodbye_sent || !connection.stream.queue(static_cast<std::uint8_t>(type), payload)) return;
  connection.stream.flush();
  watch(connection);
}

}  // namespace mlt::io
