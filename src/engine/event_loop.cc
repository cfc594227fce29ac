#include "engine/event_loop.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "engine/words.h"
#include "io/clock.h"
#include "io/fault_datapath.h"
#include "io/interface.h"

namespace mlt::engine {

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// Message types on the control connection.
constexpr std::uint8_t kBackstopMessage = io::kFirstMessageType;        // a control datagram's bytes
constexpr std::uint8_t kCollectiveMessage = io::kFirstMessageType + 1;  // collective/messages.h

// Runs handled before the loop looks at the other side again: enough to amortise the calls, short enough that an ACK
// never waits for more than a few of them.
constexpr std::size_t kReceiveBudget = 16;
constexpr std::size_t kTransmitBudget = 16;
// Messages that reach a service before serve() was called; workers register before they push, so a few each.
constexpr std::size_t kMaxEarlyMessages = 65'536;
// A kernel that takes no datagram for this long has lost its interface: the run counts as lost.
constexpr int kSendWaitMs = 20;
// The paper's thresholds are for a stack in user space. The kernel copies a run out and in on the way, and a first
// sample of one small packet has not paid for that: without this allowance our own copying reads as a queue.
constexpr base::DurationNs kKernelRunNs = 50 * base::kMicrosecond;
constexpr base::DurationNs kConnectGraceNs = 500 * base::kMillisecond;
// How long the last messages get to leave when the context is closed.
constexpr base::DurationNs kGoodbyeNs = base::kSecond;
constexpr base::DurationNs kChannelPollNs = 50 * base::kMicrosecond;
// The socket buffer to ask for: a window of 2 MB and the rest for bursts of others.
constexpr std::uint32_t kReceiveBufferBytes = 8U << 20;
// Ethernet's payload, less IPv4 and UDP headers and ours, in whole 8 bytes: used where the interface has no such limit.
constexpr std::uint32_t kEthernetSegmentBytes = (1'500 - 28 - MLT_DATA_HEADER_BYTES) / 8 * 8;
// Loopback has no speed of its own; this is more than a core can move, so only the rate control limits it.
constexpr double kNoSpeedBitsPerSecond = 100e9;

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) {
    throw Error(ErrorCode::kSystem, "getrandom() gave no random bytes for the connection's cookie");
  }
  return value;
}

std::uint32_t choose_segment_bytes(const Options& options, const io::Capabilities& capabilities) {
  const std::uint32_t room = (capabilities.max_datagram_bytes - MLT_DATA_HEADER_BYTES) / 8 * 8;
  const std::uint32_t limit = std::min(room, core::EndpointConfig{}.max_segment_bytes);
  // PROTOCOL 3.2.7: A rank SHOULD offer the segment bytes that fill its interface's MTU, less IP, UDP and 40 bytes of
  //     header, up to 8,960; on an interface whose MTU leaves room for more, such as loopback, 1,432.
  if (options.segment_bytes == 0) {
    // Jumbo frames are used where the interface has them, not on loopback, whose 64 KB would make loss coarse.
    return room > core::EndpointConfig{}.max_segment_bytes ? kEthernetSegmentBytes : limit;
  }
  if (options.segment_bytes % 8 != 0 || options.segment_bytes > limit) {
    throw Error(ErrorCode::kConfig,
                "rank " + std::to_string(options.rank) + ": segment_bytes is " + std::to_string(options.segment_bytes) +
                    ": it must be a multiple of 8 and at most " + std::to_string(limit) + " on this interface");
  }
  return options.segment_bytes;
}

bool is_data(std::span<const std::byte> first_bytes) {
  return !first_bytes.empty() && (static_cast<std::uint8_t>(first_bytes[0]) & 0x0F) == MLT_TYPE_DATA;
}

io::FaultOptions fault_options(const FaultOptions& faults, std::uint16_t rank) {
  io::FaultOptions options;
  // Every rank has faults of its own, all of them from one seed.
  options.seed = faults.seed * 0x9E3779B97F4A7C15ULL + rank;
  options.drop = faults.drop;
  options.duplicate = faults.duplicate;
  options.reorder = faults.reorder;
  options.corrupt = faults.corrupt;
  // A checksum that failed to catch it is the rare case; what this exercises is our own reading of headers.
  options.corrupt_first_bytes = MLT_DATA_HEADER_BYTES;
  if (faults.delay_ns > 0 || faults.jitter_ns > 0) {
    options.delay = 1;
    options.delay_ns = faults.delay_ns;
    options.delay_jitter_ns = faults.jitter_ns;
    options.holding_datagrams = 8'192;
  }
  options.holding_datagram_bytes = core::EndpointConfig{}.max_segment_bytes + MLT_DATA_HEADER_BYTES;
  if (!faults.control) options.eligible = &is_data;
  return options;
}

std::optional<SteadyTime> deadline_after(std::int64_t timeout_ns) {
  if (timeout_ns < 0) return std::nullopt;
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
}

}  // namespace

core::DscpMap dscp_map(const Options& options) {
  core::DscpMap map;
  map.control = options.control_dscp;
  if (options.data_dscp.empty()) return map;
  map.data_classes = static_cast<std::uint8_t>(std::min<std::size_t>(options.data_dscp.size(), core::kMaxClasses));
  // PROTOCOL 13.1.8: ... a service whose map lacks a registration's class sends the results in its last one.
  map.data.fill(options.data_dscp[map.data_classes - 1U]);
  std::copy_n(options.data_dscp.begin(), map.data_classes, map.data.begin());
  return map;
}

EventLoop::EventLoop(const Options& options) : options_(options), peers_(options.ranks) {
  open_datapath();
  open_control_channel();
}

EventLoop::~EventLoop() { stop(); }

void EventLoop::open_datapath() {
  const auto address = io::SocketAddress::from_host(options_.host, options_.udp_port);
  if (!address) {
    throw Error(ErrorCode::kConfig, "rank " + std::to_string(options_.rank) + ": host '" + options_.host +
                                        "' is not an IPv4 or IPv6 address");
  }
  io::UdpOptions udp;
  udp.socket.bind = *address;
  udp.socket.receive_buffer_bytes =
      options_.receive_buffer_bytes > 0 ? options_.receive_buffer_bytes : kReceiveBufferBytes;
  udp.socket.send_buffer_bytes = udp.socket.receive_buffer_bytes;
  udp.peer_count = options_.ranks;
  io::OsError error;
  std::unique_ptr<io::UdpDatapath> opened = io::UdpDatapath::open(udp, error);
  if (!opened) throw_os_error(error, options_.rank);
  udp_ = opened.get();
  datapath_ = std::move(opened);
  if (options_.faults.any()) {
    datapath_ = io::FaultDatapath::wrap(std::move(datapath_), fault_options(options_.faults, options_.rank), error);
    if (!datapath_) throw_os_error(error, options_.rank);
  }

  const io::Capabilities& capabilities = datapath_->capabilities();
  transmit_capabilities_.max_run_segments = capabilities.max_run_segments;
  transmit_capabilities_.max_run_bytes = capabilities.max_run_bytes;
  core::EndpointConfig config;
  config.rank = options_.rank;
  config.peers = options_.ranks;
  config.operation_timeout_ns = options_.operation_timeout_ns;
  config.dscp = dscp_map(options_);
  double bits = options_.line_rate_bits_per_second;
  if (bits <= 0) {
    const auto interface = io::find_interface(udp_->local_address(), error);
    bits = interface && interface->speed_bits_per_second > 0 ? static_cast<double>(interface->speed_bits_per_second)
                                                             : kNoSpeedBitsPerSecond;
  }
  config.timely.line_rate_bytes_per_second = bits / 8;
  config.timely.packet_bytes = choose_segment_bytes(options_, capabilities) + MLT_DATA_HEADER_BYTES;
  config.timely.run_bytes = capabilities.max_run_bytes;
  // PROTOCOL 11.2.3: Where the kernel moves the data, both offsets are 50 us longer, for its copying.
  config.timely.low_offset_ns += kKernelRunNs;
  config.timely.high_offset_ns += kKernelRunNs;
  endpoint_ = std::make_unique<core::Endpoint>(config);
}

void EventLoop::open_control_channel() {
  const io::Capabilities& capabilities = datapath_->capabilities();
  io::ControlOptions control;
  control.version = MLT_PROTOCOL_VERSION;
  control.rank = options_.rank;
  control.world_size = options_.ranks;
  control.job_id = options_.job;
  control.listen = *io::SocketAddress::from_host(options_.host, options_.control_port);
  control.dead_after_ns = options_.peer_timeout_ns;
  control.dscp = endpoint_->config().dscp.control;
  // PROTOCOL 3.6.1: The period is 500 ms, or a quarter of the limit of 3.6.2 if that is shorter.
  control.heartbeat_ns = std::min(control.heartbeat_ns, options_.peer_timeout_ns / 4);
  // PROTOCOL 3.2.4: A rank MUST draw its incarnation and one cookie per peer from the system's random source when it
  //     starts.
  control.incarnation = random_u64();
  control.udp_port = udp_->local_port();
  own_segment_bytes_ = choose_segment_bytes(options_, capabilities);
  control.segment_bytes = own_segment_bytes_;
  // What all peers send at once must fit the socket buffer, in which a small packet weighs more than its bytes.
  const std::uint32_t senders = std::clamp<std::uint32_t>(options_.ranks - 1U, 1, 8);
  // PROTOCOL 3.2.8: A rank SHOULD offer as window a third of its socket's receive buffer divided by the number of ranks
  //     that may send at once (at most 8 are counted), and 16 segments at least.
  control.window_bytes = std::max(capabilities.receive_buffer_bytes / 3 / senders, 16 * control.segment_bytes);
  control.early_segments = endpoint_->config().early_segments_per_peer();
  control.early_transfers = endpoint_->config().early_transfers_per_peer();
  control.cookies.resize(options_.ranks);
  for (std::uint16_t peer = 0; peer < options_.ranks; ++peer) {
    // PROTOCOL 3.2.5: The low 16 bits of a cookie are the rank that must use it; the other 48 are random.
    peers_[peer].local_cookie = (random_u64() & ~std::uint64_t{MLT_COOKIE_RANK_MASK}) | peer;
    control.cookies[peer] = peers_[peer].local_cookie;
  }
  io::OsError error;
  channel_ = io::ControlChannel::open(control, error);
  if (!channel_) throw_os_error(error, options_.rank);
}

std::uint16_t EventLoop::udp_port() const { return udp_->local_port(); }
std::uint16_t EventLoop::control_port() const { return channel_->listen_address().port(); }

// ---- connecting ----------------------------------------------------------------------------------------------------

void EventLoop::connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns) {
  // The channel gives up at the deadline and says why; this thread waits a little longer, to hear it.
  const auto until = deadline_after(timeout_ns < 0 ? timeout_ns : timeout_ns + kConnectGraceNs);
  const TimeNs now = io::monotonic_now();
  for (const PeerAddress& peer : peers) {
    if (peer.rank >= options_.ranks || peer.rank == options_.rank) {
      throw Error(ErrorCode::kConfig, "connect: rank " + std::to_string(peer.rank) + " is not a peer of rank " +
                                          std::to_string(options_.rank));
    }
    io::OsError error;
    const auto address = io::SocketAddress::resolve(peer.host, peer.control_port, error);
    if (!address) throw_os_error(error, options_.rank);
    // The higher rank connects to the lower, which listens. Whoever does not come up by then is named by the channel.
    const TimeNs deadline = timeout_ns < 0 ? base::kNever : base::after(now, timeout_ns);
    const bool known = peer.rank < options_.rank ? channel_->connect_to(now, peer.rank, *address, deadline, error)
                                                 : channel_->expect(now, peer.rank, deadline, error);
    if (!known) throw_os_error(error, options_.rank);
  }
  {
    const std::lock_guard lock(thread_mutex_);
    if (stopping_) {
      throw Error(ErrorCode::kClosed, "rank " + std::to_string(options_.rank) + ": the context was closed");
    }
    thread_ = std::thread([this] { run(); });
    started_ = true;
  }

  std::unique_lock lock(peers_mutex_);
  const auto settled = [&] {
    if (stopped_) return true;
    bool all = true;
    for (const PeerAddress& peer : peers) {
      const PeerState state = peers_[peer.rank].state.load();
      if (state == PeerState::kFailed || state == PeerState::kLeft) return true;
      all = all && state == PeerState::kUp;
    }
    return all;
  };
  if (until) {
    peers_changed_.wait_until(lock, *until, settled);
  } else {
    peers_changed_.wait(lock, settled);
  }
  if (stopped_) {
    throw Error(ErrorCode::kClosed,
                "rank " + std::to_string(options_.rank) + ": the context was closed while it connected");
  }
  std::string missing;
  int first_missing = -1;
  for (const PeerAddress& peer : peers) {
    const PeerState state = peers_[peer.rank].state.load();
    if (state == PeerState::kUp) continue;
    if (state != PeerState::kConnecting) {
      throw Error(peers_[peer.rank].error_code,
                  "rank " + std::to_string(options_.rank) + ": " + peers_[peer.rank].error, peer.rank);
    }
    if (first_missing < 0) first_missing = peer.rank;
    missing += (missing.empty() ? "" : ", ") + std::to_string(peer.rank) + " (" + peer.host + ":" +
               std::to_string(peer.control_port) + ")";
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kRendezvous,
                "rank " + std::to_string(options_.rank) + ": no connection with rank " + missing + " within " +
                    std::to_string(timeout_ns / base::kMillisecond) +
                    " ms: is it running, and does a firewall between the hosts let TCP and UDP through?" +
                    (last_refusal_.empty() ? "" : " Turned away meanwhile: " + last_refusal_),
                first_missing);
  }
}

void EventLoop::on_peer_up(const io::PeerHello& peer) {
  const io::Hello& hello = peer.hello;
  PeerRecord& record = peers_[hello.rank];
  io::OsError error;
  if (!udp_->set_peer(hello.rank, peer.udp_address, error)) {
    return on_peer_down(hello.rank, io::PeerDownCause::kRefused, error.text);
  }
  core::PeerUp up;
  up.peer = hello.rank;
  up.local_cookie = record.local_cookie;
  up.remote_cookie = hello.cookie;
  // PROTOCOL 3.2.6: The segment bytes of a pair are the smaller of the two values offered, rounded down to a multiple
  //     of 8.
  up.segment_bytes = std::min(hello.segment_bytes, own_segment_bytes_) / 8 * 8;
  up.window_bytes = hello.window_bytes;
  up.early_segments = hello.early_segments;
  up.early_transfers = hello.early_transfers;
  // PROTOCOL 3.2.9: A peer whose hello leaves no segment bytes, or whose cookie names another rank, MUST be treated as
  //     down.
  if (up.segment_bytes == 0 || wire::cookie_rank(up.remote_cookie) != options_.rank) {
    return on_peer_down(hello.rank, io::PeerDownCause::kMalformed,
                        "rank " + std::to_string(hello.rank) + " sent a hello with a cookie or segment size of no use");
  }
  endpoint_->on_control(now_, up);
  record.segment_bytes.store(up.segment_bytes, std::memory_order_release);
  {
    const std::lock_guard lock(peers_mutex_);
    record.state.store(PeerState::kUp, std::memory_order_release);
  }
  peers_changed_.notify_all();
}

void EventLoop::on_refused(const io::SocketAddress&, const std::string& text) {
  const std::lock_guard lock(peers_mutex_);
  last_refusal_ = text;
}

void EventLoop::on_peer_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text) {
  {
    const std::lock_guard lock(peers_mutex_);
    PeerRecord& record = peers_[peer];
    record.error = text;
    record.error_code = down_code(cause);
    record.state.store(cause == io::PeerDownCause::kGoodbye ? PeerState::kLeft : PeerState::kFailed,
                       std::memory_order_release);
  }
  peers_changed_.notify_all();
  endpoint_->on_control(now_, core::PeerDown{peer});
  end_deferred(now_, [&](const auto& deferred) -> std::optional<core::CompletionStatus> {
    if (deferred.request.peer != peer) return std::nullopt;
    return core::CompletionStatus::kPeerFailed;
  });
  if (push_pull_) push_pull_->on_peer_down(now_, peer);
  if (summation_) summation_->on_peer_down(now_, peer);
}

std::string EventLoop::peer_error(std::uint16_t peer) {
  const std::lock_guard lock(peers_mutex_);
  return peers_[peer].error;
}

bool EventLoop::wait_ranks_gone(std::uint16_t first, std::uint16_t count, std::int64_t timeout_ns) {
  std::unique_lock lock(peers_mutex_);
  const auto gone = [&] {
    if (stopped_) return true;
    for (std::uint16_t rank = first; rank < first + count; ++rank) {
      const PeerState state = peers_[rank].state.load();
      if (state == PeerState::kUp || state == PeerState::kConnecting) return false;
    }
    return true;
  };
  const auto until = deadline_after(timeout_ns);
  if (until) return peers_changed_.wait_until(lock, *until, gone);
  peers_changed_.wait(lock, gone);
  return true;
}

// ---- the loop ------------------------------------------------------------------------------------------------------

void EventLoop::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    now_ = io::monotonic_now();
    ++loops_;
    if (step(now_)) {
      idle_since_ = now_;
      continue;
    }
    if (now_ - idle_since_ < static_cast<TimeNs>(options_.spin_us) * base::kMicrosecond) continue;
    const TimeNs collectives = push_pull_ ? push_pull_->next_timeout() : base::kNever;
    sleep_until(std::min({endpoint_->next_timeout(), channel_->next_timeout(), datapath_->next_timeout(), collectives,
                          deferred_expires_ns_}));
  }
  say_goodbye();
  snapshot_counters();
  // PROTOCOL 10.1.3: Operations that are still under way then end as cancelled here, and as peer failed at the other
  //     side.
  operations_.finish_all([&](OperationId id, const Operation& operation) {
    Completion done;
    done.operation = id;
    done.is_send = operation.is_send;
    done.peer = operation.peer;
    done.tag = operation.tag;
    done.total_bytes = operation.total_bytes;
    done.status = Status::kCancelled;
    done.error =
        "rank " + std::to_string(options_.rank) + ": " + operation.what + " was under way when the context was closed";
    return done;
  });
  push_pulls_.finish_all([&](OperationId id, const Operation& operation) {
    PushPullResult done;
    done.operation = id;
    done.key = operation.tag;
    done.total_bytes = operation.total_bytes;
    done.status = Status::kCancelled;
    done.error =
        "rank " + std::to_string(options_.rank) + ": " + operation.what + " was under way when the context was closed";
    return done;
  });
  {
    const std::lock_guard lock(peers_mutex_);
    stopped_ = true;
  }
  peers_changed_.notify_all();
}

// One turn; true if anything was done.
bool EventLoop::step(TimeNs now) {
  bool busy = commands_.run(now);
  busy |= datapath_->receive(now, kReceiveBudget, *this) > 0;
  busy |= service_channel(now);
  if (endpoint_->next_timeout() <= now) {
    endpoint_->on_timeout(now);
    busy = true;
  }
  if (push_pull_ && push_pull_->next_timeout() <= now) {
    push_pull_->on_timeout(now);
    busy = true;
  }
  if (deferred_expires_ns_ <= now) {
    expire_deferred(now);
    busy = true;
  }
  busy |= drain_completions(now);
  busy |= transmit();
  send_backstop();
  busy |= drain_completions(now);
  return busy;
}

// A message that can't be queued is lost like a datagram: the peer is failing, and the channel says so by itself.
void EventLoop::send_backstop() {
  // PROTOCOL 9.1.5: A backstop message that the connection does not take is lost like a datagram: that peer is failing.
  while (endpoint_->poll_control(now_, control_output_)) {
    channel_->send(control_output_.peer, kBackstopMessage, {control_output_.bytes, control_output_.size});
  }
}

// The control connections are quiet most of the time: they are looked at when they are readable or due, and that is
// asked no more often than every kChannelPollNs while data flows.
bool EventLoop::service_channel(TimeNs now) {
  if (now < channel_->next_timeout()) {
    if (now - channel_polled_ns_ < kChannelPollNs) return false;
    channel_polled_ns_ = now;
    pollfd readable{channel_->poll_fd(), POLLIN, 0};
    if (::poll(&readable, 1, 0) <= 0) return false;
  }
  channel_->service(now, *this);
  return true;
}

bool EventLoop::transmit() {
  bool any = false;
  for (std::size_t i = 0; i < kTransmitBudget; ++i) {
    // Each run carries the time it leaves at: the round trip is measured from there.
    const TimeNs now = io::monotonic_now();
    if (!endpoint_->poll_transmit(now, transmit_capabilities_, transmit_)) break;
    any = true;
    // PROTOCOL 18.1.4: A run that the system refuses to send is lost like any datagram, and the reason is named if its
    //     transfer then fails.
    if (!send_run(transmit_)) ++send_failures_;
  }
  return any;
}

// The run's slices point into tensors, so it leaves before anything can complete. False: it is lost, like any datagram.
bool EventLoop::send_run(const core::Transmit& run) {
  for (int waited_ms = 0; waited_ms < kSendWaitMs; ++waited_ms) {
    const io::SendStatus status = datapath_->send(io::monotonic_now(), run);
    if (status == io::SendStatus::kSent) return true;
    if (status != io::SendStatus::kWouldBlock) {
      if (status == io::SendStatus::kFailed) peers_[run.peer].send_error = datapath_->last_error();
      return false;
    }
    pollfd writable{datapath_->readable_fd(), POLLOUT, 0};
    ::poll(&writable, 1, 1);
  }
  return false;
}

void EventLoop::on_run(const base::ReceivedRun& run) {
  for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
    const std::size_t size = std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at);
    endpoint_->on_datagram(now_, run.bytes.subspan(at, size), run.ecn, run.arrival_ns);
  }
}

void EventLoop::sleep_until(TimeNs at) {
  if (!commands_.about_to_sleep()) return;
  if (stopping_.load(std::memory_order_acquire)) return commands_.awake();
  pollfd fds[3] = {
      {datapath_->readable_fd(), POLLIN, 0}, {channel_->poll_fd(), POLLIN, 0}, {commands_.wake_fd(), POLLIN, 0}};
  timespec timeout{};
  timespec* limit = nullptr;
  if (at != base::kNever) {
    const TimeNs wait = std::max<TimeNs>(0, at - io::monotonic_now());
    timeout.tv_sec = wait / base::kSecond;
    timeout.tv_nsec = wait % base::kSecond;
    limit = &timeout;
  }
  ++sleeps_;
  ::ppoll(fds, 3, limit, nullptr);
  commands_.awake();
}

void EventLoop::stop() {
  // The queue closes first: what it took runs before the goodbye, what comes later is refused. Every caller waits for
  // the thread's end, for each of them may free the buffers next.
  commands_.close();
  const std::lock_guard lock(thread_mutex_);
  stopping_ = true;
  commands_.wake();
  if (thread_.joinable()) thread_.join();
}

// How the last receives ended goes out before the goodbye, in order, on the same connection.
void EventLoop::say_goodbye() {
  now_ = io::monotonic_now();
  commands_.run(now_);
  endpoint_->on_control(now_, core::Closing{});
  send_backstop();
  // PROTOCOL 10.1.2: Goodbye follows these on the same connection, which keeps the order ...
  channel_->say_goodbye();
  const TimeNs until = now_ + kGoodbyeNs;
  while (!channel_->finished() && now_ < until) {
    pollfd ready{channel_->poll_fd(), POLLIN, 0};
    ::poll(&ready, 1, 10);
    now_ = io::monotonic_now();
    channel_->service(now_, *this);
  }
}

// ---- completions ---------------------------------------------------------------------------------------------------

bool EventLoop::drain_completions(TimeNs now) {
  bool any = false;
  while (endpoint_->poll_completion(completion_)) {
    any = true;
    const core::OperationId operation = completion_.operation;
    if (operation == kEndedOperation) continue;
    if (!collective::is_machine_operation(operation)) {
      finish_user(completion_);
    } else if (collective::machine_of(operation) == collective::MachineId::kPushPull) {
      push_pull_->on_completion(now, completion_);
    } else {
      summation_->on_completion(now, completion_);
    }
  }
  if (any) {
    retry_deferred(now);
    if (summation_) summation_->retry(now);
    if (push_pull_) push_pull_->retry(now);
  }
  finish_push_pulls();
  return any;
}

void EventLoop::finish_user(const core::Completion& completion) {
  Completion done;
  done.operation = completion.operation;
  done.is_send = completion.kind == core::CompletionKind::kSend;
  done.status = static_cast<Status>(completion.status);
  done.peer = completion.peer;
  done.tag = completion.tag;
  done.total_bytes = completion.total_bytes;
  done.missing_bytes = completion.missing_bytes;
  done.allowed_missing_bytes = completion.allowed_missing_bytes;
  done.repaired_segments = completion.repaired_segments;
  done.elapsed_ns = completion.elapsed_ns;
  for (std::uint32_t i = 0; i < completion.segment_count && !completion.received_bitmap.empty(); ++i) {
    if (((completion.received_bitmap[i / 64] >> (i % 64)) & 1U) != 0) continue;
    const std::uint64_t offset = std::uint64_t{i} * completion.segment_bytes;
    const std::uint64_t length = std::min<std::uint64_t>(completion.segment_bytes, done.total_bytes - offset);
    if (!done.missing.empty() && done.missing.back().offset_bytes + done.missing.back().length_bytes == offset) {
      done.missing.back().length_bytes += length;
    } else {
      done.missing.push_back({offset, length});
    }
  }
  if (core::is_failure(completion.status)) {
    done.error =
        failure_text(options_.rank, operations_.what(completion.operation), completion, peer_error(completion.peer));
    const std::string& cause = peers_[completion.peer].send_error;
    if (!cause.empty() && (completion.status == core::CompletionStatus::kTimedOut ||
                           completion.status == core::CompletionStatus::kPeerFailed)) {
      done.error += " (the last datagram to it that the system refused: " + cause + ")";
    }
  }
  operations_.finish(std::move(done));
}

void EventLoop::finish_refused(OperationId operation, bool is_send, std::uint16_t peer, std::uint64_t tag,
                               core::PostStatus status) {
  Completion done;
  done.operation = operation;
  done.is_send = is_send;
  done.peer = peer;
  done.tag = tag;
  done.status = status == core::PostStatus::kPeerNotConnected ? Status::kPeerFailed : Status::kCancelled;
  done.error = "rank " + std::to_string(options_.rank) + ": " + operations_.what(operation) +
               " was refused: " + refusal_text(status, peer_error(peer));
  operations_.finish(std::move(done));
}

bool EventLoop::try_post(TimeNs now, const core::SendRequest& request) {
  const core::PostStatus status = endpoint_->post_send(now, request);
  if (status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps) return false;
  const bool refused = status != core::PostStatus::kPosted && request.operation != kEndedOperation;
  if (refused) finish_refused(request.operation, true, request.peer, request.tag, status);
  return true;
}

bool EventLoop::try_post(TimeNs now, const core::ReceiveRequest& request) {
  const core::PostStatus status = endpoint_->post_recv(now, request);
  if (status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps) return false;
  const bool refused = status != core::PostStatus::kPosted && request.operation != kEndedOperation;
  if (refused) finish_refused(request.operation, false, request.peer, request.tag, status);
  return true;
}

// Sends stay in order, and receives do: behind one that waits for room, all of its kind wait.
template <typename Request>
void EventLoop::post_or_defer(TimeNs now, DeferredQueue<Request>& queue, const Request& request) {
  // To a peer that is gone there is nothing to wait for: the endpoint refuses it.
  if ((queue.empty() || peer_state(request.peer) != PeerState::kUp) && try_post(now, request)) return;
  const base::DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : options_.operation_timeout_ns;
  queue.push_back({request, now, base::after(now, timeout)});
  deferred_expires_ns_ = std::min(deferred_expires_ns_, queue.back().expires_ns);
}

void EventLoop::post(TimeNs now, const core::SendRequest& request) { post_or_defer(now, deferred_sends_, request); }
void EventLoop::post(TimeNs now, const core::ReceiveRequest& request) {
  post_or_defer(now, deferred_receives_, request);
}

// Of an operation that ended while it waited: the application has its memory back, so nothing of it may be touched.
void EventLoop::forget_memory(core::SendRequest& request) {
  request.operation = kEndedOperation;
  request.tags = {};  // nothing is sent: it is cancelled before the next poll
}
void EventLoop::forget_memory(core::ReceiveRequest& request) {
  request.operation = kEndedOperation;
  request.place = [](void*, std::uint64_t, std::span<const std::byte>) {};
}

template <typename Request>
void EventLoop::retry_queue(TimeNs now, DeferredQueue<Request>& queue) {
  while (!queue.empty()) {
    Request request = queue.front().request;
    const bool ended = queue.front().ended;
    request.timeout_ns = std::max<base::DurationNs>(1, queue.front().expires_ns - now);
    if (ended) forget_memory(request);
    if (!try_post(now, request)) return;
    constexpr bool kIsSend = std::is_same_v<Request, core::SendRequest>;
    const auto kind = kIsSend ? core::CompletionKind::kSend : core::CompletionKind::kReceive;
    if (ended) endpoint_->on_control(now, core::Cancel{kEndedOperation, kind});
    queue.pop_front();
  }
}

void EventLoop::retry_deferred(TimeNs now) {
  retry_queue(now, deferred_sends_);
  retry_queue(now, deferred_receives_);
}

template <typename StatusOf>
void EventLoop::end_deferred(TimeNs now, StatusOf&& status_of) {
  TimeNs expires_ns = base::kNever;
  const auto scan = [&](auto& queue, core::CompletionKind kind) {
    for (auto& deferred : queue) {
      const std::optional<core::CompletionStatus> status = status_of(deferred);
      if (!status) {
        if (!deferred.ended) expires_ns = std::min(expires_ns, deferred.expires_ns);
        continue;
      }
      // Its place in the order of its tag stays taken, or the next of its tag would meet the wrong one of the peer's:
      // retry_queue() posts it and gives it up. To a peer that is gone there is no order any more.
      deferred.dropped = *status == core::CompletionStatus::kPeerFailed;
      if (std::exchange(deferred.ended, true)) continue;
      core::Completion done;
      done.operation = deferred.request.operation;
      done.kind = kind;
      done.status = *status;
      done.peer = deferred.request.peer;
      done.tag = deferred.request.tag;
      done.total_bytes = deferred.request.data.size();
      done.elapsed_ns = now - deferred.posted_ns;
      finish_user(done);
    }
    std::erase_if(queue, [](const auto& deferred) { return deferred.dropped; });
  };
  scan(deferred_sends_, core::CompletionKind::kSend);
  scan(deferred_receives_, core::CompletionKind::kReceive);
  deferred_expires_ns_ = expires_ns;
}

void EventLoop::expire_deferred(TimeNs now) {
  end_deferred(now, [&](const auto& deferred) -> std::optional<core::CompletionStatus> {
    if (deferred.expires_ns > now) return std::nullopt;
    return core::CompletionStatus::kTimedOut;
  });
}

void EventLoop::cancel_user(TimeNs now, OperationId operation) {
  end_deferred(now, [&](const auto& deferred) -> std::optional<core::CompletionStatus> {
    if (deferred.request.operation != operation) return std::nullopt;
    return core::CompletionStatus::kCancelled;
  });
  endpoint_->on_control(now, core::Cancel{operation, core::CompletionKind::kSend});
  endpoint_->on_control(now, core::Cancel{operation, core::CompletionKind::kReceive});
}

// ---- collectives ---------------------------------------------------------------------------------------------------

void EventLoop::use_services(std::vector<std::uint16_t> services) {
  collective::Verbs& verbs = *this;
  push_pull_ = std::make_unique<collective::PushPull>(std::move(services), verbs, options_.operation_timeout_ns);
}

void EventLoop::serve(TimeNs now, std::uint16_t workers) {
  collective::SummationConfig config;
  config.workers = workers;
  collective::Verbs& verbs = *this;
  summation_ = std::make_unique<collective::Summation>(config, verbs);
  // A worker that was gone before this will say nothing more: the others must hear it from us.
  for (std::uint16_t worker = 0; worker < workers; ++worker) {
    const PeerState state = peers_[worker].state.load(std::memory_order_acquire);
    if (state == PeerState::kLeft || state == PeerState::kFailed) summation_->on_peer_down(now, worker);
  }
  for (const auto& [from, bytes] : early_messages_) {
    if (const auto message = collective::decode(bytes)) summation_->on_message(now, from, *message);
  }
  early_messages_.clear();
}

void EventLoop::start_push_pull(TimeNs now, const collective::PushPullRequest& request) {
  push_pull_->start(now, request);
  finish_push_pulls();
}

void EventLoop::finish_push_pulls() {
  collective::PushPullDone done;
  while (push_pull_ && push_pull_->poll_done(done)) {
    PushPullResult result;
    result.operation = done.operation;
    result.key = done.key;
    result.total_bytes = done.total_bytes;
    result.missing_bytes = done.missing_bytes;
    result.repaired_segments = done.repaired_segments;
    result.elapsed_ns = done.elapsed_ns;
    result.status = static_cast<Status>(done.status);
    result.failed_peer = done.failed_peer;
    if (!done.error.empty()) {
      result.error =
          "rank " + std::to_string(options_.rank) + ": " + push_pulls_.what(done.operation) + " failed: " + done.error;
      if (done.failed_peer >= 0 && done.failed_peer < options_.ranks) {
        const std::string cause = peer_error(static_cast<std::uint16_t>(done.failed_peer));
        if (!cause.empty()) result.error += " (" + cause + ")";
      }
    }
    push_pulls_.finish(std::move(result));
  }
}

void EventLoop::on_message(std::uint16_t from, std::uint8_t type, std::span<const std::byte> bytes) {
  if (type == kBackstopMessage) {
    endpoint_->on_control(now_, core::PeerMessage{from, bytes});
    return;
  }
  // PROTOCOL 3.1.7: Messages of types 18 and above are ignored: a later version may define them.
  if (type != kCollectiveMessage) return;
  const auto message = collective::decode(bytes);
  if (!message) return;
  if (!std::holds_alternative<collective::Register>(*message)) {
    if (push_pull_) push_pull_->on_message(now_, from, *message);
  } else if (summation_) {
    summation_->on_message(now_, from, *message);
  } else if (early_messages_.size() < kMaxEarlyMessages) {
    early_messages_.emplace_back(from, std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
}

core::PostStatus EventLoop::post_send(TimeNs now, const core::SendRequest& request) {
  return endpoint_->post_send(now, request);
}
core::PostStatus EventLoop::post_recv(TimeNs now, const core::ReceiveRequest& request) {
  return endpoint_->post_recv(now, request);
}
void EventLoop::cancel(TimeNs now, OperationId operation, core::CompletionKind kind) {
  endpoint_->on_control(now, core::Cancel{operation, kind});
}
bool EventLoop::send_message(std::uint16_t peer, std::span<const std::byte> bytes) {
  return channel_->send(peer, kCollectiveMessage, bytes) == io::ControlSendStatus::kQueued;
}

// ---- questions -----------------------------------------------------------------------------------------------------

void EventLoop::snapshot_counters() {
  std::vector<CounterValue> values;
  for (std::size_t i = 0; i < core::kCounterNames.size(); ++i) {
    values.push_back({core::kCounterNames[i], endpoint_->counters().values()[i]});
  }
  const auto add = [&](std::span<const io::NamedCounter> counters) {
    for (const io::NamedCounter& counter : counters) values.push_back({std::string(counter.name), counter.value});
  };
  add(udp_->counters());
  if (datapath_.get() != udp_) add(datapath_->counters());
  values.push_back({"engine_send_failures", send_failures_});
  values.push_back({"engine_loops", loops_});
  values.push_back({"engine_sleeps", sleeps_});
  if (summation_) values.push_back({"summation_rounds", summation_->rounds_summed()});
  const std::lock_guard lock(peers_mutex_);
  snapshot_ = std::move(values);
}

std::vector<CounterValue> EventLoop::counters() {
  // The counters are the I/O thread's: it takes the snapshot, and this thread waits for it.
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  const bool queued = started_ && run_command([&](TimeNs) {
                        snapshot_counters();
                        const std::lock_guard lock(mutex);
                        done = true;
                        ready.notify_all();
                      });
  if (queued) {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return done; });
  }
  const std::lock_guard lock(peers_mutex_);
  return snapshot_;
}

double EventLoop::rate_bytes_per_second(std::uint16_t peer) {
  std::mutex mutex;
  std::condition_variable ready;
  double rate = -1;
  if (!started_ || !run_command([&](TimeNs) {
        const std::lock_guard lock(mutex);
        rate = endpoint_->rate_bytes_per_second(peer);
        ready.notify_all();
      })) {
    return 0;
  }
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return rate >= 0; });
  return rate;
}

}  // namespace mlt::engine
