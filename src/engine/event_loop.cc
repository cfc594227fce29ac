#include "engine/event_loop.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/stream_copy.h"
#include "io/os/clock.h"

namespace mlt::engine {

namespace {

// Batches handled before the loop switches between receiving and sending: enough to amortise the calls, few enough that
// an ACK never waits for long.
constexpr std::size_t kReceiveBudget = 16;
constexpr std::size_t kTransmitBudget = 16;
// Batches sent on the thread of a post: the caller has other work.
constexpr std::size_t kPostBudget = 4;
// If the kernel accepts no datagram for this long, the interface has failed: the batch counts as lost.
constexpr int kSendWaitMs = 20;
// Max time to send the last frames when the context is closed.
constexpr base::DurationNs kGoodbyeNs = base::kSecond;
constexpr base::DurationNs kChannelPollNs = 50 * base::kMicrosecond;

}  // namespace

EventLoop::EventLoop(const Options& options)
    : options_(options), peers_(options.rank, options.ranks), send_errors_(options.ranks) {
  open_datapath();
  open_control_channel();
  for (std::uint8_t path = 0; path < network_->paths(); ++path) {
    path_addresses_.push_back(network_->path_address(path));
  }
  control_port_ = channel_->listen_address().port();
  receive_buffer_bytes_ = datapath_->capabilities().receive_buffer_bytes;
  collectives_ = std::make_unique<Collectives>(*this, *endpoint_, *channel_);
}

EventLoop::~EventLoop() { stop(); }

// ---- the loop ------------------------------------------------------------------------------------------------------

void EventLoop::run() {
  driving_.run();
  say_goodbye();
  snapshot_counters();
  end_operations();
  peers_.close();
}

void EventLoop::end_operations() {
  base::fence_streamed();  // for receives in progress, whose memory is returned below
  // PROTOCOL 10.1.3: Operations that are still under way MUST then end as cancelled here, and as peer failed at the
  //     other side.
  operations_.finish_all([&](const std::string& name) {
    return "rank " + std::to_string(options_.rank) + ": " + name + " was under way when the context was closed";
  });
}

bool EventLoop::run_commands() {
  return commands_.run([this] { return now_ = io::monotonic_now(); });
}

bool EventLoop::step(bool is_channel_quiet) {
  bool busy = run_commands();
  const TimeNs now = now_ = io::monotonic_now();
  ++loops_;
  if (is_channel_quiet) channel_polled_ns_ = now;
  busy |= datapath_->receive(now, kReceiveBudget, *this) > 0;
  busy |= service_channel(now);
  if (endpoint_->next_timeout() <= now) {
    endpoint_->on_timeout(now);
    busy = true;
  }
  busy |= collectives_->on_timeout(now);
  busy |= drain_completions(now);
  busy |= transmit(kTransmitBudget) > 0;
  send_backstop();
  busy |= drain_completions(now);
  return busy;
}

// Work of a post on its caller's thread; arrivals and timers are left to the thread that runs the next turn.
bool EventLoop::run_posts() {
  run_commands();
  now_ = io::monotonic_now();
  drain_completions(now_);
  const std::size_t sent = transmit(kPostBudget);
  send_backstop();
  drain_completions(now_);
  return sent == kPostBudget;
}

TimeNs EventLoop::next_timeout() const {
  return std::min(
      {endpoint_->next_timeout(), channel_->next_timeout(), datapath_->next_timeout(), collectives_->next_timeout()});
}

EventLoop::Descriptors EventLoop::descriptors() const { return {datapath_->readable_fd(), channel_->poll_fd()}; }

// A frame that cannot be queued is lost like a datagram: the peer is failing, and the channel reports that itself.
void EventLoop::send_backstop() {
  // PROTOCOL 9.1.5: An endpoint MUST NOT keep a backstop message that the connection does not take: it is lost like a
  //     datagram, and that peer is failing.
  while (endpoint_->poll_control(now_, control_output_)) {
    channel_->send(control_output_.peer, kBackstopMessage, {control_output_.bytes, control_output_.size});
  }
}

// The control connections are idle most of the time: they are read when readable or due, which is checked at most every
// kChannelPollNs while data flows.
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

// Returns the number of batches sent.
std::size_t EventLoop::transmit(std::size_t budget) {
  std::size_t sent = 0;
  drop_broken_peers();
  for (; sent < budget; ++sent) {
    // Each batch carries its send time: round trips are measured from it.
    const TimeNs now = io::monotonic_now();
    if (!endpoint_->poll_transmit(now, transmit_capabilities_, transmit_)) break;
    send_run(transmit_);
  }
  return sent;
}

// Invalid positions in a peer's shared memory mean that the peer is broken: it is down, even if its connection is up.
// PROTOCOL 23.2.4: A side MUST end the use of the ring, and the peer is down, on a position that goes back, or beyond
//     what the ring can hold.
void EventLoop::drop_broken_peers() {
  std::uint16_t rank = 0;
  while (shared_ != nullptr && shared_->poll_broken(rank)) {
    channel_->give_up(rank, "rank " + std::to_string(rank) + " wrote into the memory that it shares with rank " +
                                std::to_string(options_.rank) +
                                " what no rank of this release writes: install the same release everywhere, or start "
                                "the job with MLT_DATAPATH=udp");
  }
}

// The batch's slices point into tensors: it must leave before any operation can complete.
void EventLoop::send_run(const core::Transmit& run) {
  io::SendStatus status = io::SendStatus::kWouldBlock;
  for (int waited_ms = 0; waited_ms < kSendWaitMs; ++waited_ms) {
    status = datapath_->send(io::monotonic_now(), run);
    if (status == io::SendStatus::kSent) return;
    if (status != io::SendStatus::kWouldBlock) break;
    pollfd writable{datapath_->writable_fd(run), POLLOUT, 0};
    ::poll(&writable, 1, 1);
  }
  on_refused_run(run, status);
}

// PROTOCOL 18.1.4: An endpoint MUST treat a run that the system refuses to send as lost, like any datagram, and name
//     the reason if its transfer then fails.
void EventLoop::on_refused_run(const core::Transmit& run, io::SendStatus status) {
  ++send_failures_;
  if (status == io::SendStatus::kFailed) send_errors_[run.peer] = datapath_->last_error();
  if (status == io::SendStatus::kTooLarge) path_mtu_errors_->on_too_large(now_, run);
}

void EventLoop::on_run(const base::ReceivedRun& run) {
  for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
    // The kernel has just copied the batch, past the nearest caches: cache misses on headers would cost a tenth of the
    // loop.
    if (at + 2 * run.datagram_bytes < run.bytes.size())
      __builtin_prefetch(run.bytes.data() + at + 2 * run.datagram_bytes);
    const std::size_t size = std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at);
    endpoint_->on_datagram(now_, run.bytes.subspan(at, size), run.ecn, run.arrival_ns);
  }
}

void EventLoop::stop() {
  // Closes the queue first: commands queued before run before the goodbye, later ones are rejected. Every caller waits
  // for the thread's end, because each of them may free its buffers next.
  commands_.close();
  const std::lock_guard lock(thread_mutex_);
  stopping_ = true;
  driving_.close();
  if (thread_.joinable()) thread_.join();
  // Frees ports, and AF_XDP's resources of the interface, for the next context of this process.
  channel_.reset();
  network_ = nullptr;
  local_peers_.reset();
  shared_ = nullptr;
  datapath_.reset();
}

// The outcomes of the last receives precede the goodbye on the same connection.
void EventLoop::say_goodbye() {
  run_commands();
  now_ = io::monotonic_now();
  endpoint_->on_control(now_, core::Closing{});
  send_backstop();
  // PROTOCOL 10.1.2: Goodbye MUST follow these on the same connection, which keeps the order.
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
    hand_over(now, completion_);
  }
  if (any) collectives_->retry(now);
  collectives_->finish();
  return any;
}

void EventLoop::hand_over(TimeNs now, const core::Completion& completion) {
  const bool is_sent = completion.kind == core::CompletionKind::kSend && !core::is_failure(completion.status);
  if (is_sent && completion.segment_count > 1) path_mtu_errors_->on_sent(completion.peer);
  if (!collective::is_machine_operation(completion.operation)) {
    finish_user(completion);
  } else {
    collectives_->on_completion(now, completion);
  }
}

// ---- messages ------------------------------------------------------------------------------------------------------

void EventLoop::on_message(std::uint16_t from, std::uint8_t type, std::span<const std::byte> bytes) {
  if (type == kBackstopMessage) endpoint_->on_control(now_, core::PeerMessage{from, bytes});
  // PROTOCOL 3.1.7: A receiver MUST ignore messages of types 18 and above: a later version may define them.
  if (type == kCollectiveMessage) collectives_->on_message(now_, from, bytes);
}

// ---- queries -------------------------------------------------------------------------------------------------------

void EventLoop::snapshot_counters() {
  std::vector<CounterValue> values;
  for (std::size_t i = 0; i < core::kCounterNames.size(); ++i) {
    values.push_back({core::kCounterNames[i], endpoint_->counters().values()[i]});
  }
  const auto add = [&](std::span<const io::NamedCounter> counters) {
    for (const io::NamedCounter& counter : counters) values.push_back({std::string(counter.name), counter.value});
  };
  add(network_->counters());
  if (datapath_.get() != network_) add(datapath_->counters());
  add(channel_->counters());
  values.push_back({"engine_send_failures", send_failures_});
  values.push_back({"engine_loops", loops_});
  const Driving::Counts& drove = driving_.counts();
  values.push_back({"engine_sleeps", drove.sleeps.load()});
  values.push_back({"engine_driven_by_waiters", drove.driven_by_waiters.load()});
  values.push_back({"engine_driven_by_posts", drove.driven_by_posts.load()});
  values.push_back({"engine_driven_by_polls", drove.driven_by_polls.load()});
  values.push_back({"engine_io_takeovers", drove.takeovers.load()});
  values.push_back({"engine_wakes", drove.wakes.load()});
  values.push_back({"engine_spins_won", driving_.spin().won()});
  values.push_back({"engine_spins_lost", driving_.spin().lost()});
  if (const auto rounds = collectives_->rounds_summed()) values.push_back({"summation_rounds", *rounds});
  const std::lock_guard lock(snapshot_mutex_);
  snapshot_ = std::move(values);
}

std::vector<CounterValue> EventLoop::counters() {
  // The holder of the loop's lock takes the snapshot: this thread if the lock is free.
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
  const std::lock_guard lock(snapshot_mutex_);
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
