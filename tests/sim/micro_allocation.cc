// What a program that explores worlds allocates while one is in use lies in that world's memory (sim/micro_memory.h).
#include <cstdlib>
#include <new>

#include "sim/micro_memory.h"

namespace {

void* allocate(std::size_t size, std::size_t alignment) {
  if (void* memory = mlt::sim::WorldMemory::take_for_current(size, alignment)) return memory;
  void* memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                     ? std::malloc(size == 0 ? 1 : size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (!mlt::sim::WorldMemory::holds(memory)) std::free(memory);
}

}  // namespace

// The array and nothrow forms call these by default.
void* operator new(std::size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t align) { return allocate(size, static_cast<std::size_t>(align)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
