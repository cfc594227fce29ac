// The event queue: ordered by time, and by order of scheduling at equal times, so that a run is the same on every host.
//
// A four-ary heap of small plain entries: wider than binary, because one cache line then holds most of a node's
// children. Absent on purpose: cancelling. The scheduler ignores an obsolete event when it fires.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace mlt::sim {

enum class EventKind : std::uint8_t {
  kArrival,  // target: edge, argument: packet; it has crossed the link
  kPort,     // target: edge; the port has sent a packet and others wait
  kTurn,     // target: host; it reads its socket and runs its timers
  kAction,   // argument: what the scenario scheduled
  kMessage,  // target: index of a message on its control connection
};

struct Event {
  base::TimeNs at = 0;
  std::uint64_t number = 0;
  std::uint32_t target = 0;
  std::uint32_t argument = 0;
  EventKind kind = EventKind::kAction;
};

class EventHeap {
 public:
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  base::TimeNs next_at() const { return heap_.empty() ? base::kNever : heap_.front().at; }

  void push(base::TimeNs at, EventKind kind, std::uint32_t target, std::uint32_t argument) {
    const Event event{at, pushed_++, target, argument, kind};
    std::size_t hole = heap_.size();
    heap_.push_back(event);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / kChildren;
      if (!before(event, heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  // The heap must not be empty.
  Event pop() {
    const Event top = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return top;
    std::size_t hole = 0;
    for (;;) {
      const std::size_t first = hole * kChildren + 1;
      if (first >= heap_.size()) break;
      const std::size_t end = first + kChildren < heap_.size() ? first + kChildren : heap_.size();
      std::size_t smallest = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (before(heap_[child], heap_[smallest])) smallest = child;
      }
      if (!before(heap_[smallest], last)) break;
      heap_[hole] = heap_[smallest];
      hole = smallest;
    }
    heap_[hole] = last;
    return top;
  }

 private:
  static constexpr std::size_t kChildren = 4;
  static bool before(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.number < b.number; }

  std::vector<Event> heap_;
  std::uint64_t pushed_ = 0;
};

}  // namespace mlt::sim
