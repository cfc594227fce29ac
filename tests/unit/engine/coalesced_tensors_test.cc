#include "engine/coalesced_tensors.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using mlt::engine::CoalescedTensors;

namespace {

std::span<std::byte> bytes_of(std::vector<std::uint16_t>& values) { return std::as_writable_bytes(std::span(values)); }

}  // namespace

TEST_CASE("coalesced_tensors__are_packed_in_order_and_change_only_in_unpack") {
  std::vector<std::uint16_t> first{1, 2}, none, last{3, 4, 5};
  CoalescedTensors tensors({bytes_of(first), bytes_of(none), bytes_of(last)}, true);
  CHECK(tensors.count() == 3);
  REQUIRE(tensors.packed().size() == 10);
  tensors.pack();
  auto* const values = reinterpret_cast<std::uint16_t*>(tensors.packed().data());
  CHECK(std::vector<std::uint16_t>(values, values + 5) == std::vector<std::uint16_t>{1, 2, 3, 4, 5});
  for (int i = 0; i < 5; ++i) values[i] = static_cast<std::uint16_t>(10 * values[i]);
  CHECK(first == std::vector<std::uint16_t>{1, 2});
  tensors.unpack();
  CHECK(first == std::vector<std::uint16_t>{10, 20});
  CHECK(last == std::vector<std::uint16_t>{30, 40, 50});
  CHECK(tensors.place_of(0, 2) == "element 0 of tensor 0");
  CHECK(tensors.place_of(2, 2) == "element 0 of tensor 2");
  CHECK(tensors.place_of(4, 2) == "element 2 of tensor 2");
}

TEST_CASE("coalesced_tensors__that_are_only_read_never_change") {
  std::vector<std::uint16_t> first{1}, last{2};
  CoalescedTensors tensors({bytes_of(first), bytes_of(last)}, false);
  tensors.pack();
  tensors.packed()[0] = std::byte{9};
  tensors.unpack();
  CHECK(first[0] == 1);
}

TEST_CASE("check__names_tensors_that_overlap_or_hold_no_whole_elements") {
  std::vector<std::uint16_t> values{1, 2, 3, 4};
  const std::span<std::byte> all = bytes_of(values);
  CHECK(CoalescedTensors::check({}, 2) == "");
  CHECK(CoalescedTensors::check({all.subspan(4), all.first(4)}, 2) == "");
  CHECK(CoalescedTensors::check({all.subspan(2, 0), all}, 2) == "");
  CHECK(CoalescedTensors::check({all.subspan(4), all.first(6)}, 2) ==
        "tensors 0 and 1 of the list overlap; pass separate memory");
  CHECK(CoalescedTensors::check({all, {}, all}, 2) == "tensors 0 and 2 of the list overlap; pass separate memory");
  CHECK(CoalescedTensors::check({all, all.first(3)}, 2) ==
        "tensor 1 of the list has 3 bytes, no multiple of the element's 2");
}
