// Slots whose operation has ended, in order. Every operation has its place reserved when it is posted (one per slot),
// so the queue cannot overflow.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "core/event.h"

namespace mlt::core {

struct CompletedSlot {
  CompletionKind kind = CompletionKind::kSend;
  std::uint32_t slot = 0;
};

class CompletionQueue {
 public:
  explicit CompletionQueue(std::uint32_t capacity) : ring_(capacity) {}

  void push(CompletedSlot slot) {
    MLT_CHECK(size_ < ring_.size());
    ring_[(head_ + size_) % ring_.size()] = slot;
    ++size_;
  }
  bool pop(CompletedSlot& slot) {
    if (size_ == 0) return false;
    slot = ring_[head_];
    head_ = (head_ + 1) % ring_.size();
    --size_;
    return true;
  }
  std::size_t size() const { return size_; }

 private:
  std::vector<CompletedSlot> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace mlt::core
