#include "core/loss_budget.h"

#include <doctest/doctest.h>

namespace {

using mlt::core::LossBudget;

TEST_CASE("covers__as_many_bytes_as_the_bound_allows") {
  const LossBudget budget(100, 4, 0.29);
  CHECK(budget.bytes() == 116);
  CHECK(budget.covers(116));
  CHECK_FALSE(budget.covers(117));
  CHECK(LossBudget(100, 4, 0.0).bytes() == 0);
  CHECK(LossBudget().covers(0));
  CHECK_FALSE(LossBudget().covers(1));
}

TEST_CASE("covers__nothing_before_all_critical_segments_arrived") {
  LossBudget budget(100, 4, 0.5);
  budget.expect_critical();
  budget.count_critical();
  CHECK_FALSE(budget.covers(0));  // how many there are is not known
  CHECK(budget.lacks_only_critical_number(200));
  CHECK_FALSE(budget.lacks_only_critical_number(201));
  budget.expect_critical(2);
  CHECK_FALSE(budget.covers(0));
  CHECK_FALSE(budget.lacks_only_critical_number(0));
  budget.count_critical();
  CHECK(budget.is_critical_complete());
  CHECK(budget.covers(200));
}

TEST_CASE("expect_critical__without_a_number_keeps_the_one_that_is_known") {
  LossBudget budget(100, 4, 0.5);
  budget.expect_critical(1);
  budget.expect_critical();
  budget.count_critical();
  CHECK(budget.covers(200));
}

TEST_CASE("covers_loss__not_of_the_first_round_if_a_segment_was_dropped_here") {
  LossBudget budget(100, 4, 0.5);
  CHECK(budget.covers_loss(200, 0));
  budget.note_dropped();
  CHECK_FALSE(budget.covers_loss(200, 0));
  CHECK(budget.covers_loss(200, 1));
  CHECK_FALSE(budget.covers_loss(201, 1));
  CHECK(budget.covers(200));  // an eager receive completes all the same
}

TEST_CASE("covers_loss__not_of_any_round_of_which_segments_may_have_been_dropped_here") {
  LossBudget budget(100, 4, 0.5);
  budget.note_dropped(254, 3);
  for (const int round : {254, 255, 0, 1}) CHECK_FALSE(budget.covers_loss(200, static_cast<std::uint8_t>(round)));
  for (const int round : {2, 100, 253}) CHECK(budget.covers_loss(200, static_cast<std::uint8_t>(round)));
  budget.note_dropped();  // of the first round, which is over
  CHECK_FALSE(budget.covers_loss(200, 255));
}

}  // namespace
