#include "io/os/memory_mapping.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

namespace mlt::io {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

MemoryMapping map_page() {
  return {::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), page_bytes()};
}

bool is_mapped(void* address) { return ::msync(address, page_bytes(), MS_ASYNC) == 0; }

TEST_CASE("memory_mapping__ends_with_its_owner") {
  void* address = nullptr;
  {
    const MemoryMapping mapping = map_page();
    REQUIRE(mapping);
    address = mapping.data();
    CHECK(mapping.bytes() == page_bytes());
    CHECK(is_mapped(address));
  }
  CHECK_FALSE(is_mapped(address));
}

TEST_CASE("memory_mapping__moves_and_is_taken_down_once") {
  MemoryMapping first = map_page();
  MemoryMapping second = map_page();
  void* kept = first.data();
  void* replaced = second.data();
  second = std::move(first);
  CHECK(is_mapped(kept));
  CHECK_FALSE(is_mapped(replaced));
  const MemoryMapping third(std::move(second));
  CHECK(third.data() == kept);
  CHECK(is_mapped(kept));
}

TEST_CASE("memory_mapping__failed_call_gives_an_empty_owner") {
  const MemoryMapping mapping(::mmap(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 0);
  CHECK(errno == EINVAL);
  CHECK_FALSE(mapping);
  CHECK(mapping.data() == nullptr);
}

TEST_CASE("memory_mapping__forgotten_is_left_mapped") {
  void* address = nullptr;
  {
    MemoryMapping mapping = map_page();
    address = mapping.data();
    mapping.forget();
    CHECK_FALSE(mapping);
  }
  CHECK(is_mapped(address));
  const MemoryMapping owner(address, page_bytes());
}

}  // namespace
}  // namespace mlt::io
