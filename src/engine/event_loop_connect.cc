// Start-up of a rank: opens its datapath and control channel, connects to its peers, and handles their departure.
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/datapath_opening.h"
#include "engine/deadline.h"
#include "engine/error_text.h"
#include "engine/event_loop.h"
#include "io/os/clock.h"

namespace mlt::engine {

namespace {

// The paper's thresholds are for a user-space stack. The kernel also copies a batch out and in, which a first sample of
// one small packet does not include: without this margin, that copying looks like a queue.
constexpr base::DurationNs kKernelRunNs = 50 * base::kMicrosecond;
constexpr base::DurationNs kConnectGraceNs = 500 * base::kMillisecond;

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) {
    throw Error(ErrorCode::kSystem, "getrandom() gave no random bytes for the connection's cookie");
  }
  return value;
}

}  // namespace

core::DscpMap dscp_map(const Options& options) {
  core::DscpMap map;
  map.control = options.control_dscp;
  if (options.data_dscp.empty()) return map;
  map.data_classes = static_cast<std::uint8_t>(std::min<std::size_t>(options.data_dscp.size(), core::kMaxClasses));
  // PROTOCOL 13.1.8: A service whose map lacks a registration's class sends the results in its last one.
  map.data.fill(options.data_dscp[map.data_classes - 1U]);
  std::copy_n(options.data_dscp.begin(), map.data_classes, map.data.begin());
  return map;
}

// PROTOCOL 3.8.10: A process without a job secret MUST listen on loopback addresses and connect to them only, unless
//     its user says otherwise.
void EventLoop::require_secret(const io::SocketAddress& address, const std::string& purpose) const {
  if (!options_.secret.empty() || options_.insecure || options_.ranks == 1 || address.is_loopback()) return;
  throw Error(ErrorCode::kConfig,
              "rank " + std::to_string(options_.rank) + " would " + purpose + " " + address.host() +
                  ", which is no loopback address, without a job secret: anybody there could join the job. Give all "
                  "processes of the job the same secret (MLT_JOB_SECRET or MLT_JOB_SECRET_FILE; docs/security.md), or "
                  "allow it with MLT_INSECURE=1.");
}

namespace {

void check_limits(const Options& options) {
  const auto check = [&](const char* name, std::uint32_t value, std::uint32_t least, std::uint32_t most) {
    if (value >= least && value <= most) return;
    throw Error(ErrorCode::kConfig, "rank " + std::to_string(options.rank) + ": " + name + " is " +
                                        std::to_string(value) + "; it is " + std::to_string(least) + " to " +
                                        std::to_string(most));
  };
  check("max_operations", options.max_operations, 1, kMaxOperationsLimit);
  check("max_tags", options.max_tags, 1, 1U << 24);
  check("early_segments", options.early_segments, 1, 1U << 22);
  check("early_transfers", options.early_transfers, 1, 1U << 22);
}

}  // namespace

// ---- opening -------------------------------------------------------------------------------------------------------

void EventLoop::open_datapath() {
  OpenedDatapath opened = mlt::engine::open_datapath(options_);
  network_ = opened.network;
  shared_ = opened.shared;
  datapath_ = std::move(opened.outer);

  const io::Capabilities& capabilities = datapath_->capabilities();
  transmit_capabilities_.max_run_segments = capabilities.max_run_segments;
  transmit_capabilities_.max_run_bytes = capabilities.max_run_bytes;
  transmit_capabilities_.room_context = datapath_.get();
  if (shared_ != nullptr) {
    transmit_capabilities_.has_room_for = [](void* datapath, std::uint16_t peer) {
      return static_cast<io::Datapath*>(datapath)->has_room_for(peer);
    };
  }
  core::EndpointConfig config;
  config.rank = options_.rank;
  config.peers = options_.ranks;
  config.operation_timeout_ns = options_.operation_timeout_ns;
  config.dscp = dscp_map(options_);
  check_limits(options_);
  config.max_sends = config.max_receives = options_.max_operations + kSpareOperations;
  config.max_tags = options_.max_tags;
  // Per operation, as many words as the segments of an 11 MB tensor at 1,432 bytes need.
  config.bitmap_words = std::bit_ceil(options_.max_operations + kSpareOperations) * 128;
  config.early_segments = options_.early_segments;
  config.early_transfers = options_.early_transfers;
  config.paths = network_->paths();
  if (shared_ != nullptr) config.max_segment_bytes = kShmSegmentBytes;
  config.timely.line_rate_bytes_per_second = line_rate_bits_per_second(options_, *network_) / 8;
  config.timely.packet_bytes = choose_segment_bytes(options_, capabilities) + MLT_DATA_HEADER_BYTES;
  config.timely.run_bytes = capabilities.max_run_bytes;
  // RECOVERY R1.2.3: Where the kernel moves the data, both offsets are 50 us longer, for its copying.
  config.timely.low_offset_ns += kKernelRunNs;
  config.timely.high_offset_ns += kKernelRunNs;
  endpoint_ = std::make_unique<core::Endpoint>(config);
  path_mtu_errors_ = std::make_unique<PathMtuErrors>(options_.rank, options_.ranks, peers_, *endpoint_, *network_);
}

void EventLoop::open_control_channel() {
  const io::Capabilities& capabilities = datapath_->capabilities();
  io::ControlOptions control;
  control.version = MLT_PROTOCOL_VERSION;
  control.rank = options_.rank;
  control.world_size = options_.ranks;
  control.job_id = options_.job;
  control.secret = options_.secret;
  control.listen = *io::SocketAddress::from_host(options_.host, options_.control_port);
  require_secret(control.listen, "listen on");
  control.dead_after_ns = options_.peer_timeout_ns;
  // PROTOCOL 3.5.4: The connecting side MUST close a connection that is not up 5 s after it opened it, or 100 ms for
  //     each rank of the job if that is longer, but 60 s at most.
  control.hello_timeout_ns = io::hello_timeout_of(options_.ranks);
  control.dscp = endpoint_->config().dscp.control;
  // PROTOCOL 3.6.1: The period MUST be 500 ms, or a quarter of the limit of 3.6.2 if that is shorter.
  control.heartbeat_ns = std::min(control.heartbeat_ns, options_.peer_timeout_ns / 4);
  // PROTOCOL 3.2.4: A rank MUST draw its incarnation and one cookie per peer from the system's random source when it
  //     starts.
  control.incarnation = random_u64();
  if (shared_ != nullptr) local_peers_.emplace(options_, control.incarnation, *shared_);
  control.paths = hello_paths(options_, *network_);
  own_segment_bytes_ = choose_segment_bytes(options_, capabilities);
  control.segment_bytes = own_segment_bytes_;
  // The packets that all peers send at once must fit the socket buffer, in which a small packet takes more than its
  // bytes.
  const std::uint32_t senders = std::clamp<std::uint32_t>(options_.ranks - 1U, 1, 8);
  // PROTOCOL 3.2.8: A rank SHOULD offer as window a third of its socket's receive buffer (with several paths, of the
  //     smallest: the others may fail) divided by the number of ranks that may send at once (at most 8 are counted),
  //     and 16 segments at least.
  own_window_bytes_ = std::max(capabilities.receive_buffer_bytes / 3 / senders, 16 * control.segment_bytes);
  control.window_bytes = own_window_bytes_;
  control.early_segments = endpoint_->config().early_segments_per_peer();
  control.early_transfers = endpoint_->config().early_transfers_per_peer();
  control.cookies.resize(options_.ranks);
  for (std::uint16_t peer = 0; peer < options_.ranks; ++peer) {
    // PROTOCOL 3.2.5: The low 16 bits of a cookie MUST be the rank that uses it, and the other 48 MUST be random.
    control.cookies[peer] = (random_u64() & ~std::uint64_t{MLT_COOKIE_RANK_MASK}) | peer;
    endpoint_->set_issued_cookie(control.cookies[peer]);
  }
  local_cookies_ = control.cookies;
  io::OsError error;
  channel_ = io::ControlChannel::open(control, error);
  if (!channel_) throw_os_error(error, options_.rank);
}

// ---- connecting ----------------------------------------------------------------------------------------------------

void EventLoop::connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns) {
  // The channel stops at the deadline and reports the cause; this thread waits slightly longer to receive it.
  const auto until = deadline_after(timeout_ns < 0 ? timeout_ns : timeout_ns + kConnectGraceNs);
  const TimeNs now = io::monotonic_now();
  std::vector<io::SocketAddress> addresses;
  for (const PeerAddress& peer : peers) {
    if (peer.rank >= options_.ranks || peer.rank == options_.rank) {
      throw Error(ErrorCode::kConfig, "connect: rank " + std::to_string(peer.rank) + " is not a peer of rank " +
                                          std::to_string(options_.rank));
    }
    io::OsError error;
    const auto address = io::SocketAddress::resolve(peer.host, peer.control_port, error);
    if (!address) throw_os_error(error, options_.rank);
    require_secret(*address, "connect to rank " + std::to_string(peer.rank) + " at");
    addresses.push_back(*address);
  }
  {
    const std::lock_guard lock(thread_mutex_);
    if (stopping_) {
      throw Error(ErrorCode::kClosed, "rank " + std::to_string(options_.rank) + ": the context was closed");
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const std::uint16_t rank = peers[i].rank;
      // The higher rank connects to the lower, which listens. The channel names ranks that are not up by the deadline.
      const TimeNs deadline = timeout_ns < 0 ? base::kNever : base::after(now, timeout_ns);
      io::OsError error;
      const bool known = rank < options_.rank ? channel_->connect_to(now, rank, addresses[i], deadline, error)
                                              : channel_->expect(now, rank, deadline, error);
      if (!known) throw_os_error(error, options_.rank);
    }
    thread_ = std::thread([this] { run(); });
    started_ = true;
  }
  peers_.wait_connected(peers, until, timeout_ns);
}

// Whether the peer shares memory with this rank; if so, updates `up`. False: the connection failed.
bool EventLoop::join_local_peer(const io::Hello& hello, core::PeerUp& up) {
  if (!local_peers_) return true;
  std::string why;
  const auto segment_bytes = local_peers_->join(hello, up.local_cookie, up.segment_bytes, why);
  if (!segment_bytes) {
    channel_->give_up(hello.rank, why);
    return false;
  }
  if (*segment_bytes == 0) return true;
  up.segment_bytes = *segment_bytes;
  // PROTOCOL 23.3.2: The window, in each direction, MUST be 16 MiB, whatever the hellos say: the ring is what limits.
  up.window_bytes = up.own_window_bytes = kShmWindowBytes;
  up.holds_back = true;
  return true;
}

void EventLoop::on_peer_up(const io::PeerHello& peer) {
  const io::Hello& hello = peer.hello;
  io::OsError error;
  if (!network_->set_peer_paths(hello.rank, peer.udp_addresses, error)) {
    return on_peer_down(hello.rank, io::PeerDownCause::kRefused, error.text);
  }
  core::PeerUp up;
  up.peer = hello.rank;
  up.local_cookie = local_cookies_[hello.rank];
  up.remote_cookie = hello.cookie;
  // PROTOCOL 3.2.6: The segment bytes of a pair MUST be the smaller of the two values offered, rounded down to a
  //     multiple of 8.
  up.segment_bytes = std::min(hello.segment_bytes, own_segment_bytes_) / 8 * 8;
  up.window_bytes = hello.window_bytes;
  up.own_window_bytes = own_window_bytes_;
  up.early_segments = hello.early_segments;
  up.early_transfers = hello.early_transfers;
  // PROTOCOL 3.2.9: An endpoint MUST treat a peer as down if its hello leaves no segment bytes, or if its cookie names
  //     another rank.
  if (up.segment_bytes == 0 || wire::cookie_rank(up.remote_cookie) != options_.rank) {
    return on_peer_down(hello.rank, io::PeerDownCause::kMalformed,
                        "rank " + std::to_string(hello.rank) + " sent a hello with a cookie or segment size of no use");
  }
  const std::uint32_t grid_bytes = up.segment_bytes;
  if (!join_local_peer(hello, up)) return;
  endpoint_->on_control(now_, up);
  peers_.on_up(hello.rank, peer.udp_addresses, up.segment_bytes, grid_bytes);
}

void EventLoop::on_refused(const io::SocketAddress&, const std::string& text) { peers_.on_client_rejected(text); }

void EventLoop::on_peer_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text) {
  peers_.on_down(peer, cause, text);
  endpoint_->on_control(now_, core::PeerDown{peer});
  if (shared_ != nullptr) shared_->remove_peer(peer);
  collectives_->on_peer_down(now_, peer);
}

}  // namespace mlt::engine
