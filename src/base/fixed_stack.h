// A stack of fixed capacity: push() never allocates. A reserved std::vector promises that too, but no test can verify
// it in the compiled code. Memory is touched as it is used. Owned by one thread.
#pragma once

#include <cstddef>
#include <memory>

#include "base/check.h"

namespace mlt::base {

template <typename T>
class FixedStack {
 public:
  explicit FixedStack(std::size_t capacity)
      : items_(std::make_unique_for_overwrite<T[]>(capacity)), capacity_(capacity) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return items_[i]; }
  const T& operator[](std::size_t i) const { return items_[i]; }

  void push(const T& item) {
    MLT_CHECK(size_ < capacity_);
    items_[size_++] = item;
  }
  T pop() {
    MLT_CHECK(size_ > 0);
    return items_[--size_];
  }

 private:
  std::unique_ptr<T[]> items_;
  std::size_t capacity_;
  std::size_t size_ = 0;
};

}  // namespace mlt::base
