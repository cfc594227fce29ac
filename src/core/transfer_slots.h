// The transfers of one direction, each in a slot: found by its id while packets of it count, by its operation until the
// slot is free again. The sender and the receiver have one each.
//
// Invariants: a state does not move, and its slot keeps its number; a listed state's peer, tag and generation change
// only in renumber(); a free slot is in neither index. Fixed size; memory is touched as it is used. Owned by the
// endpoint's Sender or Receiver, used by one thread.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/fixed_stack.h"
#include "base/lazy_array.h"
#include "core/event.h"
#include "core/slot_index.h"
#include "core/tag_table.h"

namespace mlt::core {

// `State`: SendState or ReceiveState. It has `request.peer`, `request.operation`, `generation`, transfer() and
// is_free().
template <typename State>
class TransferSlots {
 public:
  explicit TransferSlots(std::uint32_t slots)
      : states_(slots), free_(slots), by_transfer_(slots), by_operation_(slots) {}

  bool is_full() const { return free_.empty() && states_.size() == states_.capacity(); }
  // A new state, not listed yet; none may be left to take if is_full().
  State& take() {
    State& state = free_.empty() ? states_.grow() : states_[free_.pop()];
    MLT_CHECK(state.is_free());
    state = State{};
    return state;
  }

  // From now on both find() and find_operation() return it.
  void list(const State& state) {
    by_transfer_.insert(hash_of(state), slot_of(state));
    by_operation_.insert(hash_tag(0, state.request.operation), slot_of(state));
  }
  // From now on find() does not: packets of the transfer are stale.
  void unlist(const State& state) { by_transfer_.erase(hash_of(state), slot_of(state)); }
  void renumber(State& state, std::uint32_t generation) {
    unlist(state);
    state.generation = generation;
    by_transfer_.insert(hash_of(state), slot_of(state));
  }
  // Frees the slot of a state that is not listed; its operation is forgotten.
  void free(const State& state) {
    MLT_CHECK(state.is_free());
    by_operation_.erase(hash_tag(0, state.request.operation), slot_of(state));
    free_.push(slot_of(state));
  }

  // The listed transfer; nullptr if there is none.
  State* find(std::uint16_t peer, const wire::TransferId& transfer) {
    const std::uint64_t hash = hash_transfer(peer, transfer);
    for (std::uint32_t slot = by_transfer_.first(hash); slot != kNil; slot = by_transfer_.next(slot)) {
      State& state = states_[slot];
      if (state.request.peer == peer && state.transfer() == transfer) return &state;
    }
    return nullptr;
  }
  // The newest transfer of the operation that `accepts` takes; nullptr if there is none.
  template <typename Accepts>
  State* find_operation(OperationId operation, Accepts&& accepts) {
    const std::uint64_t hash = hash_tag(0, operation);
    for (std::uint32_t slot = by_operation_.first(hash); slot != kNil; slot = by_operation_.next(slot)) {
      State& state = states_[slot];
      if (state.request.operation == operation && accepts(state)) return &state;
    }
    return nullptr;
  }

  std::uint32_t slot_of(const State& state) const { return static_cast<std::uint32_t>(&state - states_.data()); }
  State& operator[](std::uint32_t slot) { return states_[slot]; }
  const State& operator[](std::uint32_t slot) const { return states_[slot]; }
  // Every slot that was ever used, free ones included.
  State* begin() { return states_.begin(); }
  State* end() { return states_.end(); }
  const State* begin() const { return states_.begin(); }
  const State* end() const { return states_.end(); }

  std::size_t used() const { return states_.size() - free_.size(); }
  std::size_t limit() const { return states_.capacity(); }

 private:
  static std::uint64_t hash_of(const State& state) { return hash_transfer(state.request.peer, state.transfer()); }

  base::LazyArray<State> states_;
  base::FixedStack<std::uint32_t> free_;  // slots that were used before
  SlotIndex by_transfer_;
  SlotIndex by_operation_;
};

}  // namespace mlt::core
