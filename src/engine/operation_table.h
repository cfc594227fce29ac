// Operations of user threads: pinned from post to the moment their completion is taken. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
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
#include "engine/driving.h"
#include "mlt.h"

namespace mlt::engine {

// What the table keeps of an operation while it is under way; the event loop reads it to word an error.
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
  OperationTable(std::size_t limit, Driving& driving) : limit_(limit), driving_(driving) {}

  // Registers an operation before it is handed to the event loop; nullptr if the limit is reached or the table closed:
  // after finish_all() nobody would end it.
  Operation* begin(OperationId id, Operation operation) {
    const std::lock_guard lock(mutex_);
    if (closed_ || entries_.size() >= limit_) return nullptr;
    Entry& entry = entries_[id];
    entry.operation = std::move(operation);
    in_progress_.fetch_add(1, std::memory_order_relaxed);
    return &entry.operation;
  }

  // Withdraws an operation that never reached the event loop. finish_all() may have ended it meanwhile.
  void forget(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    if (found->second.done) {
      finished_.erase(found->second.place);
    } else {
      in_progress_.fetch_sub(1, std::memory_order_relaxed);
    }
    entries_.erase(found);
  }

  // Description of an operation under way. With the loop's lock: entries are only erased after finish().
  std::string what(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    return found == entries_.end() ? std::string() : found->second.operation.what;
  }

  // Which verb an operation under way is of. With the loop's lock.
  Verb verb(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    return found == entries_.end() ? Verb::kReceive : found->second.operation.verb;
  }

  // Wakes who waits for this operation and nobody else: a thread that is woken in vain goes to sleep again, at the cost
  // of both.
  void finish(Done done) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(done.operation);
    if (found == entries_.end() || found->second.done) return;
    end(found->first, found->second, std::move(done));
    if (found->second.waiter == nullptr) notify_unclaimed();
  }

  // Ends every operation that is not done; `make(id, operation)` words its completion.
  template <typename Make>
  void finish_all(Make&& make) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, entry] : entries_) {
      if (!entry.done) end(id, entry, make(id, std::as_const(entry.operation)));
    }
    closed_ = true;
    notify_unclaimed();
  }

  // Oldest finished operation nobody waits for.
  std::optional<Done> take_any() {
    const std::lock_guard lock(mutex_);
    return take_any_locked();
  }

  // As take_any(), but waits; nothing when the time is up, or all is closed and taken.
  std::optional<Done> wait_any(std::optional<SteadyTime> until) {
    std::unique_lock lock(mutex_);
    while (true) {
      if (std::optional<Done> done = take_any_locked()) return done;
      if (closed_) return std::nullopt;
      Waiter waiter;
      any_waiters_.push_back(&waiter);
      lock.unlock();
      const bool in_time = driving_.wait(waiter, until);
      lock.lock();
      std::erase(any_waiters_, &waiter);
      if (!in_time) return take_any_locked();
    }
  }

  enum class WaitResult { kDone, kTimeout, kUnknown };

  WaitResult wait(OperationId id, std::optional<SteadyTime> until, Done& done) {
    std::unique_lock lock(mutex_);
    auto found = entries_.find(id);
    if (found == entries_.end() || found->second.waiter != nullptr) return WaitResult::kUnknown;
    if (!found->second.done) {
      Waiter waiter;
      found->second.waiter = &waiter;
      lock.unlock();
      driving_.wait(waiter, until);
      lock.lock();
      found = entries_.find(id);  // the table may have been rehashed
      found->second.waiter = nullptr;
      if (!found->second.done) return WaitResult::kTimeout;
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
  // Posted and not ended.
  std::size_t in_progress() const { return in_progress_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    Operation operation;
    std::optional<Done> done;
    Waiter* waiter = nullptr;  // on the stack of the thread that waits for this one
    std::list<OperationId>::iterator place;
  };

  void end(OperationId id, Entry& entry, Done done) {
    entry.done = std::move(done);
    entry.place = finished_.insert(finished_.end(), id);
    in_progress_.fetch_sub(1, std::memory_order_relaxed);
    // Under the lock: the waiter is there until it has taken the lock itself.
    if (entry.waiter != nullptr) driving_.notify(*entry.waiter);
  }

  void notify_unclaimed() {
    for (Waiter* waiter : any_waiters_) driving_.notify(*waiter);
  }

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

  const std::size_t limit_;
  Driving& driving_;
  std::mutex mutex_;
  std::vector<Waiter*> any_waiters_;  // for something that nobody waits for by name
  std::atomic<std::size_t> in_progress_{0};
  bool closed_ = false;
  std::unordered_map<OperationId, Entry> entries_;
  std::list<OperationId> finished_;
};

}  // namespace mlt::engine
