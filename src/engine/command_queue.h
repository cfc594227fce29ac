// Commands from any thread to the holder of the event loop's lock: bounded, first in first out.
//
// A full queue rejects commands of user threads: they get an error if no thread keeps up.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/time.h"

namespace mlt::engine {

class CommandQueue {
 public:
  using Command = std::function<void(base::TimeNs now)>;

  explicit CommandQueue(std::size_t limit) : limit_(limit) {
    pending_.reserve(64);
    running_.reserve(64);
  }
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  // False if the queue is full or closed. Any thread.
  bool push(Command command) {
    const std::lock_guard lock(mutex_);
    if (closed_ || pending_.size() >= limit_) return false;
    pending_.push_back(std::move(command));
    waiting_.store(true);
    return true;
  }

  // Any thread.
  bool has_waiting() const { return waiting_.load(); }

  // Runs the queued commands; true if there were any. Requires the loop's lock. Reads the clock after it took the
  // commands: with an earlier time an operation would start before it was posted.
  template <typename Clock>
  bool run(Clock&& clock) {
    if (!waiting_.load(std::memory_order_acquire)) return false;
    {
      const std::lock_guard lock(mutex_);
      running_.swap(pending_);
      waiting_.store(false);
    }
    const base::TimeNs now = clock();
    for (Command& command : running_) command(now);
    const bool any = !running_.empty();
    running_.clear();
    return any;
  }

  // Rejects all later commands. Any thread.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  const std::size_t limit_;
  std::mutex mutex_;
  std::vector<Command> pending_;  // guarded by mutex_
  bool closed_ = false;           // guarded by mutex_
  std::vector<Command> running_;  // requires the loop's lock
  std::atomic<bool> waiting_{false};
};

}  // namespace mlt::engine
