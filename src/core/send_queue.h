// Sends with unsent segments, the next in send order first. A heap whose links are fields of the sends: thousands of
// sends to one peer need no list traversal and no extra memory. A pairing heap (Fredman, Sedgewick, Sleator, Tarjan,
// Algorithmica 1986): insertion takes one comparison, removal amortised logarithmic time.
//
// Absent on purpose: which sends are queued and when they may leave (send_order.h, early_data_limit.h). Owned by the
// endpoint's Sender.
#pragma once

#include <cstdint>
#include <utility>

#include "core/slot_index.h"

namespace mlt::core {

struct SendQueueLinks {
  std::uint32_t child = kNil;
  std::uint32_t next = kNil;      // sibling; kNil: the last
  std::uint32_t previous = kNil;  // sibling, or the parent; kNil: the root
};

// `States`: an array whose elements have `queue`, a SendQueueLinks, and `goes_before(other)`, a strict order. The peer
// owns `root`: kNil if no send waits.
template <typename States>
class SendQueue {
 public:
  SendQueue(States& states, std::uint32_t& root) : states_(states), root_(root) {}

  void push(std::uint32_t slot) {
    states_[slot].queue = {};
    root_ = merge(root_, slot);
  }

  void erase(std::uint32_t slot) {
    SendQueueLinks& links = states_[slot].queue;
    const std::uint32_t below = merge_all(links.child);
    if (slot == root_) {
      root_ = below;
    } else {
      SendQueueLinks& before = states_[links.previous].queue;
      (before.child == slot ? before.child : before.next) = links.next;
      if (links.next != kNil) states_[links.next].queue.previous = links.previous;
      root_ = merge(root_, below);
    }
    if (root_ != kNil) states_[root_].queue.previous = kNil;
    links = {};
  }

 private:
  // Merges two trees, each given by its root, whose `next` is kNil.
  std::uint32_t merge(std::uint32_t a, std::uint32_t b) {
    if (a == kNil) return b;
    if (b == kNil) return a;
    if (states_[b].goes_before(states_[a])) std::swap(a, b);
    SendQueueLinks& upper = states_[a].queue;
    SendQueueLinks& lower = states_[b].queue;
    lower.next = upper.child;
    lower.previous = a;
    if (upper.child != kNil) states_[upper.child].queue.previous = b;
    upper.child = b;
    return a;
  }

  // Merges all trees of a row of siblings: in pairs from the left, then all into one from the right.
  std::uint32_t merge_all(std::uint32_t row) {
    std::uint32_t pairs = kNil;  // linked by `next`, the last pair first
    while (row != kNil) {
      const std::uint32_t a = row;
      const std::uint32_t b = states_[a].queue.next;
      row = b == kNil ? kNil : states_[b].queue.next;
      states_[a].queue.next = kNil;
      if (b != kNil) states_[b].queue.next = kNil;
      const std::uint32_t both = merge(a, b);
      states_[both].queue.next = pairs;
      pairs = both;
    }
    std::uint32_t all = kNil;
    while (pairs != kNil) {
      const std::uint32_t after = states_[pairs].queue.next;
      states_[pairs].queue.next = kNil;
      all = merge(all, pairs);
      pairs = after;
    }
    return all;
  }

  States& states_;
  std::uint32_t& root_;
};

}  // namespace mlt::core
