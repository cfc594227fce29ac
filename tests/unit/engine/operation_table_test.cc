#include "engine/operation_table.h"

#include <doctest/doctest.h>

#include <chrono>

using mlt::Completion;
using Table = mlt::engine::OperationTable<Completion>;

namespace {

template <typename Id>
Completion ended(Id id) {
  Completion done;
  done.operation = id;
  return done;
}

}  // namespace

TEST_CASE("forget__withdraws_an_operation_that_close_has_ended_already") {
  Table table(4);
  REQUIRE(table.begin(1, {}) != nullptr);
  REQUIRE(table.begin(2, {}) != nullptr);
  table.finish_all([](mlt::OperationId id, const auto&) { return ended(id); });
  table.forget(1);
  const auto taken = table.take_any();  // walked over the place of an entry that was gone
  REQUIRE(taken.has_value());
  CHECK(taken->operation == 2);
  CHECK_FALSE(table.take_any().has_value());
  CHECK(table.size() == 0);
}

TEST_CASE("begin__is_refused_once_everything_was_ended") {
  Table table(4);
  table.finish_all([](mlt::OperationId id, const auto&) { return ended(id); });
  CHECK(table.begin(1, {}) == nullptr);
}
