#include "allocation_counter.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace {
std::atomic<std::uint64_t> allocations_so_far{0};

void* counted(std::size_t size) {
  allocations_so_far.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

std::uint64_t mlt::io_test::allocations() { return allocations_so_far.load(std::memory_order_relaxed); }

TEST_CASE("allocations__counts_operator_new") {
  const std::uint64_t before = mlt::io_test::allocations();
  auto memory = std::make_unique<std::uint64_t>(before);
  CHECK(mlt::io_test::allocations() == before + (*memory == before ? 1 : 0));
}
