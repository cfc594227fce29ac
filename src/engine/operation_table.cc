#include "engine/operation_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "collective/collective.h"
#include "engine/public_enums.h"
#include "wire/element.h"

namespace mlt::engine {

namespace {

const char* verb_text(Verb verb) {
  switch (verb) {
    case Verb::kSend:
      return "send";
    case Verb::kReceive:
      return "receive";
    case Verb::kAllReduce:
      return collective::collective_name(collective::CollectiveKind::kAllReduce);
    case Verb::kAllToAll:
      return collective::collective_name(collective::CollectiveKind::kAllToAll);
    case Verb::kGather:
      return collective::collective_name(collective::CollectiveKind::kGather);
    case Verb::kAllGather:
      return collective::collective_name(collective::CollectiveKind::kAllGather);
    case Verb::kReduceScatter:
      return collective::collective_name(collective::CollectiveKind::kReduceScatter);
    case Verb::kBroadcast:
      return collective::collective_name(collective::CollectiveKind::kBroadcast);
    case Verb::kReduce:
      return collective::collective_name(collective::CollectiveKind::kReduce);
    case Verb::kScatter:
      return collective::collective_name(collective::CollectiveKind::kScatter);
    case Verb::kBarrier:
      return collective::collective_name(collective::CollectiveKind::kBarrier);
    case Verb::kPushPull:
      return "push-pull";
  }
  return "unknown operation";
}

}  // namespace

std::string Operation::name() const {
  const std::string size = std::to_string(total_bytes) + " bytes of " + wire::element_name(wire_element(element));
  switch (verb) {
    case Verb::kSend:
      return "send of tag " + std::to_string(tag) + " (" + size + ") to rank " + std::to_string(peer);
    case Verb::kReceive:
      return "receive of tag " + std::to_string(tag) + " (" + (up_to ? "up to " : "") + size + ") from rank " +
             std::to_string(peer);
    case Verb::kPushPull:
      return "push-pull of key " + std::to_string(tag) + " (" + size + ")";
    case Verb::kBarrier:
      return "barrier over " + std::to_string(members) + " ranks";
    default:
      break;
  }
  const std::string list = coalesced ? std::to_string(coalesced->count()) + " tensors, " : "";
  return std::string(verb_text(verb)) + " of " + list + size + " over " + std::to_string(members) + " ranks";
}

OperationTable::Begun OperationTable::begin(Operation&& operation) {
  const std::lock_guard lock(mutex_);
  if (closed_ || size_ >= limit_) return {};
  return begin_locked(std::move(operation));
}

bool OperationTable::begin_all(std::span<Operation> operations, std::span<Begun> begun) {
  const std::lock_guard lock(mutex_);
  if (closed_ || operations.size() > limit_ - size_) return false;
  std::size_t count = 0;
  try {
    for (; count < operations.size(); ++count) begun[count] = begin_locked(std::move(operations[count]));
  } catch (...) {  // no memory
    while (count > 0) withdraw(*find(begun[--count].id));
    throw;
  }
  return true;
}

std::string OperationTable::forget(OperationId id) {
  const std::lock_guard lock(mutex_);
  Record* const record = find(id);
  if (record == nullptr) return {};
  std::string name = record->operation.name();
  withdraw(*record);
  return name;
}

std::vector<OperationId> OperationTable::transfers_with(std::uint16_t peer) {
  const std::lock_guard lock(mutex_);
  std::vector<OperationId> found;
  for (const Record& record : records_) {
    const bool is_transfer = record.operation.verb == Verb::kSend || record.operation.verb == Verb::kReceive;
    if (record.id != 0 && !record.is_done && is_transfer && record.operation.peer == peer) found.push_back(record.id);
  }
  return found;
}

std::string OperationTable::name(OperationId id) {
  const std::lock_guard lock(mutex_);
  const Record* const record = find(id);
  return record == nullptr ? std::string() : record->operation.name();
}

void OperationTable::finish(Completion done) {
  std::unique_lock lock(mutex_);
  Record* const record = find(done.operation);
  if (record == nullptr || record->is_done) return;
  if (const CoalescedTensors* const coalesced = record->operation.coalesced.get(); coalesced != nullptr) {
    // Without the mutex, which every thread that posts needs. The loop's lock keeps the record: only its holder ends
    // operations.
    lock.unlock();
    if (!done.failed()) coalesced->unpack();
    lock.lock();
  }
  end(*record, std::move(done));
  if (record->wait == nullptr) notify_unclaimed(*record);
}

void OperationTable::finish_all(const std::function<std::string(const std::string& name)>& word) {
  const std::lock_guard lock(mutex_);
  for (Record& record : records_) {
    if (record.id == 0 || record.is_done) continue;
    Completion done;
    done.operation = record.id;
    done.peer = record.operation.peer;
    done.tag = record.operation.tag;
    done.total_bytes = record.operation.total_bytes;
    done.status = Status::kCancelled;
    done.error = word(record.operation.name());
    end(record, std::move(done));
  }
  closed_ = true;
  for (const std::vector<Waiter*>& takers : takers_) {
    for (Waiter* const taker : takers) driving_.notify(*taker);
  }
}

std::optional<Completion> OperationTable::take_any() {
  const std::lock_guard lock(mutex_);
  return take_any_locked(false);
}

bool OperationTable::has_any() {
  const std::lock_guard lock(mutex_);
  return oldest_unclaimed(false) != nullptr;
}

bool OperationTable::watch(OperationId id) {
  const std::lock_guard lock(mutex_);
  Record* const record = find(id);
  if (record == nullptr) return false;
  record->is_watched = true;
  if (record->is_done && record->wait == nullptr) notify_unclaimed(*record);
  return true;
}

std::optional<Completion> OperationTable::next(bool is_watched, std::optional<SteadyTime> until) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (std::optional<Completion> done = take_any_locked(is_watched)) return done;
    if (closed_) return std::nullopt;
    Waiter waiter;
    takers_[is_watched].push_back(&waiter);
    lock.unlock();
    bool in_time = false;
    try {
      in_time = driving_.wait(waiter, until);
    } catch (...) {  // no memory
      lock.lock();
      std::erase(takers_[is_watched], &waiter);
      throw;
    }
    lock.lock();
    std::erase(takers_[is_watched], &waiter);
    if (!in_time) return take_any_locked(is_watched);
  }
}

OperationTable::WaitResult OperationTable::wait(OperationId id, std::int64_t timeout_ns,
                                                const std::function<void()>& now_and_then, Completion& done) {
  OperationId unknown = 0;
  return wait_all({&id, 1}, timeout_ns, now_and_then, {&done, 1}, unknown);
}

OperationTable::WaitResult OperationTable::wait_all(std::span<const OperationId> ids, std::int64_t timeout_ns,
                                                    const std::function<void()>& now_and_then,
                                                    std::span<Completion> done, OperationId& unknown) {
  std::unique_lock lock(mutex_);
  Wait wait;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Record* const record = find(ids[i]);
    if (record == nullptr || record->wait != nullptr) {
      unknown = ids[i];
      for (const OperationId earlier : ids.first(i)) find(earlier)->wait = nullptr;
      return WaitResult::kUnknown;
    }
    record->wait = &wait;
  }
  for (const OperationId id : ids) {
    Record& record = *find(id);
    if (record.is_done) {
      unlink(record);
    } else {
      ++wait.left;
      set_unclaimed(record, false);
    }
  }
  if (wait.left > 0) {
    try {
      const std::optional<SteadyTime> until = deadline_after(timeout_ns);
      while (wait.left > 0) {
        lock.unlock();
        std::optional<SteadyTime> slice = until;
        if (now_and_then) {
          slice = *deadline_after(kSliceNs);
          if (until) slice = std::min(*slice, *until);
        }
        driving_.wait(wait.waiter, slice);
        lock.lock();
        if (wait.left == 0 || !now_and_then || slice == until) break;
        lock.unlock();
        now_and_then();
        lock.lock();
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      stop_waiting(ids);
      throw;
    }
    if (wait.left > 0) {
      stop_waiting(ids);
      return WaitResult::kTimeout;
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) done[i] = take(*find(ids[i]));
  return WaitResult::kDone;
}

OperationTable::WaitResult OperationTable::test(OperationId id, Completion& done) {
  const std::lock_guard lock(mutex_);
  Record* const record = find(id);
  if (record == nullptr || record->wait != nullptr) return WaitResult::kUnknown;
  if (!record->is_done) return WaitResult::kTimeout;
  done = take(*record);
  return WaitResult::kDone;
}

std::optional<bool> OperationTable::is_done(OperationId id) {
  const std::lock_guard lock(mutex_);
  const Record* const record = find(id);
  if (record == nullptr) return std::nullopt;
  return record->is_done;
}

std::vector<std::shared_ptr<void>> OperationTable::take_lent() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<void>> lent;
  for (Record& record : records_) {
    if (record.is_done && record.operation.lent) {
      lent.push_back(std::move(record.operation.lent));
      lending_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  return lent;
}

std::size_t OperationTable::size() {
  const std::lock_guard lock(mutex_);
  return size_;
}

// ---- with mutex_ ---------------------------------------------------------------------------------------------------

OperationTable::Begun OperationTable::begin_locked(Operation&& operation) {
  OperationId place = records_.size();
  Record* record = nullptr;
  if (free_.empty()) {
    record = &records_.emplace_back();
    // Taking a completion must not allocate: free() finds a slot for every record.
    if (free_.capacity() < records_.size()) free_.reserve(2 * records_.size());
  } else {
    record = free_.back();
    free_.pop_back();
    place = record->done.operation & (kPlaces - 1);
  }
  record->operation = std::move(operation);
  record->id = ++sequence_ << kPlaceBits | place;
  set_unclaimed(*record, true);
  ++size_;
  in_progress_.fetch_add(1, std::memory_order_relaxed);
  if (record->operation.lent) lending_.fetch_add(1, std::memory_order_relaxed);
  return {record->id, &record->operation};
}

void OperationTable::withdraw(Record& record) {
  if (!record.is_done) in_progress_.fetch_sub(1, std::memory_order_relaxed);
  free(record);
}

OperationTable::Record* OperationTable::find(OperationId id) {
  const OperationId place = id & (kPlaces - 1);
  if (id == 0 || place >= records_.size() || records_[place].id != id) return nullptr;
  return &records_[place];
}

void OperationTable::set_unclaimed(const Record& record, bool is_unclaimed) {
  std::atomic_ref(unclaimed_[record.id & (kPlaces - 1)])
      .store(is_unclaimed ? record.id : OperationId{0}, std::memory_order_release);
}

void OperationTable::end(Record& record, Completion done) {
  set_unclaimed(record, false);
  record.done = std::move(done);
  record.done.verb = record.operation.verb;
  record.done.is_send = record.operation.verb == Verb::kSend;
  record.is_done = true;
  if (record.wait == nullptr) link(record);
  in_progress_.fetch_sub(1, std::memory_order_relaxed);
  // The waiter exists until its thread has taken mutex_ itself.
  if (record.wait != nullptr && --record.wait->left == 0) driving_.notify(record.wait->waiter);
}

// The operations have other takers again.
void OperationTable::stop_waiting(std::span<const OperationId> ids) {
  for (const OperationId id : ids) {
    Record& record = *find(id);
    record.wait = nullptr;
    if (record.is_done) {
      link(record);
      notify_unclaimed(record);
    } else {
      set_unclaimed(record, true);
    }
  }
}

void OperationTable::link(Record& record) {
  record.previous = newest_;
  record.next = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->next) = &record;
  newest_ = &record;
}

void OperationTable::unlink(Record& record) {
  (record.previous == nullptr ? oldest_ : record.previous->next) = record.next;
  (record.next == nullptr ? newest_ : record.next->previous) = record.previous;
}

Completion OperationTable::take(Record& record) {
  Completion done = std::move(record.done);
  done.lent = std::move(record.operation.lent);
  if (done.lent) lending_.fetch_sub(1, std::memory_order_relaxed);
  free(record);
  return done;
}

void OperationTable::free(Record& record) {
  if (record.is_done && record.wait == nullptr) unlink(record);
  if (record.operation.lent) lending_.fetch_sub(1, std::memory_order_relaxed);
  const OperationId id = record.id;
  set_unclaimed(record, false);
  record = Record{};
  record.done.operation = id;  // contains the slot
  free_.push_back(&record);
  --size_;
}

// Notifies of a completion that no thread waits for individually: only those that may take it.
void OperationTable::notify_unclaimed(const Record& record) {
  for (Waiter* const taker : takers_[record.is_watched]) driving_.notify(*taker);
}

OperationTable::Record* OperationTable::oldest_unclaimed(bool is_watched) {
  for (Record* record = oldest_; record != nullptr; record = record->next) {
    if (record->is_watched == is_watched) return record;
  }
  return nullptr;
}

std::optional<Completion> OperationTable::take_any_locked(bool is_watched) {
  Record* const record = oldest_unclaimed(is_watched);
  if (record == nullptr) return std::nullopt;
  return take(*record);
}

}  // namespace mlt::engine
