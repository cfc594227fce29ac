// What a program that explores worlds allocates while one is in use lies in that world's memory (sim/micro_memory.h):
// what comes from operator new, and from the calloc() of base::ZeroedArray, which the linker sends here (--wrap).
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "sim/micro_memory.h"

extern "C" {
void* __real_calloc(std::size_t count, std::size_t size);  // NOLINT: the linker's names
void __real_free(void* memory);                            // NOLINT

void* __wrap_calloc(std::size_t count, std::size_t size) {  // NOLINT
  if (size != 0 && count > ~std::size_t{0} / size) return nullptr;
  void* memory = mlt::sim::WorldMemory::take_for_current(count * size, alignof(std::max_align_t));
  return memory == nullptr ? __real_calloc(count, size) : std::memset(memory, 0, count * size);
}

void __wrap_free(void* memory) {  // NOLINT
  if (!mlt::sim::WorldMemory::holds(memory)) __real_free(memory);
}
}

namespace {

void* allocate(std::size_t size, std::size_t alignment) {
  if (void* memory = mlt::sim::WorldMemory::take_for_current(size, alignment)) return memory;
  void* memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                     ? std::malloc(size == 0 ? 1 : size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept { std::free(memory); }

}  // namespace

// The array forms too: a sanitizer's own do not call these. Nothing here uses the nothrow forms.
void* operator new(std::size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t align) { return allocate(size, static_cast<std::size_t>(align)); }
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, std::align_val_t align) { return operator new(size, align); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
