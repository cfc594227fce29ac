// Operations of user threads: one record each, from the post until its completion is taken. Any thread.
//
// A record owns the operation's description (in parts: name() composes it for errors), its priorities, the reference
// that keeps its buffers alive, and its outcome. The completion passes all of these to the caller that takes it. Each
// completion has one taker: the thread that waits for the operation, else poll(), or next_watched() if the operation is
// watched.
//
// An id is a sequence number and the index of the record: no look-up is needed, and the id of a taken operation is
// never reused.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/lazy_array.h"
#include "core/importance.h"
#include "core/priority.h"
#include "engine/coalesced_tensors.h"
#include "engine/deadline.h"
#include "engine/driving.h"
#include "mlt.h"

namespace mlt::engine {

struct Operation {
  // "send of tag 7 (4096 bytes of float32) to rank 1".
  std::string name() const;

  Verb verb = Verb::kReceive;
  Element element = Element::kUint8;
  std::uint16_t peer = 0;   // of a send or receive
  std::uint64_t tag = 0;    // the key of a push-pull
  std::size_t members = 0;  // of a collective's group
  std::uint64_t total_bytes = 0;
  bool up_to = false;                             // of a receive: its size is a maximum
  std::vector<core::SegmentPriority> priorities;  // per segment; the endpoint reads them until the operation ends
  core::MagnitudeClassifier
      classifier;              // computes `priorities` while the tensor is sent, if the caller left them to the values
  std::shared_ptr<void> lent;  // see SendOptions
  std::unique_ptr<CoalescedTensors> coalesced;  // of a collective of a list of tensors
};

class OperationTable {
 public:
  // `limit` must be below kPlaces.
  OperationTable(std::size_t limit, Driving& driving) : limit_(limit), driving_(driving), unclaimed_(limit) {}

  struct Begun {
    OperationId id = 0;
    Operation* operation = nullptr;  // does not move until the operation ends
  };

  // Registers an operation before the event loop gets it. No record if the limit is reached or the table is closed:
  // after finish_all() nothing would end it. `operation` is unchanged then.
  Begun begin(Operation&& operation);
  // The same of several, all or none: false if they do not all fit. `begun` has one element for each.
  bool begin_all(std::span<Operation> operations, std::span<Begun> begun);
  // Withdraws an operation that never reached the event loop, and returns its name. finish_all() may have ended it.
  std::string forget(OperationId id);

  // Sends to and receives from `peer` in progress, including those that the loop does not have yet.
  std::vector<OperationId> transfers_with(std::uint16_t peer);

  // Name of an operation in progress. Requires the loop's lock: records are removed only after finish().
  std::string name(OperationId id);

  // Sets all of `done` but its verb, which the record has, and unpacks coalesced tensors if it has not failed. Wakes
  // only the thread that waits for this operation: a spurious wake-up would cost both threads.
  void finish(Completion done);
  // Ends every operation in progress as cancelled; `word(name)` returns the error text.
  void finish_all(const std::function<std::string(const std::string& name)>& word);

  // Oldest completed operation that is not watched and has no waiting thread. Allocates nothing, so that no completion
  // can be lost.
  std::optional<Completion> take_any();
  // Whether there is one.
  bool has_any();
  // Waits for one; empty on timeout, or if the table is closed and none is left.
  std::optional<Completion> next_any(std::optional<SteadyTime> until) { return next(false, until); }

  // From now on next_watched() returns its completion. False if the operation is unknown.
  bool watch(OperationId id);
  // Waits for the oldest completed watched operation; empty on timeout, or if the table is closed and none is left.
  std::optional<Completion> next_watched(std::optional<SteadyTime> until) { return next(true, until); }

  enum class WaitResult { kDone, kTimeout, kUnknown };

  // Only this thread gets the completion meanwhile. `now_and_then`, if set, is called every kSliceNs.
  static constexpr std::int64_t kSliceNs = 100'000'000;
  WaitResult wait(OperationId id, std::int64_t timeout_ns, const std::function<void()>& now_and_then, Completion& done);
  // Waits until all have ended, and is woken once. Takes all completions or, unless the result is kDone, none.
  // kUnknown: `unknown` is one that is unknown, that another thread waits for, or that is named twice. `done` has one
  // element for each.
  WaitResult wait_all(std::span<const OperationId> ids, std::int64_t timeout_ns,
                      const std::function<void()>& now_and_then, std::span<Completion> done, OperationId& unknown);

  // Takes the completion if the operation ended, and never waits. kTimeout: it is in progress.
  WaitResult test(OperationId id, Completion& done);
  // Whether an operation is in progress and no thread waits for it; takes no lock. False may be out of date.
  bool is_unclaimed(OperationId id) const {
    const OperationId place = id & (kPlaces - 1);
    return id != 0 && place < limit_ && std::atomic_ref(unclaimed_[place]).load(std::memory_order_acquire) == id;
  }
  // Whether it ended; empty if it is unknown or its completion was taken.
  std::optional<bool> is_done(OperationId id);
  // References lent to operations that ended and were not taken; to be called once all operations have ended.
  std::vector<std::shared_ptr<void>> take_lent();
  // Number of operations with a lent reference.
  std::size_t lending() const { return lending_.load(std::memory_order_relaxed); }

  std::size_t size();
  // Posted and not ended.
  std::size_t in_progress() const { return in_progress_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned kPlaceBits = 18;
  static constexpr OperationId kPlaces = OperationId{1} << kPlaceBits;

  // A thread that waits for one operation or several; with mutex_.
  struct Wait {
    Waiter waiter;
    std::size_t left = 0;  // that have not ended
  };

  struct Record {
    Operation operation;
    Completion done;
    OperationId id = 0;  // 0: free
    bool is_done = false;
    bool is_watched = false;
    Wait* wait = nullptr;  // on the stack of the thread that waits for this operation
    Record* previous = nullptr;
    Record* next = nullptr;  // in the list of completed ones that no thread waits for, oldest first
  };

  Begun begin_locked(Operation&& operation);
  Record* find(OperationId id);
  void withdraw(Record& record);
  void stop_waiting(std::span<const OperationId> ids);
  void link(Record& record);
  void unlink(Record& record);
  void set_unclaimed(const Record& record, bool is_unclaimed);
  void end(Record& record, Completion done);
  Completion take(Record& record);
  void free(Record& record);
  Record* oldest_unclaimed(bool is_watched);
  std::optional<Completion> take_any_locked(bool is_watched);
  std::optional<Completion> next(bool is_watched, std::optional<SteadyTime> until);
  void notify_unclaimed(const Record& record);

  const std::size_t limit_;
  Driving& driving_;
  // Per place: the id of its operation while is_unclaimed(), else 0. Written with mutex_.
  mutable base::ZeroedArray<OperationId> unclaimed_;
  std::mutex mutex_;
  std::vector<Waiter*> takers_[2];  // threads in next_any() and, at [true], in next_watched()
  std::atomic<std::size_t> in_progress_{0};
  std::atomic<std::size_t> lending_{0};
  bool closed_ = false;
  std::size_t size_ = 0;
  OperationId sequence_ = 0;
  std::deque<Record> records_;  // grows to the max number of simultaneous operations
  std::vector<Record*> free_;
  Record* oldest_ = nullptr;
  Record* newest_ = nullptr;
};

}  // namespace mlt::engine
