// Operations of user threads: pinned from post to the moment their completion is taken. Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/importance.h"
#include "core/priority.h"
#include "mlt.h"

namespace mlt::engine {

// What the table keeps of an operation while it is under way; the I/O thread reads it to word an error.
struct Operation {
  std::string what;  // "send of tag 7 (4096 bytes of float32) to rank 1"
  Verb verb = Verb::kReceive;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;  // the key of a push-pull
  std::uint64_t total_bytes = 0;
  std::vector<core::SegmentTag> tags;  // per segment; the endpoint reads them until the operation is done
  core::MagnitudeTagger tagger;        // fills `tags` while the tensor is sent, if the caller left them to the values
};

// `Done` is Completion or PushPullResult: both have `operation`.
template <typename Done>
class OperationTable {
 public:
  explicit OperationTable(std::size_t limit) : limit_(limit) {}

  // Registers an operation before it is handed to the I/O thread; nullptr if the limit is reached or the table closed:
  // after finish_all() nobody would end it.
  Operation* begin(OperationId id, Operation operation) {
    const std::lock_guard lock(mutex_);
    if (closed_ || entries_.size() >= limit_) return nullptr;
    Entry& entry = entries_[id];
    entry.operation = std::move(operation);
    return &entry.operation;
  }

  // Withdraws an operation that never reached the I/O thread. finish_all() may have ended it meanwhile.
  void forget(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    if (found->second.done) finished_.erase(found->second.place);
    entries_.erase(found);
  }

  // Description of an operation under way. I/O thread: entries are only erased after finish().
  std::string what(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    return found == entries_.end() ? std::string() : found->second.operation.what;
  }

  // Which verb an operation under way is of. I/O thread.
  Verb verb(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    return found == entries_.end() ? Verb::kReceive : found->second.operation.verb;
  }

  // Wakes who waits for this operation and nobody else: a thread that is woken in vain goes to sleep again, at the cost
  // of both.
  void finish(Done done) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(done.operation);
      if (found == entries_.end()) return;
      Entry& entry = found->second;
      if (entry.done) return;
      entry.done = std::move(done);
      entry.place = finished_.insert(finished_.end(), found->first);
      // Under the lock: once awake, the waiter takes its condition with it.
      if (entry.waiter != nullptr) return entry.waiter->notify_one();
    }
    unclaimed_.notify_all();
  }

  // Ends every operation that is not done; `make(id, operation)` words its completion.
  template <typename Make>
  void finish_all(Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& [id, entry] : entries_) {
        if (entry.done) continue;
        entry.done = make(id, std::as_const(entry.operation));
        entry.place = finished_.insert(finished_.end(), id);
        if (entry.waiter != nullptr) entry.waiter->notify_one();
      }
      closed_ = true;
    }
    unclaimed_.notify_all();
  }

  // Oldest finished operation nobody waits for.
  std::optional<Done> take_any() {
    const std::lock_guard lock(mutex_);
    return take_any_locked();
  }

  // As take_any(), but waits; nothing when the time is up, or all is closed and taken.
  template <typename TimePoint>
  std::optional<Done> wait_any(std::optional<TimePoint> until) {
    std::unique_lock lock(mutex_);
    while (true) {
      if (std::optional<Done> done = take_any_locked()) return done;
      if (closed_) return std::nullopt;
      if (!wait_until(unclaimed_, lock, until)) return take_any_locked();
    }
  }

  enum class WaitResult { kDone, kTimeout, kUnknown };

  template <typename TimePoint>
  WaitResult wait(OperationId id, std::optional<TimePoint> until, Done& done) {
    std::unique_lock lock(mutex_);
    auto found = entries_.find(id);
    if (found == entries_.end() || found->second.waiter != nullptr) return WaitResult::kUnknown;
    std::condition_variable finished;
    found->second.waiter = &finished;
    while (!found->second.done) {
      if (!wait_until(finished, lock, until)) {
        found = entries_.find(id);
        if (found->second.done) break;
        found->second.waiter = nullptr;
        return WaitResult::kTimeout;
      }
      found = entries_.find(id);  // the table may have been rehashed
    }
    done = std::move(*found->second.done);
    finished_.erase(found->second.place);
    entries_.erase(found);
    return WaitResult::kDone;
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    Operation operation;
    std::optional<Done> done;
    std::condition_variable* waiter = nullptr;  // on the stack of the thread that waits for this one
    std::list<OperationId>::iterator place;
  };

  std::optional<Done> take_any_locked() {
    for (auto it = finished_.begin(); it != finished_.end(); ++it) {
      const auto found = entries_.find(*it);
      if (found->second.waiter != nullptr) continue;
      std::optional<Done> done = std::move(found->second.done);
      finished_.erase(it);
      entries_.erase(found);
      return done;
    }
    return std::nullopt;
  }

  template <typename TimePoint>
  static bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                         std::optional<TimePoint> until) {
    if (!until) {
      changed.wait(lock);
      return true;
    }
    return changed.wait_until(lock, *until) == std::cv_status::no_timeout;
  }

  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable unclaimed_;  // something finished that nobody waits for by name
  bool closed_ = false;
  std::unordered_map<OperationId, Entry> entries_;
  std::list<OperationId> finished_;
};

}  // namespace mlt::engine
