// Lines that the operator should see although no operation failed, from the event loop to the thread that logs them.
//
// Any thread. Absent on purpose: a log; the library writes none.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mlt::engine {

class Notices {
 public:
  static constexpr std::size_t kMax = 64;  // the oldest are dropped

  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    if (texts_.size() == kMax) texts_.erase(texts_.begin());
    texts_.push_back(std::move(text));
    has_any_.store(true, std::memory_order_release);
  }

  // Each is returned once. Takes no lock while there is none.
  std::vector<std::string> take() {
    if (!has_any_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    has_any_.store(false, std::memory_order_release);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;  // guarded by mutex_
  std::atomic<bool> has_any_{false};
};

}  // namespace mlt::engine
