#include "core/loss_budget.h"

#include <doctest/doctest.h>

namespace {

using mlt::core::LossBudget;
using mlt::core::SharedLossBudget;

TEST_CASE("covers__as_many_bytes_as_the_bound_allows") {
  const LossBudget budget(100, 4, 0.29);
  CHECK(budget.bytes() == 116);
  CHECK(budget.covers(116));
  CHECK_FALSE(budget.covers(117));
  CHECK(LossBudget(100, 4, 0.0).bytes() == 0);
  CHECK(LossBudget().covers(0));
  CHECK_FALSE(LossBudget().covers(1));
}

TEST_CASE("shrink__changes_the_bound_and_keeps_what_was_noted") {
  LossBudget budget(100, 4, 0.29);
  budget.note_dropped();
  budget.shrink(LossBudget(10, 4, 0.29));
  CHECK(budget.bytes() == 8);
  CHECK(budget.covers(8));
  CHECK_FALSE(budget.covers_loss(8, 0));
  CHECK(budget.covers_loss(8, 1));
  SharedLossBudget shared(100, 4, 0.01);
  LossBudget own(10, 4, 0.5);
  own.share(shared, 0);
  budget.shrink(own);
  CHECK(budget.bytes() == 4);
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

TEST_CASE("share__what_one_receive_does_not_use_another_may") {
  SharedLossBudget shared(400, 4, 0.1);  // 160 bytes
  LossBudget first(100, 4, 0.5), second(100, 4, 0.5), third(100, 4, 0.5);
  for (LossBudget* budget : {&first, &second, &third}) budget->share(shared, 64);
  CHECK(first.bytes() == 160);
  CHECK(first.covers(160));
  CHECK_FALSE(first.covers(161));
  first.settle(100);
  CHECK(first.bytes() == 160);  // what it might have missed
  CHECK(second.covers(60));
  CHECK_FALSE(second.covers(61));
  second.settle(0);
  CHECK(third.covers(60));
  third.settle(64);  // its deadline passed
  CHECK(third.bytes() == 60);
  CHECK(shared.left_bytes() == 0);
  CHECK_FALSE(first.covers(161));
}

TEST_CASE("share__no_receive_misses_more_than_its_own_bound_or_one_segment") {
  SharedLossBudget shared(1'000, 4, 0.5);
  LossBudget long_one(100, 4, 0.5), short_one(16, 4, 0.5), exact(100, 4, 0.0);
  for (LossBudget* budget : {&long_one, &short_one, &exact}) budget->share(shared, 64);
  CHECK(long_one.bytes() == 200);
  CHECK(short_one.bytes() == 64);
  CHECK(exact.bytes() == 64);
}

}  // namespace
