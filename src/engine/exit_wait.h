// The wait for the exit status of a process that ends: its operations end first, its peers are told last.
//
// Any thread; the I/O thread is the one that waits for the status.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/time.h"

namespace mlt::engine {

class ExitWait {
 public:
  // Before the I/O thread is told to end. `max_ns`: after that time the thread waits no longer.
  void begin(base::DurationNs max_ns) {
    const std::lock_guard lock(mutex_);
    max_ns_ = max_ns;
  }
  // Empty: the process continues.
  std::optional<base::DurationNs> max_ns() const {
    const std::lock_guard lock(mutex_);
    return max_ns_;
  }

  // The I/O thread: no operation is in progress any more, and it no longer accesses any tensor.
  void on_operations_ended() {
    {
      const std::lock_guard lock(mutex_);
      have_operations_ended_ = true;
    }
    changed_.notify_all();
  }
  void wait_operations_ended() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return have_operations_ended_; });
  }

  void set_status(int status) {
    const std::lock_guard lock(mutex_);
    if (!status_) status_ = status;
  }
  std::optional<int> status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<base::DurationNs> max_ns_;
  std::optional<int> status_;
  bool have_operations_ended_ = false;
};

}  // namespace mlt::engine
