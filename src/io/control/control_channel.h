// The TCP mesh between ranks: which ranks are connected, with which settings, and whether they are still alive. It also
// carries the caller's messages (registration, TCP fallback, ...), which are opaque here.
//
// One listener per process and one connection per pair: the higher rank connects to the lower. Section 3.8 of
// PROTOCOL.md has the handshake: neither side reveals anything about the job to a client that has not proved to know
// its secret, and a connection is up only once both sides confirmed it, so that an abandoned one (a retry, a timeout)
// is never taken for a peer that connected and died. Each peer that comes up goes down exactly once; a rank that went
// down stays down, because operations with it have failed.
//
// On first use: the caller gives an address with know(), and the connection is set up when either side calls use(). A
// lower rank cannot connect; its hello asks the higher one to.
//
// Absent on purpose: reconnection, encryption, and threads or timers of its own: the caller runs service() when
// poll_fd() is readable or next_timeout() is reached. One thread owns a channel; a sink may call send(), connect_to(),
// expect() and say_goodbye() from inside service().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "io/control/client_sources.h"
#include "io/control/control_frame.h"
#include "io/control/frame_stream.h"
#include "io/control/liveness.h"
#include "io/control/proof.h"
#include "io/counters.h"
#include "io/net/socket_address.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// While all ranks connect to all, a rank that shares its cores with many others is late on every connection.
inline constexpr base::DurationNs kConnectNsPerRank = 100 * base::kMillisecond;
// TCP repeats a lost SYN after one second and after three; the third may arrive.
inline constexpr base::DurationNs kNoReplyNs = 7 * base::kSecond;

// Time limit for a connection opened by this side to come up, in a job of `ranks`.
constexpr base::DurationNs hello_timeout_of(std::uint16_t ranks) {
  constexpr base::DurationNs kMinHelloNs = 5 * base::kSecond;
  constexpr base::DurationNs kMaxHelloNs = 60 * base::kSecond;
  return std::clamp(ranks * kConnectNsPerRank, kMinHelloNs, kMaxHelloNs);
}

// Time limit for a client's proof. The same in every job: otherwise it would reveal the number of ranks.
inline constexpr base::DurationNs kUnprovedTimeoutNs = 30 * base::kSecond;

struct ControlOptions {
  SocketAddress listen;   // port 0: the system chooses
  std::uint8_t dscp = 0;  // 6 bits, of every packet of the connections
  std::uint16_t version = 1;
  std::uint16_t rank = 0;
  std::uint16_t world_size = 0;
  std::uint64_t job_id = 0;
  std::string secret;  // the job's; empty: no shared secret, every client can prove it
  std::uint64_t incarnation = 0;
  std::vector<std::uint64_t> cookies;  // [r]: what rank r must put into its datagrams to this rank; world_size entries
  std::vector<HelloPath> paths;        // addresses where this rank receives datagrams, 1 .. MLT_MAX_PATHS of them
  std::uint32_t segment_bytes = 0;
  std::uint32_t window_bytes = 0;
  std::uint32_t early_segments = 0;
  std::uint32_t early_transfers = 0;

  base::DurationNs hello_timeout_ns = hello_timeout_of(1);  // limit for an outgoing or proved connection to come up
  base::DurationNs unproved_timeout_ns = kUnprovedTimeoutNs;
  base::DurationNs drain_timeout_ns = 1 * base::kSecond;     // time for a rejected client to read the reason
  base::DurationNs heartbeat_ns = 500 * base::kMillisecond;  // send interval while there is no other message
  base::DurationNs dead_after_ns = 3 * base::kSecond;        // timeout of a silent peer
  // Timeout of a silent peer whose host acknowledges what is sent to it: a stopped process. Not longer than
  // dead_after_ns: the same.
  base::DurationNs suspended_after_ns = 0;
  base::DurationNs connect_backoff_ns = 10 * base::kMillisecond;
  base::DurationNs connect_backoff_max_ns = 500 * base::kMillisecond;
  std::uint32_t max_message_bytes = 1U << 20;
  std::uint32_t outgoing_limit_bytes = 4U << 20;  // per peer; a peer that exceeds it is failed
};

struct PeerHello {
  Hello hello;                               // hello.rank is the peer's; hello.cookie goes into datagrams to it
  SocketAddress control_address;             // where it listens: its host as this connection sees it, its control port
  std::vector<SocketAddress> udp_addresses;  // of its paths; the same host if the hello has no address
};

enum class PeerDownCause : std::uint8_t {
  kGoodbye,      // orderly, by either side
  kLost,         // the connection ended without goodbye: the process died
  kSilent,       // nothing received for dead_after_ns or suspended_after_ns: stopped, or the network is down
  kMalformed,    // it sent invalid frames
  kOverflow,     // it does not read: more than outgoing_limit_bytes are queued for it
  kRefused,      // it refused this rank's hello, or this rank refused its hello: the settings differ
  kUnreachable,  // it did not come up before the deadline
};
std::string_view cause_name(PeerDownCause cause);

class ControlSink {
 public:
  virtual void on_peer_up(const PeerHello& peer) = 0;
  virtual void on_message(std::uint16_t rank, std::uint8_t type, std::span<const std::byte> payload) = 0;
  // `text` gives both ranks, the address, the cause and the remedy.
  virtual void on_peer_down(std::uint16_t rank, PeerDownCause cause, const std::string& text) = 0;
  // A client was rejected before it became a peer: another job, another version, a rank that is taken, a port scanner.
  // Peers are not affected. If a rank is still missing at its deadline, on_peer_down() repeats this text.
  virtual void on_refused(const SocketAddress& from, const std::string& text) = 0;
  // Whether an operation with this peer is in progress, so that its silence matters to this rank.
  virtual bool needs(std::uint16_t rank) const = 0;
  // When the last datagram of this peer arrived; 0: none yet.
  virtual base::TimeNs datagram_at(std::uint16_t rank) const = 0;
  // This peer is watched, and nothing has arrived on its connection for two heartbeat periods, or two more.
  virtual void on_quiet(std::uint16_t rank) = 0;

 protected:
  ~ControlSink() = default;
};

enum class ControlSendStatus : std::uint8_t {
  kQueued,
  kNotConnected,  // not up, or already failing
  kTooLarge,      // larger than max_message_bytes
  kOverflow,      // nothing queued; the peer is failed, and on_peer_down follows
};

enum class ControlCounter : std::size_t {
  kMessagesSent,
  kMessagesReceived,
  kHeartbeatsSent,
  kHeartbeatsReceived,
  kHeartbeatRequestsSent,
  kSilenceReportsSent,  // frames that report another peer as silent
  kConnectAttempts,
  kAccepted,
  kRefusals,        // sent or received
  kUnidentified,    // connections that ended before a valid opening
  kUnproved,        // ended after a valid opening, without a valid proof of the job's secret
  kOtherVersion,    // opened with another protocol version
  kTimedOut,        // closed because they were not up in time
  kTooManyPending,  // closed, from the source with most connections, because too many had no proof
  kAbandoned,       // proved, sent a hello and left before confirming: a retry follows
  kDrainsCut,       // refused, and closed because they kept sending or did not end
  kMalformed,
  kCount
};

class ControlChannel {
 public:
  // Null on failure (port taken, bad options), with `error` filled.
  static std::unique_ptr<ControlChannel> open(const ControlOptions& options, OsError& error);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  const SocketAddress& listen_address() const { return listen_address_; }
  int poll_fd() const { return epoll_.get(); }
  base::TimeNs next_timeout() const { return next_timeout_; }

  // Retries until `deadline`, then on_peer_down(kUnreachable). `rank` must be below this rank. False, with `error`
  // filled, if it is not, or if it was passed before.
  bool connect_to(base::TimeNs now, std::uint16_t rank, const SocketAddress& address, base::TimeNs deadline,
                  OsError& error);
  // Expects rank `rank`, above this rank, to connect before `deadline`; else on_peer_down(kUnreachable). A rank may
  // also connect without being expected.
  bool expect(base::TimeNs now, std::uint16_t rank, base::TimeNs deadline, OsError& error);

  // Where `rank` listens, and how long a connection with it may take once use() or its request asked for it. False,
  // with `error` filled, if the rank is no peer, or was passed before. The rank must listen already: if its host
  // refuses TCP for the silence limit, its process has ended.
  bool know(std::uint16_t rank, const SocketAddress& address, base::DurationNs limit_ns, OsError& error);
  // Sets up the connection with a rank that is known, unless that has begun. It comes up, or goes down.
  void use(base::TimeNs now, std::uint16_t rank);

  // `type` is kFirstMessageType or above. Delivered in order, or the peer goes down.
  ControlSendStatus send(std::uint16_t rank, std::uint8_t type, std::span<const std::byte> payload);

  // Fails a peer at the caller's request: its connection ends without a goodbye, and it goes down, with that text, in
  // the next service(). No effect if the peer is not up.
  void fail_peer(std::uint16_t rank, const std::string& text);

  // Sends goodbye to every peer, and stops listening and connecting. Keep calling service() until finished(), or until
  // the caller's own time limit. A rank that leaves because it failed ends its connections without a goodbye.
  void say_goodbye(bool has_failed = false);
  bool finished() const;
  // Whether every peer's host has acknowledged the goodbye: it arrives even if this process ends.
  bool is_goodbye_acknowledged() const;

  bool is_up(std::uint16_t rank) const;
  void service(base::TimeNs now, ControlSink& sink);
  std::span<const NamedCounter> counters() const { return counters_.all(); }

 private:
  enum class State : std::uint8_t { kConnecting, kAwaitOpening, kAwaitHello, kAwaitConfirm, kUp, kClosing, kClosed };
  struct Connection;
  enum class PeerState : std::uint8_t { kUnknown, kConnecting, kExpected, kUp, kGone };
  struct Peer {
    PeerState state = PeerState::kUnknown;
    SocketAddress address;
    base::TimeNs asked_at = 0;
    base::TimeNs deadline = base::kNever;
    base::TimeNs next_attempt = base::kNever;
    base::DurationNs backoff_ns = 0;
    base::DurationNs limit_ns = 0;  // on first use; 0: this side does not connect on first use
    base::TimeNs reached_at = 0;    // its host accepted TCP, or nothing was tried before
    bool is_refused = false;        // its host refused TCP since
    std::uint64_t incarnation = 0;
    std::string last_cause;            // why it is not up yet
    Connection* connection = nullptr;  // kUp, or the attempt in progress
    bool neighbour = false;            // both sides send heartbeats
  };

  ControlChannel(const ControlOptions& options, UniqueFd listener, UniqueFd epoll);

  // Connections and their events.
  Connection& add_connection(UniqueFd fd, State state, base::TimeNs closes_at);
  void watch(Connection& connection);
  void read_ready(base::TimeNs now, ControlSink& sink);
  void accept_all(base::TimeNs now, ControlSink& sink);
  void on_ready(Connection& connection, std::uint32_t events, base::TimeNs now, ControlSink& sink);
  void read_frames(Connection& connection, base::TimeNs now, ControlSink& sink);
  void on_frame(Connection& connection, std::uint8_t type, std::span<const std::byte> payload, base::TimeNs now,
                ControlSink& sink);
  void on_ended(Connection& connection, int number, base::TimeNs now, ControlSink& sink);
  void malformed(Connection& connection, const std::string& what, base::TimeNs now, ControlSink& sink);
  void reject_client(const SocketAddress& from, const std::string& why, ControlSink& sink);
  void close(Connection& connection);
  void sweep();
  void resume_listener(base::TimeNs now, ControlSink& sink);

  // Openings and proofs (control_proof.cc).
  void send_opening(Connection& connection, std::uint16_t answered_version);
  void on_opening(Connection& connection, std::span<const std::byte> payload, base::TimeNs now, ControlSink& sink);
  void on_other_version(Connection& connection, std::uint16_t version, base::TimeNs now, ControlSink& sink);
  bool queue_proved(Connection& connection, FrameType type, std::span<const std::byte> payload);
  bool check_proof(Connection& connection, FrameType type, std::span<const std::byte>& payload, ControlSink& sink);
  void on_unproved_refusal(Connection& connection, std::span<const std::byte> payload, base::TimeNs now,
                           ControlSink& sink);
  void end_after_output(Connection& connection, base::TimeNs now);
  bool evict_unproved();

  // Hellos and refusals (control_handshake.cc).
  void send_hello(Connection& connection, std::uint16_t to);
  void on_hello(Connection& connection, std::span<const std::byte> payload, base::TimeNs now, ControlSink& sink);
  bool resolve_paths(const Connection& connection, const Hello& hello, std::vector<SocketAddress>& out) const;
  bool validate(const Connection& connection, const Hello& hello, Refusal& refusal) const;
  void refuse(Connection& connection, const Hello& hello, const Refusal& refusal, base::TimeNs now, ControlSink& sink);
  void on_refusal(Connection& connection, std::span<const std::byte> payload, base::TimeNs now, ControlSink& sink);
  void come_up(Connection& connection, base::TimeNs now, ControlSink& sink);

  // Peers and their timers (control_peer.cc).
  void attempt(std::uint16_t rank, base::TimeNs now, ControlSink& sink);
  void attempt_failed(std::uint16_t rank, const std::string& cause, base::TimeNs now);
  void go_down(std::uint16_t rank, PeerDownCause cause, const std::string& text, ControlSink& sink);
  void run_timers(base::TimeNs now, ControlSink& sink);
  void run_opening_timers(Connection& connection, base::TimeNs now, ControlSink& sink);
  void beat_before_up(Connection& connection, base::TimeNs now);
  std::string unreached_text(std::uint16_t rank, base::TimeNs now) const;
  base::TimeNs unreachable_at(const Peer& peer) const;
  // A request to connect whose connection is here, or has been.
  bool is_overtaken(const Connection& connection) const;
  bool is_request(const Connection& connection, const Hello& hello) const;
  std::string unseen_text(std::uint16_t rank) const;
  void run_peer_timers(std::uint16_t rank, base::TimeNs now, ControlSink& sink);
  base::TimeNs compute_next_timeout(base::TimeNs now);
  void call_at(base::TimeNs when) { next_timeout_ = std::min(next_timeout_, when); }
  std::string peer_text(std::uint16_t rank, const SocketAddress& address) const;
  bool check_rank(std::uint16_t rank, bool below, OsError& error) const;
  bool is_forming() const;

  // Whether peers are alive (control_liveness.cc).
  void run_liveness(Connection& connection, base::TimeNs beat_until, base::TimeNs now, ControlSink& sink);
  bool is_suspended(Connection& connection, base::TimeNs now, const ControlSink& sink);
  void take_as_silent(Connection& connection, base::TimeNs now, ControlSink& sink);
  void tell_silence(std::uint16_t rank);
  void on_silence_told(std::span<const std::byte> payload, base::TimeNs now);
  void excuse_silence(base::TimeNs now, base::DurationNs late);
  base::TimeNs heartbeats_until(base::TimeNs now) const;
  bool is_in_step(base::TimeNs now) const;
  void say(Connection& connection, FrameType type, std::span<const std::byte> payload = {});
  void find_neighbours();
  LivenessLimits liveness_limits() const;

  ControlOptions options_;
  JobKey key_;
  UniqueFd listener_;
  UniqueFd epoll_;
  SocketAddress listen_address_;
  base::TimeNs listener_paused_until_ = base::kNever;  // kNever: not paused
  std::string last_rejected_;  // why the last client without a rank was rejected, for the texts of missing ranks
  base::TimeNs next_timeout_ = base::kNever;
  base::TimeNs serviced_at_ = 0;  // time of the last service(): messages sent until the next one are later than this
  base::TimeNs next_heartbeat_ = base::kNever;  // as of the last run_timers(): messages may have replaced it since
  bool heard_heartbeat_ = false;                // since the last run_timers()
  bool goodbye_ = false;
  bool has_closed_ = false;          // sweep() has something to do
  bool neighbours_changed_ = false;  // a peer came up or went down since find_neighbours()
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Connection>> connections_;
  ClientSources unproved_;  // of the connections for which is_unproved() holds
  CounterTable<ControlCounter> counters_;
};

}  // namespace mlt::io
