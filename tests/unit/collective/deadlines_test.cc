#include "collective/deadlines.h"

#include <doctest/doctest.h>

#include <optional>

namespace {

using mlt::base::kNever;
using mlt::collective::Deadlines;

}  // namespace

TEST_CASE("poll__gives_each_index_once_the_earliest_first") {
  Deadlines deadlines;
  CHECK(deadlines.next() == kNever);
  CHECK(!deadlines.poll(kNever));
  deadlines.set(7, 30);
  deadlines.set(2, 10);
  deadlines.set(5, 20);
  CHECK(deadlines.next() == 10);
  CHECK(!deadlines.poll(9));
  CHECK(deadlines.poll(20) == std::optional<std::uint32_t>{2});
  CHECK(deadlines.poll(20) == std::optional<std::uint32_t>{5});
  CHECK(!deadlines.poll(20));
  CHECK(!deadlines.has(2));
  CHECK(deadlines.has(7));
  CHECK(deadlines.poll(30) == std::optional<std::uint32_t>{7});
  CHECK(deadlines.next() == kNever);
}

TEST_CASE("set__replaces_the_deadline_of_an_index_and_never_clears_it") {
  Deadlines deadlines;
  deadlines.set(1, 10);
  deadlines.set(1, 40);
  CHECK(deadlines.of(1) == 40);
  CHECK(deadlines.next() == 40);
  deadlines.set(1, kNever);
  CHECK(!deadlines.has(1));
  CHECK(deadlines.next() == kNever);
  deadlines.set(3, 10);
  deadlines.clear(3);
  deadlines.clear(3);
  deadlines.clear(99);
  CHECK(deadlines.of(99) == kNever);
  CHECK(!deadlines.poll(100));
}
