// State that an endpoint keeps per peer between transfers: cookies, rate, round trip, sequence numbers per path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

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
  std::uint64_t local_cookie = 0;
  std::uint64_t issued_cookie = 0;  // what local_cookie will be once it is up; 0: not known before
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
  TimeNs datagram_at = 0;  // of the last datagram from it
  bool heard = false;      // received a packet on this connection: the peer is up
  bool refused = false;    // received datagrams in its name that are not of this connection, perhaps of the next
  bool refused_before_up = false;    // received such datagrams since the connection before this one was up
  bool early_refused = false;        // the early buffer had no space for a segment of a transfer without a record
  DurationNs reorder_window_ns = 0;  // largest observed delay of a packet behind a later one
};

struct Peer : PeerConnection {
  PathSpray spray;  // Sender's; restarted with each connection, because it has memory of its own
};

// State shared by sender and receiver. Owned by the endpoint.
struct Shared {
  explicit Shared(const EndpointConfig& endpoint_config)
      : config(endpoint_config),
        peers(endpoint_config.peers),
        timers(std::size_t{2} * endpoint_config.peers +
               std::size_t{2} * std::max(endpoint_config.max_sends, endpoint_config.max_receives)),
        completions(endpoint_config.max_sends, endpoint_config.max_receives) {
    for (Peer& peer : peers) peer.spray = PathSpray(config.paths, config.first_sequence);
  }

  // Timer slots: peers, their MTU checks, then sends and receives in turn. Low slots are used first, to save memory.
  std::uint32_t peer_timer(std::uint16_t peer) const { return peer; }
  std::uint32_t mtu_timer(std::uint16_t peer) const { return std::uint32_t{config.peers} + peer; }
  std::uint32_t send_timer(std::uint32_t slot) const { return 2 * (config.peers + slot); }
  std::uint32_t receive_timer(std::uint32_t slot) const { return 2 * (config.peers + slot) + 1; }

  // kPosted, or why no operation can be posted for this peer.
  PostStatus check_peer(std::uint16_t peer) const {
    if (peer >= config.peers || peer == config.rank) return PostStatus::kUnknownPeer;
    // PROTOCOL 18.1.3: An endpoint MUST refuse a post to a peer that is not up with the reason that it went down.
    return peers[peer].up ? PostStatus::kPosted : PostStatus::kPeerNotConnected;
  }

  void add_operation(std::uint16_t peer) {
    ++peers[peer].operations;
    ++operations;
  }
  void remove_operation(std::uint16_t peer) {
    --peers[peer].operations;
    --operations;
  }

  EndpointConfig config;
  std::vector<Peer> peers;
  std::uint32_t operations = 0;  // in progress, with all peers
  TimingWheel timers;
  CompletionQueue completions;
  Counters counters;
};

}  // namespace mlt::core
