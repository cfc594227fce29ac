// One timer per slot, in a binary heap of fixed size: set, move and cancel in O(log n), no allocation after set-up.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/fixed_stack.h"
#include "base/time.h"

namespace mlt::core {

class TimerTable {
 public:
  explicit TimerTable(std::uint32_t slots) : heap_(slots), place_(slots, kNone) {}

  // Arms, moves or, with kNever, cancels the timer of `slot`.
  void set(std::uint32_t slot, base::TimeNs at) {
    if (at == base::kNever) return cancel(slot);
    std::uint32_t where = place_[slot];
    if (where == kNone) {
      where = static_cast<std::uint32_t>(heap_.size());
      heap_.push({at, slot});
      place_[slot] = where;
      sift_up(where);
      return;
    }
    const base::TimeNs before = heap_[where].at;
    heap_[where].at = at;
    at < before ? sift_up(where) : sift_down(where);
  }

  void cancel(std::uint32_t slot) {
    const std::uint32_t where = place_[slot];
    if (where == kNone) return;
    place_[slot] = kNone;
    const Entry last = heap_.pop();
    if (where == heap_.size()) return;
    heap_[where] = last;
    place_[last.slot] = where;
    sift_up(where);
    sift_down(place_[last.slot]);
  }

  base::TimeNs next() const { return heap_.empty() ? base::kNever : heap_[0].at; }

  // Removes and returns the slot of one timer that is due at `now`; false if there is none.
  bool pop_due(base::TimeNs now, std::uint32_t& slot) {
    if (next() > now) return false;
    slot = heap_[0].slot;
    cancel(slot);
    return true;
  }

 private:
  struct Entry {
    base::TimeNs at = 0;
    std::uint32_t slot = 0;
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // Ties go to the smaller slot, so that the order does not depend on history.
  static bool earlier(const Entry& a, const Entry& b) { return a.at != b.at ? a.at < b.at : a.slot < b.slot; }

  void swap_entries(std::uint32_t a, std::uint32_t b) {
    std::swap(heap_[a], heap_[b]);
    place_[heap_[a].slot] = a;
    place_[heap_[b].slot] = b;
  }
  void sift_up(std::uint32_t i) {
    while (i > 0 && earlier(heap_[i], heap_[(i - 1) / 2])) {
      swap_entries(i, (i - 1) / 2);
      i = (i - 1) / 2;
    }
  }
  void sift_down(std::uint32_t i) {
    const auto size = static_cast<std::uint32_t>(heap_.size());
    while (true) {
      std::uint32_t smallest = i;
      for (std::uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < size; ++child) {
        if (earlier(heap_[child], heap_[smallest])) smallest = child;
      }
      if (smallest == i) return;
      swap_entries(i, smallest);
      i = smallest;
    }
  }

  base::FixedStack<Entry> heap_;
  std::vector<std::uint32_t> place_;
};

}  // namespace mlt::core
