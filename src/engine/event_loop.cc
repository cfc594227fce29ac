#include "engine/event_loop.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/stream_copy.h"
#include "engine/control_opening.h"
#include "engine/endpoint_config.h"
#include "engine/error_text.h"

namespace mlt::engine {

namespace {

// Batches handled before the loop switches between receiving and sending: enough to amortise the calls, few enough that
// an ACK never waits for long.
constexpr std::size_t kReceiveBudget = 16;
constexpr std::size_t kTransmitBudget = 16;
// Time in which a turn continues to read before a timer that is due: the reply that it waits for may have arrived.
constexpr base::DurationNs kReadFirstNs = 500 * base::kMicrosecond;
// Batches sent on the thread of a post: the caller has other work.
constexpr std::size_t kPostBudget = 4;
// Short posts whose packets may wait for each other, beside so many operations in progress, and for how long.
constexpr std::size_t kMaxPostsWaiting = 63;
constexpr std::uint32_t kManyOperations = 64;
constexpr base::DurationNs kPostsWaitNs = 200 * base::kMicrosecond;
constexpr base::DurationNs kQuietNs = base::kMillisecond;
// Between two batches to a slow port a thread sleeps until the next may leave, and reads then what has arrived: one
// wake-up instead of one for each packet that arrives, or of polling. Peers wait so much longer for replies: not where
// a turn reads more than these bytes, so that the window of a fast peer does not become full meanwhile.
constexpr base::DurationNs kMinPauseNs = 20 * base::kMicrosecond;
constexpr base::DurationNs kMaxPauseNs = 250 * base::kMicrosecond;
constexpr std::uint64_t kMaxPausedBytes = 32U << 10;
constexpr base::DurationNs kConnectGraceNs = 500 * base::kMillisecond;

std::unique_ptr<LocalPeers> open_local_peers(const Options& options, std::uint64_t incarnation,
                                             const OpenedDatapath& datapath) {
  if (datapath.shared == nullptr) return nullptr;
  return std::make_unique<LocalPeers>(options, incarnation, *datapath.shared);
}

}  // namespace

EventLoop::EventLoop(const Options& options)
    : options_(options),
      datapath_(open_datapath(options_)),
      endpoint_(endpoint_config(options_, datapath_)),
      peers_(options_.rank, options_.ranks, options_.connects_on_use),
      partner_cache_(options_.rank),
      path_mtu_errors_(options_.rank, options_.ranks, peers_, endpoint_, *datapath_.network),
      transmitter_(options_.ranks, endpoint_, datapath_, path_mtu_errors_),
      path_report_(endpoint_, datapath_),
      hello_(options_.rank, options_.ranks, choose_segment_bytes(options_, datapath_.outer->capabilities()),
             datapath_.outer->capabilities().receive_buffer_bytes),
      local_peers_(open_local_peers(options_, hello_.incarnation(), datapath_)),
      channel_(open_control_channel(options_, endpoint_.config(), hello_, hello_paths(options_, *datapath_.network))),
      control_port_(channel_->listen_address().port()),
      receive_buffer_bytes_(datapath_.outer->capabilities().receive_buffer_bytes),
      control_service_(endpoint_, *channel_),
      collectives_(options_, endpoint_, *channel_, peers_, path_mtu_errors_, operations_),
      user_operations_(options_, endpoint_, operations_, peers_, path_mtu_errors_, transmitter_,
                       [this](std::uint16_t peer, std::span<const std::byte> bytes) {
                         channel_->send(peer, kChecksumMessage, bytes);
                       }),
      path_checks_(options_.rank, static_cast<std::uint32_t>(hello_.incarnation()), endpoint_, datapath_, *channel_,
                   peers_, options_.peer_timeout_ns),
      failure_reasons_(options_.ranks) {
  for (const std::uint64_t cookie : hello_.cookies()) endpoint_.set_issued_cookie(cookie);
}

EventLoop::~EventLoop() { stop(); }

// ---- start and end -------------------------------------------------------------------------------------------------

void EventLoop::connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns) {
  // The channel stops at the deadline and reports the cause; this thread waits slightly longer to receive it.
  const auto until = deadline_after(timeout_ns < 0 ? timeout_ns : base::after(timeout_ns, kConnectGraceNs));
  start_connect(peers, timeout_ns);
  if (options_.connects_on_use) return;
  peers_.wait_connected(peers, until, timeout_ns);
}

void EventLoop::start_connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns) {
  const TimeNs now = io::monotonic_now();
  std::vector<io::SocketAddress> addresses;
  for (const PeerAddress& peer : peers) addresses.push_back(resolve_peer(options_, peer));
  const std::lock_guard lock(thread_mutex_);
  if (stopping_) {
    throw Error(ErrorCode::kClosed, "rank " + std::to_string(options_.rank) + ": the context was closed");
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const auto same = [&](const PeerAddress& other) { return other.rank == peers[i].rank; };
    if (std::ranges::any_of(named_, same) || std::ranges::any_of(peers.first(i), same)) {
      throw Error(ErrorCode::kConfig, "connect: rank " + std::to_string(options_.rank) + " was given rank " +
                                          std::to_string(peers[i].rank) + " before: give each peer once");
    }
  }
  named_.insert(named_.end(), peers.begin(), peers.end());
  std::optional<io::OsError> failed;
  const auto name_all = [&] { failed = name_peers(now, peers, addresses, timeout_ns); };
  if (started_) {
    run_and_wait(name_all);
  } else {
    name_all();
  }
  if (failed) throw_os_error(*failed, options_.rank);
  if (started_) return;
  thread_ = std::thread([this] { run(); });
  started_ = true;
}

// Returns the error of a peer that cannot be one.
std::optional<io::OsError> EventLoop::name_peers(TimeNs now, std::span<const PeerAddress> peers,
                                                 std::span<const io::SocketAddress> addresses,
                                                 std::int64_t timeout_ns) {
  const TimeNs deadline = timeout_ns < 0 ? base::kNever : base::after(now, timeout_ns);
  std::optional<io::OsError> failed;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const std::uint16_t rank = peers[i].rank;
    io::OsError error;
    bool known = false;
    if (options_.connects_on_use) {
      known = channel_->know(rank, addresses[i], timeout_ns < 0 ? base::kNever : timeout_ns, error);
      if (known) peers_.on_named(rank);
    } else {
      // The higher rank connects to the lower, which listens. The channel names ranks that are not up by the deadline.
      known = rank < options_.rank ? channel_->connect_to(now, rank, addresses[i], deadline, error)
                                   : channel_->expect(now, rank, deadline, error);
    }
    // One that came up before it was named may be down already: test_connected() reports why.
    if (!known && peers_.state(rank) <= PeerState::kConnecting) failed = error;
  }
  // Those that a rank is not connected with share its host too.
  if (options_.connects_on_use && local_peers_) {
    const auto here = std::ranges::count_if(peers, [&](const PeerAddress& peer) { return peer.host == options_.host; });
    local_peers_->expect(static_cast<std::size_t>(here));
    driving_.set_crowded(local_peers_->are_crowd());
  }
  return failed;
}

bool EventLoop::use(std::span<const std::uint16_t> ranks) {
  if (!options_.connects_on_use) return true;
  std::vector<std::uint16_t> unused;
  std::ranges::copy_if(ranks, std::back_inserter(unused), [&](std::uint16_t rank) {
    return rank != options_.rank && peers_.state(rank) == PeerState::kUnused;
  });
  if (unused.empty()) return true;
  return run_command([this, unused = std::move(unused)](TimeNs now) {
    for (const std::uint16_t rank : unused) use(now, rank);
  });
}

void EventLoop::use(TimeNs now, std::uint16_t rank) {
  peers_.on_use(rank);
  channel_->use(now, rank);
}

bool EventLoop::use_and_wait(std::span<const std::uint16_t> ranks, std::int64_t timeout_ns) {
  if (!options_.connects_on_use) return true;
  std::vector<std::uint16_t> others;
  std::ranges::copy_if(ranks, std::back_inserter(others),
                       [&](std::uint16_t rank) { return rank != options_.rank && peers_.is_pending(rank); });
  if (others.empty()) return true;
  if (!started_ || !use(others)) return false;
  return peers_.wait_settled(others, deadline_after(timeout_ns), on_wait_);
}

bool EventLoop::test_connected() {
  const std::lock_guard lock(thread_mutex_);
  if (options_.connects_on_use) return true;
  return peers_.test_connected(named_);
}

void EventLoop::run() {
  driving_.run();
  run_commands();
  now_ = io::monotonic_now();
  const auto end = [this] {
    snapshot_counters();
    end_operations();
    peers_.close();
  };
  if (exit_.max_ns()) return control_service_.leave_at_exit(now_, exit_, end);
  control_service_.say_goodbye(now_, *this, failure_);
  end();
}

void EventLoop::end_operations() {
  base::fence_streamed();  // for receives in progress, whose memory is returned below
  // PROTOCOL 10.1.3: Operations that are still in progress MUST then end as cancelled here, and as peer failed at the
  //     other side.
  operations_.finish_all([&](const std::string& name) {
    return "rank " + std::to_string(options_.rank) + ": " + name + " was in progress when the context was closed";
  });
}

void EventLoop::stop_before_exit(base::DurationNs max_ns) {
  commands_.close();
  {
    const std::lock_guard lock(thread_mutex_);
    if (thread_.joinable()) {
      exit_.begin(max_ns);
      stopping_ = true;
      driving_.close();
      return exit_.wait_operations_ended();
    }
  }
  stop();  // it has no peers, or was stopped before
}

void EventLoop::stop(const std::string& failure) {
  // Closes the queue first: commands queued before run before the goodbye, later ones are rejected. Every caller waits
  // for the thread's end, because each of them may free its buffers next.
  commands_.close();
  const std::lock_guard lock(thread_mutex_);
  // The I/O thread waits for the status of a process that ends, and the caller may be a thread that this process ends
  // first. The operations have ended already.
  if (exit_.max_ns() && !exit_.status()) return exit_.wait_operations_ended();
  if (!stopping_) failure_ = failure;
  stopping_ = true;
  driving_.close();
  if (thread_.joinable()) {
    thread_.join();
  } else if (!started_) {  // no I/O thread ends what was posted: a collective of this rank alone
    end_operations();
    peers_.close();
  }
  // Frees ports, and AF_XDP's resources of the interface, for the next context of this process.
  channel_.reset();
  local_peers_.reset();
  datapath_ = {};
}

// ---- a turn --------------------------------------------------------------------------------------------------------

bool EventLoop::run_commands() {
  return commands_.run([this] { return now_ = io::monotonic_now(); });
}

bool EventLoop::step(bool is_channel_quiet) {
  bool busy = run_commands();
  user_operations_.take_small_posts();  // sent by this turn
  const TimeNs now = now_ = io::monotonic_now();
  ++turns_;
  turn_bytes_ = 0;
  if (is_channel_quiet) control_service_.on_quiet(now);
  std::size_t received = datapath_.outer->receive(now, kReceiveBudget, *this);
  busy |= received > 0;
  while (received == kReceiveBudget && endpoint_.next_timeout() <= now && io::monotonic_now() - now < kReadFirstNs) {
    received = datapath_.outer->receive(now, kReceiveBudget, *this);
  }
  if (turn_bytes_ > 0) {
    read_bytes_ = turn_bytes_;
    arrived_at_ = now;
  }
  busy |= control_service_.service(now, *this);
  const bool is_timed = endpoint_.next_timeout() <= now;
  if (is_timed) {
    endpoint_.on_timeout(now);
    busy = true;
  }
  busy |= collectives_.on_timeout(now);
  busy |= user_operations_.on_timeout(now);
  busy |= drain_completions(now);
  path_checks_.turn(now, received < kReceiveBudget);
  // Where nothing arrived and no timer ran, there is nothing else that could leave.
  const bool waits = posts_waiting_ > 0 && turn_bytes_ == 0 && !is_timed && now < posts_due_ && posts_may_wait();
  if (!waits) {
    posts_waiting_ = 0;
    busy |= transmit(kTransmitBudget);
  }
  control_service_.send_fallback(now_);
  if (drain_completions(now)) busy = has_more_to_send_ = true;
  return busy;
}

// Work of a post on its caller's thread; arrivals and timers are left to the thread that runs the next turn.
bool EventLoop::run_posts() {
  run_commands();
  now_ = io::monotonic_now();
  drain_completions(now_);
  const std::size_t small = user_operations_.take_small_posts();
  if (small > 0 && posts_waiting_ + small <= kMaxPostsWaiting && posts_may_wait()) {
    if (posts_waiting_ == 0) posts_due_ = base::after(now_, kPostsWaitNs);
    posts_waiting_ += small;
    return has_more_to_send_;
  }
  posts_waiting_ = 0;
  transmit(kPostBudget);
  control_service_.send_fallback(now_);
  if (drain_completions(now_)) has_more_to_send_ = true;
  return has_more_to_send_;
}

// Whether what a short post sends may leave with that of the next posts, in one call of the system.
// PROTOCOL 6.2.3: While it has 64 operations or more in progress, it MAY keep what follows from a post for those of
//     further posts, for at most 200 us, whatever else says that it leaves at once.
// Only while datagrams arrive, whose next turn sends it too. Not where processes share memory: it takes no call there,
// and a peer would sleep meanwhile.
bool EventLoop::posts_may_wait() const {
  if (datapath_.shared != nullptr && datapath_.shared->peers() > 0) return false;
  return posts_waiting_ < kMaxPostsWaiting && endpoint_.operations() >= kManyOperations &&
         now_ - arrived_at_ < kQuietNs;
}

TimeNs EventLoop::next_timeout() const {
  return std::min({posts_waiting_ > 0 ? posts_due_ : base::kNever, endpoint_.next_timeout(), channel_->next_timeout(),
                   datapath_.outer->next_timeout(), collectives_.next_timeout(), user_operations_.next_timeout(),
                   path_checks_.next_timeout()});
}

// Not where processes share memory: there a peer of this host waits for its data to be read. Not without stamps of
// arrival either: the wait would count as a queue of the network. Nor with shares by rate: reports that leave late blur
// what each link carries (tests/python/testbed/test_testbed_slow_host.py).
bool EventLoop::datagrams_may_wait(TimeNs now) const {
  const TimeNs next = endpoint_.paced_until();
  if (next > now + kMaxPauseNs || next < now + kMinPauseNs || has_more_to_send_) return false;
  if (datapath_.shared != nullptr && datapath_.shared->peers() > 0) return false;
  if (!datapath_.outer->capabilities().stamps_arrivals || options_.shares_by_rate) return false;
  return read_bytes_ <= kMaxPausedBytes;
}

EventLoop::Descriptors EventLoop::descriptors() const { return {datapath_.outer->readable_fd(), channel_->poll_fd()}; }

// True if any batch left.
bool EventLoop::transmit(std::size_t budget) {
  if (local_peers_) local_peers_->drop_broken(*channel_);
  const bool any = transmitter_.transmit(now_, budget);
  has_more_to_send_ = transmitter_.has_more();
  return any;
}

bool EventLoop::drain_completions(TimeNs now) {
  bool any = false;
  while (endpoint_.poll_completion(completion_)) {
    any = true;
    on_completion(now, completion_);
  }
  if (any || collectives_.has_begun_results()) collectives_.retry(now);
  collectives_.finish();
  return any;
}

void EventLoop::on_completion(TimeNs now, const core::Completion& completion) {
  const bool is_sent = completion.kind == core::CompletionKind::kSend && !core::is_failure(completion.status);
  if (is_sent && completion.segment_count > 1) path_mtu_errors_.on_sent(completion.peer);
  if (!collective::is_machine_operation(completion.operation)) {
    user_operations_.on_completion(now, completion);
  } else {
    collectives_.on_completion(now, completion);
  }
}

void EventLoop::cancel(TimeNs now, OperationId operation, const std::string& reason) {
  user_operations_.cancel(now, operation);
  collectives_.cancel(now, operation, reason);
}

// ---- arrivals ------------------------------------------------------------------------------------------------------

void EventLoop::on_run(const base::ReceivedRun& run) {
  turn_bytes_ += run.bytes.size();
  if (run.after_drop) endpoint_.on_control(now_, core::DatagramsDropped{});
  for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
    // The kernel has just copied the batch, past the nearest caches: cache misses on headers would cost a tenth of the
    // loop.
    if (at + 2 * run.datagram_bytes < run.bytes.size())
      __builtin_prefetch(run.bytes.data() + at + 2 * run.datagram_bytes);
    const std::size_t size = std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at);
    const std::span<const std::byte> datagram = run.bytes.subspan(at, size);
    if (path_checks_.on_datagram(datagram)) continue;
    endpoint_.on_datagram(now_, datagram, run.ecn, run.arrival_ns);
  }
}

void EventLoop::on_message(std::uint16_t from, std::uint8_t type, std::span<const std::byte> bytes) {
  if (type == kFallbackFrame) endpoint_.on_control(now_, core::PeerMessage{from, bytes});
  if (type == kFailureMessage) failure_reasons_[from] = failure_reason(bytes);
  if (type == kPathReportMessage) path_checks_.on_report(now_, from, bytes);
  if (type == kChecksumMessage) user_operations_.on_checksum(now_, from, bytes);
  // PROTOCOL 3.1.7: A receiver MUST ignore messages of types 21 and above: a later version may define them.
  if (type == kCollectiveMessage) collectives_.on_message(now_, from, bytes);
}

void EventLoop::on_peer_up(const io::PeerHello& peer) {
  const io::Hello& hello = peer.hello;
  io::OsError error;
  if (!datapath_.network->set_peer_paths(hello.rank, peer.udp_addresses, error)) {
    return on_peer_down(hello.rank, io::PeerDownCause::kRefused, error.text);
  }
  std::string text;
  std::optional<core::PeerUp> up = hello_.negotiate(hello, text);
  if (!up) return on_peer_down(hello.rank, io::PeerDownCause::kMalformed, text);
  const std::uint32_t grid_bytes = up->segment_bytes;
  if (local_peers_ && !local_peers_->join(hello, *up, text)) return channel_->fail_peer(hello.rank, text);
  if (local_peers_) driving_.set_crowded(local_peers_->are_crowd());
  endpoint_.on_control(now_, *up);
  path_checks_.on_peer_up(*up);
  peers_.on_up(hello.rank, peer.udp_addresses, up->segment_bytes, grid_bytes);
  if (options_.connects_on_use) collectives_.on_peer_up(now_, hello.rank);
}

void EventLoop::on_peer_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text) {
  // Why the peer ended the connection, if that is known: else the channel's text says that it died.
  std::string reason = cause == io::PeerDownCause::kLost ? path_checks_.blocked(peer) : "";
  if (cause == io::PeerDownCause::kLost && reason.empty() && !failure_reasons_[peer].empty()) {
    reason = "rank " + std::to_string(peer) + " at " + peers_.addresses(peer).front().host() + " failed (" +
             failure_reasons_[peer] + "): look at its output";
  }
  if (options_.connects_on_use) peers_.set_sizes(peer, hello_.segment_bytes());
  peers_.on_down(peer, cause, reason.empty() ? text : reason);
  endpoint_.on_control(now_, core::PeerDown{peer});
  path_checks_.on_peer_down(peer);
  if (local_peers_) {
    local_peers_->remove(peer);
    driving_.set_crowded(local_peers_->are_crowd());
  }
  collectives_.on_peer_down(now_, peer);
  user_operations_.on_peer_down(peer);
}

void EventLoop::on_refused(const io::SocketAddress&, const std::string& text) { peers_.on_client_rejected(text); }

// ---- queries -------------------------------------------------------------------------------------------------------

// The holder of the loop's lock runs the query: this thread if the lock is free.
template <typename Query>
bool EventLoop::run_and_wait(Query&& query) {
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  const bool queued = started_ && run_command([&](TimeNs) {
                        query();
                        const std::lock_guard lock(mutex);
                        done = true;
                        ready.notify_all();
                      });
  if (!queued) return false;
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return done; });
  return true;
}

void EventLoop::snapshot_counters() {
  collective::ChecksumCounts checksums = collectives_.checksum_counts();
  checksums += user_operations_.checksum_counts();
  counter_snapshot_.take({endpoint_, datapath_, *channel_, driving_, transmitter_.failures(), turns_,
                          collectives_.rings_cut_by_rate(), checksums, collectives_.workers_gone(),
                          collectives_.service_counts()});
}

std::vector<CounterValue> EventLoop::counters() {
  run_and_wait([&] { snapshot_counters(); });
  return counter_snapshot_.values();
}

double EventLoop::rate_bytes_per_second(std::uint16_t peer) {
  double rate = 0;
  run_and_wait([&] { rate = endpoint_.rate_bytes_per_second(peer); });
  return rate;
}

std::vector<std::uint16_t> EventLoop::awaited(OperationId operation) {
  std::vector<std::uint16_t> ranks;
  run_and_wait([&] { ranks = collectives_.awaited(operation); });
  return ranks;
}

std::vector<PathStatus> EventLoop::paths(std::uint16_t peer) {
  std::vector<PathStatus> found = path_report_.addresses();
  run_and_wait([&] { path_report_.fill(peer, found); });
  return found;
}

}  // namespace mlt::engine
