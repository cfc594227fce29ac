// Owns one mapping of memory (mmap) and unmaps it once.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace mlt::io {

class MemoryMapping {
 public:
  MemoryMapping() = default;
  // Takes the result of mmap(); a failed call gives an empty owner and leaves errno unchanged.
  MemoryMapping(void* address, std::size_t bytes)
      : address_(address == MAP_FAILED ? nullptr : address), bytes_(address_ == nullptr ? 0 : bytes) {}
  MemoryMapping(MemoryMapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryMapping& operator=(MemoryMapping&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  MemoryMapping(const MemoryMapping&) = delete;
  MemoryMapping& operator=(const MemoryMapping&) = delete;
  ~MemoryMapping() { reset(); }

  explicit operator bool() const { return address_ != nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(address_); }
  std::size_t bytes() const { return bytes_; }

  // Excludes the mapping from children that this process forks. False, with errno set, if the kernel rejects it.
  bool keep_from_children() { return ::madvise(address_, bytes_, MADV_DONTFORK) == 0; }

  void reset() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
    forget();
  }
  // In a child without the mapping: its address may be in use for something else.
  void forget() {
    address_ = nullptr;
    bytes_ = 0;
  }

 private:
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace mlt::io
