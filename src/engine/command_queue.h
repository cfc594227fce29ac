// Commands from any thread to the I/O thread: bounded, first in first out, with a descriptor that wakes a sleeper.
//
// The limit names who fills it: user threads, which get an error when the I/O thread does not keep up.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/time.h"

namespace mlt::engine {

class CommandQueue {
 public:
  using Command = std::function<void(base::TimeNs now)>;

  explicit CommandQueue(std::size_t limit) : limit_(limit), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    MLT_CHECK(wake_fd_ >= 0);
    pending_.reserve(64);
    running_.reserve(64);
  }
  ~CommandQueue() { ::close(wake_fd_); }
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  // False if the queue is full or closed. Any thread. A sleeper is woken, unless it wakes by itself before the command
  // is `needed`: waking a thread costs both sides more than most commands do.
  bool push(Command command, base::TimeNs needed = 0) {
    bool is_urgent = false;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || pending_.size() >= limit_) return false;
      pending_.push_back(std::move(command));
      waiting_.store(true);
      is_urgent = pending_.size() >= kMostPatient;
    }
    // This sleep's, not the one's before: about_to_sleep() writes it before it finds nothing waiting.
    if (!is_urgent && needed > wakes_.load()) return true;
    if (asleep_.exchange(false)) wake();
    return true;
  }

  // Runs what is queued; true if anything was. I/O thread only.
  bool run(base::TimeNs now) {
    if (!waiting_.load(std::memory_order_acquire)) return false;
    {
      const std::lock_guard lock(mutex_);
      running_.swap(pending_);
      waiting_.store(false, std::memory_order_release);
    }
    for (Command& command : running_) command(now);
    const bool any = !running_.empty();
    running_.clear();
    return any;
  }

  // Between about_to_sleep() and awake() a push may write the descriptor. False if there is work: don't sleep. `wakes`:
  // when the sleep ends at the latest; kNever where no command may wait for that.
  bool about_to_sleep(base::TimeNs wakes) {
    wakes_.store(wakes);
    asleep_.store(true);
    if (!waiting_.load()) return true;
    asleep_.store(false);
    return false;
  }
  // `is_rung`: the descriptor was found readable. A push that comes too late for this sleep ends the next one at once.
  void awake(bool is_rung) {
    asleep_.store(false);
    if (!is_rung) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(wake_fd_, &count, sizeof count);
  }

  // No command is taken any more. Any thread.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake_fd_, &one, sizeof one);
  }
  int wake_fd() const { return wake_fd_; }

 private:
  // So many commands never wait for the sleeper: the queue must not fill while nobody takes from it.
  static constexpr std::size_t kMostPatient = 1'024;

  const std::size_t limit_;
  const int wake_fd_;
  std::mutex mutex_;
  std::vector<Command> pending_;  // guarded by mutex_
  bool closed_ = false;           // guarded by mutex_
  std::vector<Command> running_;  // I/O thread
  std::atomic<bool> waiting_{false};
  std::atomic<base::TimeNs> wakes_{base::kNever};
  std::atomic<bool> asleep_{false};
};

}  // namespace mlt::engine
