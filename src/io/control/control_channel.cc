#include "io/control/control_channel.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "io/control/control_connection.h"
#include "io/control/tcp_socket.h"

namespace mlt::io {

namespace {

constexpr std::array<std::string_view, CounterTable<ControlCounter>::kSize> kControlCounterNames = {
    "control_messages_sent",
    "control_messages_received",
    "control_heartbeats_sent",
    "control_heartbeats_received",
    "control_heartbeat_requests_sent",
    "control_silence_reports_sent",
    "control_connect_attempts",
    "control_accepted",
    "control_refusals",
    "control_unidentified",
    "control_unproved",
    "control_other_version",
    "control_timed_out",
    "control_too_many_pending",
    "control_abandoned",
    "control_drains_cut",
    "control_malformed",
};

// Limit of a frame's payload until the connection is up.
constexpr std::size_t kHandshakePayloadBytes = 512;
// Connections accepted per turn: a flood of connections must not delay data.
constexpr std::size_t kAcceptsPerTurn = 16;
// Pause between such turns once every rank has connected: all further clients will be rejected.
constexpr base::DurationNs kAcceptPauseNs = 10 * base::kMillisecond;
// Bytes read from a rejected client until it closes: the rest of a handshake.
constexpr std::size_t kDrainBytes = 4'096;
// Reads per connection and service(), so that one peer cannot monopolise the owner's thread.
constexpr int kMaxReads = 64;
constexpr base::DurationNs kListenerPauseNs = 100 * base::kMillisecond;

OsError check_options(const ControlOptions& options) {
  if (options.world_size == 0 || options.rank >= options.world_size) {
    return bad_argument("rank " + std::to_string(options.rank) + " is not below the world size " +
                        std::to_string(options.world_size) + "; RANK must lie in 0 .. WORLD_SIZE - 1.");
  }
  if (options.cookies.size() != options.world_size) {
    return bad_argument("control channel got " + std::to_string(options.cookies.size()) + " cookies for " +
                        std::to_string(options.world_size) + " ranks; give one per rank.");
  }
  if (options.paths.empty() || options.paths.size() > MLT_MAX_PATHS ||
      std::any_of(options.paths.begin(), options.paths.end(), [](const HelloPath& path) { return path.port == 0; })) {
    return bad_argument("control channel got " + std::to_string(options.paths.size()) + " paths; give 1 to " +
                        std::to_string(MLT_MAX_PATHS) + ", each with its port.");
  }
  if (options.hello_timeout_ns <= 0 || options.unproved_timeout_ns <= 0 || options.heartbeat_ns <= 0 ||
      options.connect_backoff_ns <= 0 || options.connect_backoff_max_ns < options.connect_backoff_ns) {
    return bad_argument(
        "control channel times must be positive, and connect_backoff_max_ns not below "
        "connect_backoff_ns.");
  }
  if (options.dead_after_ns < 2 * options.heartbeat_ns) {
    return bad_argument(
        "dead_after_ns must be at least twice heartbeat_ns, or a healthy peer would time out between "
        "two heartbeats.");
  }
  if (options.outgoing_limit_bytes <
      kFrameHeaderBytes + std::max(kHelloMaxBytes, std::size_t{options.max_message_bytes})) {
    return bad_argument("outgoing_limit_bytes must hold one message of max_message_bytes and its header.");
  }
  return {};
}

}  // namespace

std::string_view cause_name(PeerDownCause cause) {
  switch (cause) {
    case PeerDownCause::kGoodbye:
      return "goodbye";
    case PeerDownCause::kLost:
      return "lost";
    case PeerDownCause::kSilent:
      return "silent";
    case PeerDownCause::kMalformed:
      return "malformed";
    case PeerDownCause::kOverflow:
      return "overflow";
    case PeerDownCause::kRefused:
      return "refused";
    case PeerDownCause::kUnreachable:
      return "unreachable";
  }
  return "unknown";
}

std::unique_ptr<ControlChannel> ControlChannel::open(const ControlOptions& options, OsError& error) {
  error = check_options(options);
  if (error) return nullptr;
  auto listener = listen_tcp(options.listen, options.dscp, error);
  if (!listener) return nullptr;
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // the listener
  if (!epoll || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener->get(), &event) != 0) {
    error = os_error(errno, "watch the control socket", options.listen.format());
    return nullptr;
  }
  return std::unique_ptr<ControlChannel>(new ControlChannel(options, std::move(*listener), std::move(epoll)));
}

ControlChannel::ControlChannel(const ControlOptions& options, UniqueFd listener, UniqueFd epoll)
    : options_(options),
      key_(options.secret, options.job_id),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      listen_address_(SocketAddress::local_of(listener_.get())),
      peers_(options.world_size),
      counters_(kControlCounterNames) {}

ControlChannel::~ControlChannel() = default;

bool ControlChannel::is_up(std::uint16_t rank) const {
  return rank < peers_.size() && peers_[rank].state == PeerState::kUp;
}

ControlSendStatus ControlChannel::send(std::uint16_t rank, std::uint8_t type, std::span<const std::byte> payload) {
  MLT_CHECK(type >= kFirstMessageType);
  if (!is_up(rank)) return ControlSendStatus::kNotConnected;
  Connection& connection = *peers_[rank].connection;
  if (connection.overflowed || connection.goodbye_sent) return ControlSendStatus::kNotConnected;
  if (payload.size() > options_.max_message_bytes) return ControlSendStatus::kTooLarge;
  if (!connection.stream.queue(type, payload)) {
    connection.overflowed = true;
    next_timeout_ = 0;  // service() reports it at once
    return ControlSendStatus::kOverflow;
  }
  connection.liveness.on_message_sent(serviced_at_);
  counters_.add(ControlCounter::kMessagesSent);
  // A write error is ignored here: the reading side reports it, and may still find a goodbye.
  connection.stream.flush();
  watch(connection);
  return ControlSendStatus::kQueued;
}

void ControlChannel::say_goodbye(bool has_failed) {
  if (goodbye_) return;
  goodbye_ = true;
  if (listener_) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  listener_.reset();
  listener_paused_until_ = base::kNever;
  for (Peer& peer : peers_) {
    if (peer.state == PeerState::kUp) continue;
    peer.state = PeerState::kGone;
    peer.connection = nullptr;
  }
  for (const auto& connection : connections_) {
    if (connection->state == State::kUp &&
        // PROTOCOL 3.7.6: A side that leaves because it failed MUST end its half of the connection without a goodbye.
        (has_failed ||
         // PROTOCOL 3.7.1: A side that leaves MUST send goodbye as its last frame and end its half of the connection.
         connection->stream.queue(static_cast<std::uint8_t>(FrameType::kGoodbye), {}))) {
      connection->goodbye_sent = true;
      connection->stream.end_output();
      watch(*connection);
    } else if (connection->state == State::kUp) {
      connection->overflowed = true;
    } else if (connection->state != State::kClosing) {
      close(*connection);
    }
  }
  next_timeout_ = 0;
}

bool ControlChannel::finished() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->state == State::kClosed; });
}

bool ControlChannel::is_goodbye_acknowledged() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection->state == State::kUp &&
           (connection->stream.pending_bytes() > 0 || !is_all_acknowledged(connection->stream.fd()));
  });
}

// Handles every readable connection, however many there are: the kernel returns as many as `events` holds, and puts
// those it has returned at the end of its list.
void ControlChannel::read_ready(base::TimeNs now, ControlSink& sink) {
  std::array<epoll_event, 64> events;
  for (std::size_t turns = connections_.size() / events.size() + 1; turns > 0; --turns) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.ptr == nullptr) {
        accept_all(now, sink);
      } else {
        // Connections are destroyed in sweep() only, so that an event never points to a destroyed one.
        on_ready(*static_cast<Connection*>(event.data.ptr), event.events, now, sink);
      }
    }
    if (count < static_cast<int>(events.size())) return;
  }
}

void ControlChannel::service(base::TimeNs now, ControlSink& sink) {
  serviced_at_ = now;
  read_ready(now, sink);
  // PROTOCOL 3.6.3: An endpoint MUST read what has arrived before it declares a peer silent: data may wait for a
  //     process that was not scheduled.
  // Timers run after input: data that arrived while this process was not scheduled counts as received. They look at
  // every peer, so they run when one is due only, and not for every frame that arrives.
  if (now >= next_timeout_ || is_in_step(now)) run_timers(now, sink);
  sweep();
}

void ControlChannel::resume_listener(base::TimeNs now, ControlSink& sink) {
  listener_paused_until_ = base::kNever;
  accept_all(now, sink);
  epoll_event event{};
  event.events = EPOLLIN;
  if (listener_paused_until_ == base::kNever && listener_) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  }
}

ControlChannel::Connection& ControlChannel::add_connection(UniqueFd fd, State state, base::TimeNs closes_at) {
  connections_.push_back(
      std::make_unique<Connection>(FrameStream(std::move(fd), options_.outgoing_limit_bytes), state, closes_at));
  Connection& connection = *connections_.back();
  connection.stream.set_max_payload(kHandshakePayloadBytes);
  call_at(closes_at);
  watch(connection);
  return connection;
}

// Watches for output only while some is queued or a connect is in progress.
void ControlChannel::watch(Connection& connection) {
  if (connection.state == State::kClosed) return;
  const bool output = connection.state == State::kConnecting || connection.stream.pending_bytes() > 0;
  if (connection.watched && output == connection.watches_output) return;
  epoll_event event{};
  event.events = EPOLLIN | (output ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.ptr = &connection;
  const int operation = connection.watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  MLT_CHECK(::epoll_ctl(epoll_.get(), operation, connection.stream.fd(), &event) == 0);
  connection.watched = true;
  connection.watches_output = output;
}

void ControlChannel::accept_all(base::TimeNs now, ControlSink&) {
  const auto pause = [&](base::DurationNs length) {
    epoll_event event{};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
    listener_paused_until_ = base::after(now, length);
    call_at(listener_paused_until_);
  };
  // PROTOCOL 3.5.6: A listening side SHOULD accept at most 16 connections before it looks at its other work again, and
  //     wait 10 ms between such turns once every rank has come.
  for (std::size_t accepts = 0; listener_; ++accepts) {
    if (accepts == kAcceptsPerTurn) {
      if (!is_forming()) pause(kAcceptPauseNs);
      return;
    }
    int number = 0;
    UniqueFd fd = accept_tcp(listener_.get(), number);
    if (!fd) {
      if (number == 0) return;
      // accept() reports a lack of descriptors or memory even if no connection is pending.
      pollfd waiting{listener_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 0) == 0) return;
      // sweep() frees the descriptor of a client without a proof. Without such a client the pending connection remains
      // and the listener would poll readable forever.
      return evict_unproved() ? void() : pause(kListenerPauseNs);
    }
    counters_.add(ControlCounter::kAccepted);
    const SocketAddress remote = SocketAddress::remote_of(fd.get());
    const ClientSources::Source source = ClientSources::of(remote);
    unproved_.add(source);
    // PROTOCOL 3.5.5: A listening side SHOULD hold at most 256 connections that came in and have no proof yet, or world
    //     size + 64 rounded up to a power of two if that is more.
    if (unproved_.clients() > max_unproved_of(peers_.size())) evict_unproved();
    Connection& connection =
        add_connection(std::move(fd), State::kAwaitOpening, base::after(now, options_.unproved_timeout_ns));
    connection.remote = remote;
    connection.source = source;
  }
}

// Whether a rank may still connect to this side.
bool ControlChannel::is_forming() const {
  return std::any_of(peers_.begin() + options_.rank + 1, peers_.end(), [](const Peer& peer) {
    return peer.state == PeerState::kUnknown || peer.state == PeerState::kExpected;
  });
}

void ControlChannel::on_ready(Connection& connection, std::uint32_t events, base::TimeNs now, ControlSink& sink) {
  if (connection.state == State::kClosed) return;
  if (connection.state == State::kConnecting) {
    if (const int number = connect_result(connection.stream.fd()); number != 0) {
      peers_[*connection.rank].is_refused = number == ECONNREFUSED;
      attempt_failed(*connection.rank, errno_text(number), now);
      close(connection);
      return;
    }
    peers_[*connection.rank].reached_at = now;
    peers_[*connection.rank].is_refused = false;
    connection.state = State::kAwaitOpening;
    send_opening(connection, options_.version);
    return;
  }
  if ((events & EPOLLOUT) != 0) {
    connection.stream.flush();
    watch(connection);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_frames(connection, now, sink);
}

void ControlChannel::read_frames(Connection& connection, base::TimeNs now, ControlSink& sink) {
  for (int reads = 0; reads < kMaxReads && connection.state != State::kClosed; ++reads) {
    switch (connection.stream.fill()) {
      case FrameStream::Status::kBlocked:
        return;  // fill() has released
      case FrameStream::Status::kEnd:
        return on_ended(connection, 0, now, sink);
      case FrameStream::Status::kFailed:
        return on_ended(connection, connection.stream.error(), now, sink);
      case FrameStream::Status::kOk:
        break;
    }
    connection.liveness.on_heard(now);
    FrameHeader header;
    std::span<const std::byte> payload;
    while (connection.state != State::kClosed) {
      if (connection.state == State::kClosing) {  // it was sent a refusal; drop further frames
        connection.drained_bytes += connection.stream.discard();
        // PROTOCOL 3.4.1: It then discards at most 4,096 bytes of what still comes, for at most 1 s, and closes the
        //     connection (control_drains_cut).
        if (connection.drained_bytes <= kDrainBytes) break;
        counters_.add(ControlCounter::kDrainsCut);
        close(connection);
        break;
      }
      const FrameStream::Next next = connection.stream.next(header, payload);
      if (next == FrameStream::Next::kIncomplete) break;
      if (next == FrameStream::Next::kMalformed) {
        malformed(connection, "a frame that is too long or has a bad header", now, sink);
      } else {
        on_frame(connection, header.type, payload, now, sink);
      }
    }
    if (!connection.stream.may_have_more()) break;
  }
  // Idle connections keep no buffers.
  connection.stream.release_consumed();
}

void ControlChannel::on_frame(Connection& connection, std::uint8_t type, std::span<const std::byte> payload,
                              base::TimeNs now, ControlSink& sink) {
  const State state = connection.state;
  if (is_overtaken(connection) && type != static_cast<std::uint8_t>(FrameType::kOpen)) return close(connection);
  if (type >= kFirstMessageType && state == State::kUp) {
    counters_.add(ControlCounter::kMessagesReceived);
    sink.on_message(*connection.rank, type, payload);
    return;
  }
  switch (static_cast<FrameType>(type)) {
    case FrameType::kOpen:
      if (state == State::kAwaitOpening) return on_opening(connection, payload, now, sink);
      break;
    case FrameType::kHello:
      if (state == State::kAwaitHello && check_proof(connection, FrameType::kHello, payload, sink)) {
        return on_hello(connection, payload, now, sink);
      }
      if (state == State::kAwaitHello) return;
      break;
    case FrameType::kRefuse:
      if (state == State::kAwaitOpening && connection.outgoing)
        return on_unproved_refusal(connection, payload, now, sink);
      if (state == State::kAwaitConfirm || (state == State::kAwaitHello && connection.outgoing)) {
        if (check_proof(connection, FrameType::kRefuse, payload, sink)) on_refusal(connection, payload, now, sink);
        return;
      }
      break;
    case FrameType::kConfirm:
      if (state == State::kAwaitConfirm && payload.empty()) return come_up(connection, now, sink);
      break;
    case FrameType::kHeartbeat:
      if (state != State::kUp || !payload.empty()) break;
      counters_.add(ControlCounter::kHeartbeatsReceived);
      heard_heartbeat_ = true;
      return;
    case FrameType::kHeartbeatRequest:
      if (state != State::kUp || !payload.empty()) break;
      // PROTOCOL 3.6.6: A side that receives a heartbeat request MUST send a heartbeat at once.
      counters_.add(ControlCounter::kHeartbeatsSent);
      return say(connection, FrameType::kHeartbeat);
    case FrameType::kSilent:
      if (state != State::kUp || payload.size() != kSilentPayloadBytes) break;
      return on_silence_told(payload, now);
    case FrameType::kGoodbye:
      if (state != State::kUp || !payload.empty()) break;
      // PROTOCOL 3.7.2: On goodbye an endpoint MUST treat the peer as down, which is an orderly end, and close the
      //     connection; closing is the reply.
      return go_down(*connection.rank, PeerDownCause::kGoodbye,
                     peer_text(*connection.rank, connection.remote) +
                         " left the job: its process closed its context, or ended with exit status 0. If that was too "
                         "early, look at its output.",
                     sink);
  }
  // PROTOCOL 3.1.5: A receiver MUST treat a frame as malformed if the connection's state does not allow its type, or if
  //     its length is wrong for its type. No state allows types 9 to 15.
  malformed(connection, "an unexpected frame of type " + std::to_string(type), now, sink);
}

void ControlChannel::on_ended(Connection& connection, int number, base::TimeNs now, ControlSink& sink) {
  const std::string how = number == 0 ? "closed" : errno_text(number);
  if (connection.state == State::kUp) {
    const std::string peer = peer_text(*connection.rank, connection.remote);
    if (connection.goodbye_sent) {
      go_down(*connection.rank, PeerDownCause::kGoodbye, peer + " closed the connection after this rank left.", sink);
    } else {
      // PROTOCOL 3.7.3: An endpoint MUST treat a connection that ends without a goodbye as the death of the peer.
      go_down(*connection.rank, PeerDownCause::kLost,
              peer + " died: its connection ended without a goodbye (" + how +
                  "). Its process ended without closing its context, or was killed by a signal (SIGKILL: often out of "
                  "memory): look at its output for the cause.",
              sink);
    }
    return;
  }
  const SocketAddress from = connection.remote;
  const State state = connection.state;
  if (connection.outgoing && (state == State::kAwaitOpening || state == State::kAwaitHello)) {
    const bool asked = *connection.rank > options_.rank && state == State::kAwaitHello;
    attempt_failed(
        *connection.rank,
        asked ? "it was asked to connect, and has not yet" : "the connection ended before a hello (" + how + ")", now);
  } else if (state == State::kAwaitOpening) {
    counters_.add(ControlCounter::kUnidentified);
  } else if (state == State::kAwaitHello) {
    counters_.add(ControlCounter::kUnproved);
    reject_client(
        from, "disconnected without proving that it knows the job's secret: it may have another secret or job name.",
        sink);
  } else if (state == State::kAwaitConfirm) {
    counters_.add(ControlCounter::kAbandoned);
    peers_[*connection.rank].last_cause =
        "it ended the connection (" + how + ") before it confirmed it; unless it tries again, its process has ended";
  }
  close(connection);
}

void ControlChannel::malformed(Connection& connection, const std::string& what, base::TimeNs now, ControlSink& sink) {
  // PROTOCOL 3.1.6: A receiver MUST end the connection on a malformed frame and count it in control_malformed; a peer
  //     that was up goes down.
  counters_.add(ControlCounter::kMalformed);
  const std::string saw =
      " sent " + what + " on the control connection: check that it is a rank of this job, with the same mlt release.";
  if (connection.state == State::kUp) {
    const std::uint16_t rank = *connection.rank;
    go_down(rank, PeerDownCause::kMalformed, peer_text(rank, connection.remote) + saw, sink);
    return;
  }
  if (connection.outgoing) {
    attempt_failed(*connection.rank, "it sent " + what, now);
    close(connection);
    return;
  }
  const SocketAddress from = connection.remote;
  close(connection);
  reject_client(from, saw.substr(1), sink);
}

// Records the rejection of a client without a credible rank.
void ControlChannel::reject_client(const SocketAddress& from, const std::string& why, ControlSink& sink) {
  last_rejected_ = "rejected a connection to rank " + std::to_string(options_.rank) + ": " + from.format() + " " + why;
  sink.on_refused(from, last_rejected_);
}

// The descriptor itself is closed in sweep(); until then it is out of the epoll set.
void ControlChannel::close(Connection& connection) {
  if (connection.state == State::kClosed) return;
  if (connection.watched) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.stream.fd(), nullptr);
  connection.watched = false;
  if (connection.is_unproved()) unproved_.remove(connection.source);
  if (connection.rank && peers_[*connection.rank].connection == &connection) {
    peers_[*connection.rank].connection = nullptr;
  }
  connection.state = State::kClosed;
  has_closed_ = true;
}

void ControlChannel::sweep() {
  if (!std::exchange(has_closed_, false)) return;
  std::erase_if(connections_, [](const auto& connection) { return connection->state == State::kClosed; });
}

}  // namespace mlt::io
