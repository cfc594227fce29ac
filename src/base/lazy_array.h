// Memory for a fixed number of objects, reserved at construction and touched only as objects are created. A table with
// a large limit thus costs only the memory in use. grow() never allocates. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "base/check.h"

namespace mlt::base {

template <typename T>
class LazyArray {
 public:
  explicit LazyArray(std::size_t capacity)
      : items_(capacity == 0 ? nullptr : static_cast<T*>(::operator new(capacity * sizeof(T), kAlignment))),
        capacity_(capacity) {}
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;
  LazyArray(LazyArray&& other) noexcept : items_(other.items_), size_(other.size_), capacity_(other.capacity_) {
    other.items_ = nullptr;
    other.size_ = other.capacity_ = 0;
  }
  LazyArray& operator=(LazyArray&&) = delete;
  ~LazyArray() {
    std::destroy_n(items_, size_);
    ::operator delete(items_, kAlignment);
  }

  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  T* data() { return items_; }
  const T* data() const { return items_; }
  T& operator[](std::size_t i) { return items_[i]; }
  const T& operator[](std::size_t i) const { return items_[i]; }
  T* begin() { return items_; }
  T* end() { return items_ + size_; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }

  // Creates one more object at the end.
  T& grow() {
    MLT_CHECK(size_ < capacity_);
    return *::new (static_cast<void*>(items_ + size_++)) T{};
  }

 private:
  static constexpr std::align_val_t kAlignment{alignof(T)};

  T* items_;
  std::size_t size_ = 0;
  std::size_t capacity_;
};

// An array of zeros, also touched only where it is used: the system creates pages of a large array on the first write.
template <typename T>
  requires std::is_trivial_v<T>
class ZeroedArray {
 public:
  explicit ZeroedArray(std::size_t size)
      : items_(static_cast<T*>(std::calloc(size == 0 ? 1 : size, sizeof(T))), &std::free), size_(size) {
    if (items_ == nullptr) throw std::bad_alloc();
  }

  std::size_t size() const { return size_; }
  T* data() { return items_.get(); }
  const T* data() const { return items_.get(); }
  T& operator[](std::size_t i) { return items_[i]; }
  const T& operator[](std::size_t i) const { return items_[i]; }

 private:
  std::unique_ptr<T[], void (*)(void*)> items_;
  std::size_t size_;
};

}  // namespace mlt::base
