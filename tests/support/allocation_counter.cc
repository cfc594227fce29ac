#include "support/allocation_counter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

std::atomic<std::uint64_t> count{0};
std::atomic<std::uint64_t> bytes{0};
thread_local std::uint64_t left = kNoLimit;

void* allocate(std::size_t size, std::size_t alignment) {
  count.fetch_add(1, std::memory_order_relaxed);
  if (left == 0) throw std::bad_alloc();
  if (left != kNoLimit) --left;
  void* memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                     ? std::malloc(size == 0 ? 1 : size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  bytes.fetch_add(malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  bytes.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

namespace mlt::test {
std::uint64_t allocations() { return count.load(std::memory_order_relaxed); }
std::uint64_t allocated_bytes() { return bytes.load(std::memory_order_relaxed); }
AllocationLimit::AllocationLimit(std::uint64_t allowed) { left = allowed; }
AllocationLimit::~AllocationLimit() { left = kNoLimit; }
}  // namespace mlt::test

// The array forms call these by default, and so do the nothrow forms, but not those of the address sanitizer.
void* operator new(std::size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t align) { return allocate(size, static_cast<std::size_t>(align)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
