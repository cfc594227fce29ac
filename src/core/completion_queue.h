// Slots whose operation has ended, in order. A linked list through all slots, so that it cannot overflow. Fixed size;
// memory is touched as it is used.
#pragma once

#include <cstdint>

#include "base/lazy_array.h"
#include "core/event.h"
#include "core/slot_index.h"

namespace mlt::core {

struct CompletedSlot {
  CompletionKind kind = CompletionKind::kSend;
  std::uint32_t slot = 0;
};

class CompletionQueue {
 public:
  CompletionQueue(std::uint32_t sends, std::uint32_t receives) : sends_(sends), next_(std::size_t{sends} + receives) {}

  // A slot must not be pushed again before it is popped.
  void push(CompletedSlot slot) {
    const std::uint32_t place = slot.kind == CompletionKind::kSend ? slot.slot : sends_ + slot.slot;
    next_[place] = kNil;
    (size_ == 0 ? first_ : next_[last_]) = place;
    last_ = place;
    ++size_;
  }
  bool pop(CompletedSlot& slot) {
    if (size_ == 0) return false;
    const bool is_send = first_ < sends_;
    slot = {is_send ? CompletionKind::kSend : CompletionKind::kReceive, is_send ? first_ : first_ - sends_};
    first_ = next_[first_];
    --size_;
    return true;
  }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return next_.size(); }

 private:
  std::uint32_t sends_;
  base::ZeroedArray<std::uint32_t> next_;
  std::uint32_t first_ = kNil;
  std::uint32_t last_ = kNil;
  std::size_t size_ = 0;
};

}  // namespace mlt::core
