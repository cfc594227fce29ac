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

  // False if the queue is full or closed. Any thread.
  bool push(Command command) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || pending_.size() >= limit_) return false;
      pending_.push_back(std::move(command));
      waiting_.store(true, std::memory_order_release);
    }
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

  // Between about_to_sleep() and awake() a push writes the descriptor. False if there is work: don't sleep.
  bool about_to_sleep() {
    asleep_.store(true);
    if (!waiting_.load()) return true;
    asleep_.store(false);
    return false;
  }
  void awake() {
    asleep_.store(false);
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
  const std::size_t limit_;
  const int wake_fd_;
  std::mutex mutex_;
  std::vector<Command> pending_;  // guarded by mutex_
  bool closed_ = false;           // guarded by mutex_
  std::vector<Command> running_;  // I/O thread
  std::atomic<bool> waiting_{false};
  std::atomic<bool> asleep_{false};
};

}  // namespace mlt::engine
