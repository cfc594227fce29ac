#include "engine/driving.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "io/os/clock.h"
#include "mlt.h"

namespace mlt::engine {

namespace {

using base::TimeNs;

// Time that the I/O thread leaves the loop to waiting threads before it checks again. The first lease is short, because
// a wait is often the last one. The longest costs a thousand checks per second, and is the max delay of a takeover.
constexpr base::DurationNs kFirstLeaseNs = 50 * base::kMicrosecond;
constexpr base::DurationNs kLongestLeaseNs = base::kMillisecond;
// In a crowd leases are so many times as long: other processes delay a takeover by more, and each check delays them.
constexpr base::DurationNs kCrowdLeases = 4;
// If a caller computes for longer than this between two waits, the I/O thread takes over at once, not after a lease.
constexpr base::DurationNs kLongAwayNs = 300 * base::kMicrosecond;
// A thread that held the seat for this long wakes the I/O thread when it leaves; until then the I/O thread sleeps. In a
// crowd also the lease of a wait in progress, and so the max delay of a takeover.
constexpr base::DurationNs kLongSeatNs = 10 * base::kMillisecond;
// Time between two offers of the CPU by a thread that polls: many times the cost of an offer that no thread takes.
constexpr base::DurationNs kYieldNs = 5 * base::kMicrosecond;
constexpr TimeNs kAwake = 0;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Driving::Driving(DrivenLoop& loop, base::DurationNs spin_bound_ns)
    : loop_(loop), spin_(spin_bound_ns), lease_ns_(kFirstLeaseNs) {
  for (Sleeper* sleeper : {&seat_sleeper_, &io_sleeper_}) {
    sleeper->bell = io::UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!sleeper->bell) throw Error(ErrorCode::kSystem, "eventfd() failed: no descriptor for the event loop");
  }
}

// ---- the lock ------------------------------------------------------------------------------------------------------

bool Driving::try_begin_post() {
  if (!loop_lock_.try_lock()) return false;
  if (open_) return true;
  loop_lock_.unlock();
  return false;
}

void Driving::finish_post() {
  counts_.driven_by_posts.fetch_add(1, std::memory_order_relaxed);
  call_for(loop_.run_posts() ? kAwake : loop_.next_timeout());
  give_back();
}

void Driving::run_queued() {
  // Either this finds the lock free, or its holder finds the queued command: see give_back().
  order_.fetch_add(1);
  if (try_begin_post()) finish_post();
}

// Releases the lock and checks the queue again: a thread that queued a command without getting the lock relies on it.
void Driving::give_back() {
  while (true) {
    const bool is_open = open_;
    loop_lock_.unlock();
    order_.fetch_add(1);
    if (!is_open || !loop_.has_posts() || !try_begin_post()) return;
    call_for(loop_.run_posts() ? kAwake : loop_.next_timeout());
  }
}

// With the lock: requests a turn at `due`. Wakes a thread that would sleep longer.
void Driving::call_for(TimeNs due) {
  due_.store(due);
  if (seat_taken_.load()) {
    // An awake thread checks the time itself before it sleeps; one about to leave checks due_.
    if (seat_sleeper_.until.load() > due) ring_if_asleep(seat_sleeper_);
  } else if (io_sleeper_.until.load() > due) {
    ring_if_asleep(io_sleeper_);
  }
}

// With the lock, after a turn: arriving data must still wake the thread that sleeps meanwhile.
void Driving::after_turn(TimeNs due) {
  due_.store(due);
  Sleeper& sleeper = seat_taken_.load() ? seat_sleeper_ : io_sleeper_;
  const TimeNs until = sleeper.until.load();
  if (until != kAwake && (until > due || !loop_.prepare_to_wait())) ring_if_asleep(sleeper);
}

bool Driving::ring_if_asleep(Sleeper& sleeper) {
  if (sleeper.until.exchange(kAwake) == kAwake) return false;
  counts_.wakes.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(sleeper.bell.get(), &one, sizeof one);
  return true;
}

// Called with the lock; releases it. True if the channel's descriptor was not readable at the end.
bool Driving::sleep(Sleeper& sleeper, TimeNs until, const Waiter* waiter, bool for_datagrams) {
  if (!loop_.prepare_to_wait()) {
    give_back();
    return false;
  }
  const DrivenLoop::Descriptors descriptors = loop_.descriptors();
  sleeper.until.store(until);
  give_back();
  // Events before this thread set `until` did not ring its bell.
  if (closing_.load() || (waiter != nullptr && waiter->done.load())) {
    sleeper.until.store(kAwake);
    return false;
  }
  pollfd fds[3] = {{for_datagrams ? descriptors.datagrams : -1, POLLIN, 0},
                   {descriptors.channel, POLLIN, 0},
                   {sleeper.bell.get(), POLLIN, 0}};
  timespec timeout{};
  timespec* limit = nullptr;
  if (until != base::kNever) {
    const base::DurationNs left = std::max<base::DurationNs>(0, until - io::monotonic_now());
    timeout.tv_sec = left / base::kSecond;
    timeout.tv_nsec = left % base::kSecond;
    limit = &timeout;
  }
  counts_.sleeps.fetch_add(1, std::memory_order_relaxed);
  const int ready = ::ppoll(fds, 3, limit, nullptr);
  sleeper.until.store(kAwake);
  // A ring that is late for this sleep ends the next one at once.
  if (ready > 0 && fds[2].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(sleeper.bell.get(), &count, sizeof count);
  }
  return ready >= 0 && fds[1].revents == 0;
}

// ---- waiting threads -----------------------------------------------------------------------------------------------

void Driving::poll() {
  if (!try_begin_post()) return;
  counts_.driven_by_polls.fetch_add(1, std::memory_order_relaxed);
  drove_.store(true);
  const bool busy = loop_.step(false);
  after_turn(busy ? kAwake : loop_.next_timeout());
  give_back();
}

bool Driving::wait(Waiter& waiter, std::optional<SteadyTime> until) {
  std::unique_lock lock(mutex_);
  while (!waiter.done.load()) {
    if (seat_ != nullptr || !may_sit_ || closing_.load()) {
      sleeping_.push_back(&waiter);
      bool in_time = true;
      if (until) {
        in_time = waiter.wake.wait_until(lock, *until) == std::cv_status::no_timeout;
      } else {
        waiter.wake.wait(lock);
      }
      std::erase(sleeping_, &waiter);
      if (!in_time) break;
      continue;
    }
    sit(waiter);
    lock.unlock();
    const TimeNs limit = until ? until->time_since_epoch().count() : base::kNever;
    const bool in_time = drive(waiter, limit);
    if (io_sleeper_.until.load() != kAwake) leave_to_sleeper();
    lock.lock();
    leave_seat();
    if (!in_time) break;
  }
  // This thread may have been offered the seat after its waiter was done.
  hand_on();
  return waiter.done.load();
}

void Driving::notify(Waiter& waiter) {
  const std::lock_guard lock(mutex_);
  waiter.done.store(true);
  if (seat_ == &waiter) {
    ring_if_asleep(seat_sleeper_);
  } else {
    waiter.wake.notify_one();
  }
}

// False on timeout.
bool Driving::drive(Waiter& waiter, TimeNs until) {
  counts_.driven_by_waiters.fetch_add(1, std::memory_order_relaxed);
  Idle idle;
  while (!waiter.done.load() && !closing_.load()) {
    if (!turn(waiter, until, idle)) return waiter.done.load();
  }
  return true;
}

// One turn and its follow-up: false on timeout.
bool Driving::turn(Waiter& waiter, TimeNs until, Idle& idle) {
  loop_lock_.lock();
  if (!open_) {
    loop_lock_.unlock();
    return true;  // closing_ is set
  }
  drove_.store(true, std::memory_order_relaxed);
  const bool busy = loop_.step(idle.is_channel_quiet);
  idle.is_channel_quiet = false;
  const TimeNs now = io::monotonic_now();
  // A wait of known length, for which polling gains nothing: it does not count for the polling of others.
  if (!waiter.done.load() && now < until && loop_.datagrams_may_wait(now)) {
    idle = {};
    const TimeNs due = loop_.next_timeout();
    due_.store(due);
    idle.is_channel_quiet = sleep(seat_sleeper_, std::min(due, until), &waiter, false);
    return true;
  }
  if (busy || waiter.done.load()) {
    if (idle.since != 0) spin_.ended(now, now - idle.since, idle.polled, idle.slept);
    idle = {};
    due_.store(busy ? kAwake : loop_.next_timeout());
    give_back();
    return now < until;
  }
  const TimeNs due = loop_.next_timeout();
  due_.store(due);
  if (idle.since == 0) idle.since = now;
  if (now >= until) {
    give_back();
    return false;
  }
  if (spin_.goes_on(now, now - idle.since, idle.polled && !idle.slept)) {
    idle.polled = true;
    give_back();
    pause(now, idle);
    return true;
  }
  idle.slept = true;
  idle.is_channel_quiet = sleep(seat_sleeper_, std::min(due, until), &waiter, true);
  return true;
}

// Between two polls. What the thread waits for may be waiting for its CPU: the kernel wakes threads where they ran
// last, also if another polls there.
void Driving::pause(TimeNs now, Idle& idle) {
  const TimeNs last = std::max(idle.yielded_at, idle.since);
  if (now - last < kYieldNs) return relax();
  counts_.yields.fetch_add(1, std::memory_order_relaxed);
  std::this_thread::yield();
  idle.yielded_at = io::monotonic_now();
}

// The I/O thread has slept on the descriptors since before this thread drove; arriving data must wake it.
void Driving::leave_to_sleeper() {
  loop_lock_.lock();
  if (open_ && !loop_.prepare_to_wait()) ring_if_asleep(io_sleeper_);
  give_back();
}

// With mutex_.
void Driving::sit(Waiter& waiter) {
  seat_ = &waiter;
  seat_taken_.store(true);
  sat_at_ = io::monotonic_now();
  is_away_long_ = left_at_ != 0 && sat_at_ - left_at_ > kLongAwayNs;
}

// With mutex_.
void Driving::leave_seat() {
  seat_ = nullptr;
  seat_taken_.store(false);
  left_at_ = io::monotonic_now();
  if (closing_.load()) {
    seat_left_.notify_all();
    return;
  }
  if (!sleeping_.empty()) return;  // hand_on() follows, or this thread takes the seat again
  const bool is_missed = is_away_long_ && loop_.has_operations();
  if (io_rests_ || (io_parked_ && is_missed)) {
    io_called_ = true;
    counts_.wakes.fetch_add(1, std::memory_order_relaxed);
    io_wake_.notify_one();
  } else if (io_sleeper_.until.load() > due_.load()) {
    // It sleeps with an older timeout, from before this thread drove.
    ring_if_asleep(io_sleeper_);
  }
}

// With mutex_.
void Driving::hand_on() {
  if (seat_ != nullptr || !may_sit_ || sleeping_.empty()) return;
  counts_.wakes.fetch_add(1, std::memory_order_relaxed);
  sleeping_.front()->wake.notify_one();
}

// ---- the I/O thread ------------------------------------------------------------------------------------------------

void Driving::run() {
  loop_lock_.lock();
  open_ = true;
  loop_lock_.unlock();
  {
    const std::lock_guard lock(mutex_);
    may_sit_ = true;
    hand_on();
  }
  bool is_channel_quiet = false;
  bool was_parked = false;
  while (!closing_.load()) {
    if (seat_taken_.load() || drove_.exchange(false)) {
      park();
      was_parked = true;
      is_channel_quiet = false;
      continue;
    }
    if (was_parked) counts_.takeovers.fetch_add(1, std::memory_order_relaxed);
    was_parked = false;
    lease_ns_ = kFirstLeaseNs;
    loop_lock_.lock();
    const bool busy = loop_.step(is_channel_quiet);
    is_channel_quiet = false;
    const bool may_wait = loop_.datagrams_may_wait(io::monotonic_now());
    const TimeNs due = busy && !may_wait ? kAwake : loop_.next_timeout();
    call_for(due);
    if (busy && !may_wait) {
      give_back();
      continue;
    }
    is_channel_quiet = sleep(io_sleeper_, due, nullptr, !may_wait);
  }
  shut();
}

// Other threads drive: sleeps for a lease, or until a thread that keeps the seat for longer leaves it.
void Driving::park() {
  std::unique_lock lock(mutex_);
  const auto is_called = [this] { return io_called_ || closing_.load(); };
  io_parked_ = true;
  counts_.parks.fetch_add(1, std::memory_order_relaxed);
  if (seat_ != nullptr && io::monotonic_now() - sat_at_ > kLongSeatNs) {
    io_rests_ = true;
    io_wake_.wait(lock, is_called);
    io_rests_ = false;
  } else {
    base::DurationNs lease = lease_ns_;
    // In a crowd a wait lasts for many leases, and each check takes a CPU from the ranks that it waits for.
    const bool is_long = is_crowded_.load() && seat_ != nullptr;
    if (is_crowded_.load()) lease = is_long ? kLongSeatNs : kCrowdLeases * lease_ns_;
    io_wake_.wait_for(lock, std::chrono::nanoseconds(lease), is_called);
    // The wait ended during its lease: a second lease would make the timers of what it left late by both.
    if (is_long && seat_ == nullptr && io::monotonic_now() - left_at_ > kLongAwayNs) drove_.store(false);
    lease_ns_ = std::min(2 * lease_ns_, kLongestLeaseNs);
  }
  io_parked_ = false;
  if (!io_called_) return;
  io_called_ = false;
  lease_ns_ = kFirstLeaseNs;
  drove_.store(false);
}

void Driving::close() {
  closing_.store(true);
  const std::lock_guard lock(mutex_);
  io_wake_.notify_all();
  const std::uint64_t one = 1;
  for (Sleeper* sleeper : {&seat_sleeper_, &io_sleeper_}) {
    [[maybe_unused]] const auto n = ::write(sleeper->bell.get(), &one, sizeof one);
  }
}

void Driving::shut() {
  {
    std::unique_lock lock(mutex_);
    may_sit_ = false;
    seat_left_.wait(lock, [this] { return seat_ == nullptr; });
  }
  const std::lock_guard lock(loop_lock_);
  open_ = false;
}

}  // namespace mlt::engine
