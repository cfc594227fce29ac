// State that an endpoint keeps per peer between transfers: cookies, rate, round trip, sequence numbers per path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/packed_rows.h"
#include "core/completion_queue.h"
#include "core/config.h"
#include "core/counter.h"
#include "core/event.h"
#include "core/pacer.h"
#include "core/path_spray.h"
#include "core/path_window.h"
#include "core/probe_state.h"
#include "core/probe_turns.h"
#include "core/rate_controller.h"
#include "core/reply_wait.h"
#include "core/rtt_estimator.h"
#include "core/tag_table.h"
#include "core/timely.h"
#include "core/timing_wheel.h"

namespace mlt::core {

static_assert(RateController<Timely>);

inline constexpr std::uint8_t kNoPath = 0xFF;

// Begins anew with each connection.
struct PeerConnection {
  bool up = false;
  bool holds_back = false;  // the path has flow control of its own: no rate control, no path MTU search
  std::uint64_t remote_cookie = 0;
  std::uint32_t segment_bytes = 0;
  std::uint32_t operations = 0;  // in progress: sends and receives

  // Sending. Owned by Sender.
  std::optional<Timely> rate;  // made when the peer comes up
  Pacer pacer;
  RttEstimator rtt;
  ReplyWait reply_wait;
  std::uint32_t work_head = kNil;        // sends with unsent segments, in send order (send_queue.h)
  bool classification_deferred = false;  // until the peer's timer: the call's classification budget was used up
  Window window;
  PathWindow path_window;
  ProbeTurns probe_turns;
  bool replies_by_control = false;  // the newest reply to a probe came over TCP: datagrams may not get through

  // Receiving. Owned by Receiver.
  TimeNs datagram_at = 0;            // of the last datagram from it
  bool heard = false;                // received a packet on this connection: the peer is up
  bool refused_before_up = false;    // received such datagrams since the connection before this one was up
  bool early_refused = false;        // the early buffer had no space for a segment of a transfer without a record
  DurationNs reorder_window_ns = 0;  // largest observed delay of a packet behind a later one
};

// Made when the peer is first used: an operation is posted, or a datagram comes. Until then it is up as Endpoint says.
struct Peer : PeerConnection {
  PathSpray spray;  // Sender's; restarted with each connection
};

// State shared by sender and receiver. Owned by the endpoint.
struct Shared {
  explicit Shared(const EndpointConfig& endpoint_config)
      : config(endpoint_config),
        peers(endpoint_config.peers),
        paths_out(endpoint_config.peers, endpoint_config.paths),
        timers(std::size_t{kTimerKinds} * std::max({std::uint32_t{endpoint_config.peers} + 1U,
                                                    endpoint_config.max_sends, endpoint_config.max_receives})),
        completions(endpoint_config.max_sends, endpoint_config.max_receives) {}

  // Timer slots: those of peers, of their MTU checks, of sends and of receives in turn. Peers are numbered in the order
  // of their first use. Low slots are used first, to save memory.
  enum TimerKind : std::uint32_t { kPeerTimer, kMtuTimer, kSendTimer, kReceiveTimer, kTimerKinds };
  std::uint32_t peer_timer(std::uint16_t peer) { return timer(peers.place(peer), kPeerTimer); }
  std::uint32_t mtu_timer(std::uint16_t peer) { return timer(peers.place(peer), kMtuTimer); }
  static std::uint32_t send_timer(std::uint32_t slot) { return timer(slot, kSendTimer); }
  static std::uint32_t receive_timer(std::uint32_t slot) { return timer(slot, kReceiveTimer); }

  // Makes no record of a peer that was never used.
  const Peer& peer_view(std::uint16_t peer) const { return peers[peer]; }

  // kPosted, or why no operation can be posted for this peer.
  PostStatus check_peer(std::uint16_t peer) const {
    if (peer >= config.peers || peer == config.rank) return PostStatus::kUnknownPeer;
    // PROTOCOL 18.1.3: An endpoint MUST refuse a post to a peer that is not up with the reason that it went down.
    return peer_view(peer).up ? PostStatus::kPosted : PostStatus::kPeerNotConnected;
  }

  void add_operation(std::uint16_t peer) {
    ++peers[peer].operations;
    ++operations;
  }
  void remove_operation(std::uint16_t peer) {
    --peers[peer].operations;
    --operations;
  }

  static std::uint32_t timer(std::size_t number, TimerKind kind) {
    return static_cast<std::uint32_t>(number) * kTimerKinds + kind;
  }

  EndpointConfig config;
  base::PackedArray<Peer> peers;
  base::PackedRows<PathSpray::PathOut> paths_out;  // by peer and path
  std::uint32_t operations = 0;                    // in progress, with all peers
  TimingWheel timers;
  CompletionQueue completions;
  Counters counters;
};

}  // namespace mlt::core
