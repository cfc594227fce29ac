#include "core/parity_store.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace mlt;
using core::ParityStore;

namespace {

std::vector<std::byte> filled(std::uint8_t value) { return std::vector<std::byte>(16, std::byte{value}); }

std::size_t found(ParityStore& store, const ParityStore::List& list, std::uint32_t block) {
  std::array<std::uint8_t, 8> indices;
  std::array<std::byte*, 8> bytes;
  const std::size_t count = store.find(list, block, indices, bytes);
  for (std::size_t i = 0; i < count; ++i) CHECK(bytes[i][15] == std::byte{indices[i]});
  return count;
}

}  // namespace

TEST_CASE("parity_store__keeps_packets_by_block_and_index_until_they_are_released") {
  ParityStore store(4, 16);
  ParityStore::List a, b;
  CHECK(store.keep(a, 0, 1, filled(1)));
  CHECK(store.keep(a, 5, 2, filled(2)));
  CHECK(store.keep(a, 0, 3, filled(3)));
  CHECK(store.keep(b, 0, 1, filled(1)));
  CHECK(store.used() == 4);
  CHECK_FALSE(store.keep(b, 0, 2, filled(2)));
  CHECK(store.has(a, 0, 1));
  CHECK_FALSE(store.has(a, 5, 1));
  CHECK(found(store, a, 0) == 2);
  CHECK(found(store, a, 5) == 1);
  CHECK(found(store, a, 1) == 0);
  store.release(a, 0);
  CHECK(store.used() == 2);
  CHECK(found(store, a, 0) == 0);
  CHECK(found(store, a, 5) == 1);
  CHECK(found(store, b, 0) == 1);
  CHECK(store.keep(b, 0, 2, filled(2)));
  CHECK(found(store, b, 0) == 2);
  store.release_all(a);
  store.release_all(b);
  CHECK(a.empty());
  CHECK(store.used() == 0);
  for (std::uint8_t i = 0; i < 4; ++i) CHECK(store.keep(a, 1, i, filled(i)));
  CHECK_FALSE(store.keep(a, 1, 4, filled(4)));
}

TEST_CASE("parity_store__finds_as_many_as_asked_for") {
  ParityStore store(8, 16);
  ParityStore::List list;
  for (std::uint8_t i = 0; i < 6; ++i) CHECK(store.keep(list, 2, i, filled(i)));
  std::array<std::uint8_t, 3> indices;
  std::array<std::byte*, 3> bytes;
  CHECK(store.find(list, 2, indices, bytes) == 3);
}
