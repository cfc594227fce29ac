#include "io/io_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "io/clock.h"

namespace mlt::io {

namespace {

// Runs handled before the thread looks at the other side again.
constexpr std::size_t kSendBudget = 8;
constexpr std::size_t kReceiveBudget = 8;
// A system that takes no datagram for this long has lost its interface: the run counts as lost.
constexpr base::DurationNs kSendWaitNs = 20 * base::kMillisecond;
// The system may be short of memory (ENOBUFS) while the socket is writable: then only time tells.
constexpr base::DurationNs kSendRetryNs = base::kMillisecond;

// "0-3,6".
std::string cpu_list(const cpu_set_t& set) {
  std::string text;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    std::size_t last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cpu) + (last > cpu ? "-" + std::to_string(last) : "");
    cpu = last;
  }
  return text;
}

}  // namespace

std::unique_ptr<IoThread> IoThread::start(std::unique_ptr<Datapath> inner, const IoThreadOptions& options,
                                          OwnerBell& owner, OsError& error) {
  std::unique_ptr<IoThread> io(new IoThread(std::move(inner), options, owner));
  const std::string name = "mlt-io-" + std::to_string(options.number);
  if (!io->bell_.is_open()) {
    error = os_error(errno, "open a descriptor to wake I/O thread", name);
    return nullptr;
  }
  try {
    io->thread_ = std::thread([self = io.get()] { self->run(); });
  } catch (const std::system_error& failure) {
    error = os_error(failure.code().value(), "start I/O thread", name);
    error.text += " The system limits threads: look at `ulimit -u` and the container's limit of processes.";
    return nullptr;
  }
  ::pthread_setname_np(io->thread_.native_handle(), name.c_str());
  if (!io->pin(error)) return nullptr;
  return io;
}

IoThread::IoThread(std::unique_ptr<Datapath> inner, const IoThreadOptions& options, OwnerBell& owner)
    : inner_(std::move(inner)), options_(options), owner_(owner) {
  direct_ = inner_->receive_into(receives_.next_buffer());
}

IoThread::~IoThread() {
  stopping_.store(true);
  bell_.ring();
  if (thread_.joinable()) thread_.join();
}

bool IoThread::pin(OsError& error) {
  if (options_.cpu < 0) return true;
  cpu_set_t one;
  CPU_ZERO(&one);
  if (options_.cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(options_.cpu), &one);
  const int failed = ::pthread_setaffinity_np(thread_.native_handle(), sizeof one, &one);
  if (failed == 0) return true;
  if (failed != EINVAL) {
    error =
        os_error(failed, "pin I/O thread " + std::to_string(options_.number) + " to CPU", std::to_string(options_.cpu));
    return false;
  }
  // Not what this process was started on, which a thread may leave, but what the machine and the container allow: the
  // system cuts a request for all to that.
  cpu_set_t all;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  ::pthread_setaffinity_np(thread_.native_handle(), sizeof all, &all);
  ::pthread_getaffinity_np(thread_.native_handle(), sizeof all, &all);
  error = bad_argument("I/O thread " + std::to_string(options_.number) + " can't run on CPU " +
                       std::to_string(options_.cpu) + ": this process may use " + cpu_list(all) +
                       "; give io_cpus from these.");
  return false;
}

// ---- the owner's thread --------------------------------------------------------------------------------------------

bool IoThread::send(std::uint64_t number, const base::DatagramRun& run) {
  if (!sends_.push(number, run)) return false;
  if (++unannounced_ >= SendRing::kPlaces / 2) wake();
  return true;
}

void IoThread::wake() {
  if (unannounced_ == 0) return;
  unannounced_ = 0;
  bell_.ring();
}

std::size_t IoThread::receive(base::TimeNs now, std::size_t most, ReceiveSink& sink) {
  const std::size_t count = receives_.take(now, most, sink);
  if (count > 0 && waits_for_room_.load() && waits_for_room_.exchange(false)) bell_.ring();
  return count;
}

void IoThread::ask(const Question& question) {
  question_.store(&question);
  bell_.ring();
  question_.wait(&question);
}

// ---- the I/O thread ------------------------------------------------------------------------------------------------

void IoThread::run() {
  while (true) {
    const bool stopping = stopping_.load();
    now_ = monotonic_now();
    ++counts_.loops;
    bool busy = answer();
    busy |= send_queued();
    if (stopping) {
      if (sends_.front() != nullptr && blocked_since_ == base::kNever) continue;
      return;
    }
    busy |= receive_some(now_);
    if (busy) {
      idle_since_ = now_;
      continue;
    }
    if (now_ - idle_since_ < options_.spin_ns) continue;
    bell_.arm();
    if (!has_work()) sleep();
  }
}

bool IoThread::answer() {
  const Question* question = question_.load();
  if (question == nullptr) return false;
  (*question)(*inner_);
  question_.store(nullptr);
  question_.notify_one();
  return true;
}

bool IoThread::send_queued() {
  bool any = false;
  for (std::size_t i = 0; i < kSendBudget; ++i) {
    const base::DatagramRun* run = sends_.front();
    if (run == nullptr) break;
    SendStatus status = inner_->send(monotonic_now(), *run);
    if (status == SendStatus::kWouldBlock) {
      if (blocked_since_ == base::kNever) blocked_since_ = now_;
      if (now_ - blocked_since_ < kSendWaitNs) break;
      ++counts_.sends_timed_out;
    }
    blocked_since_ = base::kNever;
    was_writable_ = false;
    sends_.pop(status, status == SendStatus::kFailed ? inner_->last_error() : std::string());
    any = true;
    if (status != SendStatus::kSent) owner_.bell.ring();
    tell_sent();
  }
  return any;
}

// Not at every run: an owner that waits for room is woken for some at once.
void IoThread::tell_sent() {
  if (sends_.waiting() > SendRing::kPlaces / 2 || !owner_.waits_for_sends.load()) return;
  if (owner_.waits_for_sends.exchange(false)) owner_.bell.ring();
}

bool IoThread::receive_some(base::TimeNs now) {
  // Without room too: a datapath may have sends to finish.
  if (inner_->receive(now, std::min(kReceiveBudget, receives_.room()), *this) == 0) return false;
  owner_.bell.ring();  // once for what was there, not for each run
  return true;
}

void IoThread::on_run(const base::ReceivedRun& run) {
  if (receives_.room() == 0) {  // a datapath that splits runs may hand up more than it was asked for
    ++counts_.receive_ring_full;
    return;
  }
  base::ReceivedRun stamped = run;
  if (stamped.arrival_ns == base::kNever) stamped.arrival_ns = now_;
  receives_.push(stamped);
  if (direct_) inner_->receive_into(receives_.next_buffer());
}

// The second look of the bell's protocol: what the owner gave since the first.
bool IoThread::has_work() {
  if (stopping_.load() || question_.load() != nullptr) return true;
  if (sends_.front() != nullptr && blocked_since_ == base::kNever) return true;
  if (receives_.room() > 0) return false;
  waits_for_room_.store(true);
  return receives_.room() > 0;
}

void IoThread::sleep() {
  const bool blocked = blocked_since_ != base::kNever;
  // A descriptor below 0 is not looked at.
  std::array<pollfd, 3> fds = {{{bell_.fd(), POLLIN, 0},
                                {receives_.room() > 0 ? inner_->readable_fd() : -1, POLLIN, 0},
                                {blocked && !was_writable_ ? inner_->writable_fd(*sends_.front()) : -1, POLLOUT, 0}}};
  base::TimeNs until = inner_->next_timeout();
  if (blocked) until = std::min(until, base::after(now_, kSendRetryNs));
  timespec timeout{};
  if (until != base::kNever) {
    const base::TimeNs wait = std::max<base::TimeNs>(0, until - monotonic_now());
    timeout.tv_sec = wait / base::kSecond;
    timeout.tv_nsec = wait % base::kSecond;
  }
  ++counts_.sleeps;
  ::ppoll(fds.data(), fds.size(), until == base::kNever ? nullptr : &timeout, nullptr);
  was_writable_ = (fds[2].revents & POLLOUT) != 0;
}

}  // namespace mlt::io
