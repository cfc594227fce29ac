// Operations of user threads: one record each, from the post to the moment its completion is taken. Any thread.
//
// A record owns the operation's name (in parts: name() composes it when an error needs it), its tags, what keeps its
// buffers alive, and how it ended. Whoever takes the completion gets all of it. A completion has one taker: the thread
// that waits for the operation, else poll(), or next_watched() if the operation is watched.
//
// An id is a sequence number and the place of the record: nothing is looked up, and the id of an operation that was
// taken names no other one later.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/importance.h"
#include "core/priority.h"
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
  std::vector<core::SegmentTag> tags;  // per segment; the endpoint reads them until the operation is done
  core::MagnitudeTagger tagger;        // fills `tags` while the tensor is sent, if the caller left them to the values
  std::shared_ptr<void> lent;          // see SendOptions
};

class OperationTable {
 public:
  // `limit` is below kPlaces.
  OperationTable(std::size_t limit, Driving& driving) : limit_(limit), driving_(driving) {}

  struct Begun {
    OperationId id = 0;
    Operation* operation = nullptr;  // stays where it is until it ended
  };

  // Registers an operation before it is handed to the event loop; no record if the limit is reached or the table
  // closed: after finish_all() nobody would end it. `operation` is left as it was then.
  Begun begin(Operation&& operation);
  // Withdraws an operation that never reached the event loop, and says its name. finish_all() may have ended it.
  std::string forget(OperationId id);

  // Name of an operation under way. With the loop's lock: records only go after finish().
  std::string name(OperationId id);

  // `done` but its verb, which is the record's. Wakes who waits for this operation and nobody else: a thread that is
  // woken in vain goes to sleep again, at the cost of both.
  void finish(Completion done);
  // Ends every operation that is not done as cancelled; `word(name)` says why.
  void finish_all(const std::function<std::string(const std::string& name)>& word);

  // Oldest finished operation that nobody waits for, of those that are not watched.
  std::optional<Completion> take_any();

  // From now on its completion goes to next_watched(). False if it is not known.
  bool watch(OperationId id);
  // Waits for the oldest finished operation of those watched; nothing when the time is up, or all is closed and taken.
  std::optional<Completion> next_watched(std::optional<SteadyTime> until);

  enum class WaitResult { kDone, kTimeout, kUnknown };

  // Nobody else gets the completion meanwhile. `now_and_then`, if there is one, is called every kSliceNs.
  static constexpr std::int64_t kSliceNs = 100'000'000;
  WaitResult wait(OperationId id, std::int64_t timeout_ns, const std::function<void()>& now_and_then, Completion& done);

  // Whether it ended and was not taken; nothing if it is not known.
  std::optional<bool> is_done(OperationId id);
  // What operations were lent that are done and not taken: to be called once everything was ended.
  std::vector<std::shared_ptr<void>> take_lent();
  // Operations that were lent something.
  std::size_t lending() const { return lending_.load(std::memory_order_relaxed); }

  std::size_t size();
  // Posted and not ended.
  std::size_t in_progress() const { return in_progress_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned kPlaceBits = 18;
  static constexpr OperationId kPlaces = OperationId{1} << kPlaceBits;

  struct Record {
    Operation operation;
    Completion done;
    OperationId id = 0;  // 0: free
    bool is_done = false;
    bool is_watched = false;
    Waiter* waiter = nullptr;  // on the stack of the thread that waits for this one
    Record* previous = nullptr;
    Record* next = nullptr;  // of those that are done, oldest first
  };

  Record* find(OperationId id);
  void end(Record& record, Completion done);
  Completion take(Record& record);
  void free(Record& record);
  std::optional<Completion> take_any_locked(bool is_watched);
  void notify_unclaimed(const Record& record);

  const std::size_t limit_;
  Driving& driving_;
  std::mutex mutex_;
  std::vector<Waiter*> watchers_;  // in next_watched()
  std::atomic<std::size_t> in_progress_{0};
  std::atomic<std::size_t> lending_{0};
  bool closed_ = false;
  std::size_t size_ = 0;
  OperationId sequence_ = 0;
  std::deque<Record> records_;  // grows to the most that were there at once
  std::vector<Record*> free_;
  Record* oldest_ = nullptr;
  Record* newest_ = nullptr;
};

}  // namespace mlt::engine
