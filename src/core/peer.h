// State that an endpoint keeps per peer between transfers: cookies, rate, round trip, sequence numbers per path.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/completion_queue.h"
#include "core/config.h"
#include "core/counter.h"
#include "core/event.h"
#include "core/mtu_search.h"
#include "core/pacer.h"
#include "core/path_spray.h"
#include "core/probe_state.h"
#include "core/probe_turns.h"
#include "core/rate_controller.h"
#include "core/rtt_estimator.h"
#include "core/tag_table.h"
#include "core/timely.h"
#include "core/timing_wheel.h"

namespace mlt::core {

static_assert(RateController<Timely>);

struct PathIn {
  std::uint32_t highest_sequence = 0;  // 0: nothing arrived yet
  std::uint32_t received_packets = 0;
  std::uint32_t ce_packets = 0;
  std::uint32_t echo_timestamp_ns = 0;
  TimeNs echo_arrival_ns = 0;
  std::uint32_t since_ack = 0;
  bool echo_fresh = false;
};

inline constexpr std::uint8_t kNoPath = 0xFF;

struct Peer {
  bool up = false;
  bool holds_back = false;  // the path has flow control of its own: no rate control, no path MTU search
  std::uint64_t local_cookie = 0;
  std::uint64_t issued_cookie = 0;  // what local_cookie will be once it is up; 0: not known before
  std::uint64_t remote_cookie = 0;
  std::uint32_t segment_bytes = 0;
  std::uint32_t window_bytes = 0;
  std::uint32_t packets_per_ack = 1;
  std::uint32_t early_segments = 0;
  std::uint32_t early_transfers = 0;

  // Sending. Owned by Sender.
  std::optional<Timely> rate;  // made when the peer comes up
  Pacer pacer;
  RttEstimator rtt;
  std::uint32_t work_head = kNil;     // sends with unsent segments, in send order (send_queue.h)
  std::uint32_t blind_segments = 0;   // segments of early data
  std::uint32_t blind_transfers = 0;  // transfers of early data
  std::uint32_t abandoned =
      0;  // segments plus transfers of sends whose ABORT was never acknowledged; both limits count them for good
  std::uint32_t blind_head = kNil;       // sends that wait at the early-data limit, in send order
  std::uint32_t blind_waiting = 0;       // their number
  std::uint32_t send_floor = 0;          // first generation of a tag that is new here
  std::uint32_t new_tags = 0;            // since the last retirement
  std::uint32_t tags = 0;                // remembered tags of sends
  std::uint32_t tags_held = 0;           // of these: must not be forgotten now
  std::uint32_t tags_unknown = 0;        // of these: no receive is known to be posted
  std::uint32_t retire_at = kNil;        // position in the list of kept tags that is being sent
  bool classification_deferred = false;  // until the peer's timer: the call's classification budget was used up
  Window window;
  ProbeTurns probe_turns;
  bool replies_by_control = false;  // the newest reply to a probe came over TCP: datagrams may not get through
  PathSpray spray;
  std::array<MtuSearch, MLT_MAX_PATHS> mtu;

  // Receiving. Owned by Receiver.
  std::array<PathIn, MLT_MAX_PATHS> in;
  std::uint8_t last_path = 0;          // of the newest data packet
  std::uint8_t probe_path = kNoPath;   // of the newest probe: the sender changes it if a probe stays unanswered
  std::uint32_t since_ack = 0;         // packets not acknowledged yet, over all paths
  std::uint32_t unreported_paths = 0;  // bit per path that has such packets
  wire::TransferId ack_transfer;
  bool ack_posted = false;
  bool heard = false;    // received a packet on this connection: the peer is up
  bool refused = false;  // received datagrams in its name that are not of this connection, perhaps of the next
  bool refused_before_up = false;    // received such datagrams since the connection before this one was up
  std::uint32_t receive_floor = 0;   // as send_floor, by the peer's latest report
  std::uint32_t kept_tags = 0;       // number of entries with by_retirement
  bool early_refused = false;        // the early buffer had no space for a segment of a transfer without a record
  DurationNs reorder_window_ns = 0;  // largest observed delay of a packet behind a later one
};

// State shared by sender and receiver. Owned by the endpoint.
struct Shared {
  explicit Shared(const EndpointConfig& endpoint_config)
      : config(endpoint_config),
        peers(endpoint_config.peers),
        send_tags(endpoint_config.own_tags_per_peer(), endpoint_config.common_tags(), 0, endpoint_config.peers),
        receive_tags(endpoint_config.own_tags_per_peer(), endpoint_config.common_tags(),
                     endpoint_config.peers * endpoint_config.unknown_tags, endpoint_config.peers),
        timers(std::size_t{2} * endpoint_config.peers +
               std::size_t{2} * std::max(endpoint_config.max_sends, endpoint_config.max_receives)),
        completions(endpoint_config.max_sends, endpoint_config.max_receives) {}

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

  EndpointConfig config;
  std::vector<Peer> peers;
  TagTable<SendTag> send_tags;
  TagTable<ReceiveTag> receive_tags;
  TimingWheel timers;
  CompletionQueue completions;
  Counters counters;
};

}  // namespace mlt::core
