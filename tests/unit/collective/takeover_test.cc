#include "collective/takeover.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using mlt::collective::Takeover;

std::vector<std::byte> having(unsigned cells) { return {static_cast<std::byte>(cells)}; }

}  // namespace

TEST_CASE("takeover__waits_for_all_that_are_not_gone_and_takes_each_segment_from_one_worker") {
  Takeover takeover(3);
  CHECK(takeover.is_waiting());
  takeover.report(0, 4, having(0b001));
  CHECK(!takeover.finish({false, false, false}, 3));
  takeover.report(2, 4, having(0b011));
  CHECK(!takeover.finish({false, false, false}, 3));
  const auto outcome = takeover.finish({false, true, false}, 3);
  REQUIRE(outcome.has_value());
  CHECK(!takeover.is_waiting());
  CHECK(outcome->rounds == 4);
  CHECK(outcome->repetition.sources == std::vector<int>{0, 2, -1});
}

TEST_CASE("takeover__a_round_of_which_no_worker_has_anything_is_an_ordinary_one") {
  Takeover takeover(2);
  takeover.report(0, 2, {});
  takeover.report(1, 2, having(0));
  const auto outcome = takeover.finish({false, false}, 3);
  REQUIRE(outcome.has_value());
  CHECK(outcome->repetition.sources.empty());
}

TEST_CASE("takeover__a_worker_that_is_ahead_has_every_segment_and_none_of_a_newer_result") {
  for (const bool has_newer : {false, true}) {
    Takeover takeover(2);
    takeover.report(0, 1, having(0b010));
    takeover.report(1, 2, has_newer ? having(0b001) : having(0));
    const auto outcome = takeover.finish({false, false}, 3);
    REQUIRE(outcome.has_value());
    CHECK(outcome->has_newer == has_newer);
    CHECK(outcome->slowest == 0);
    if (has_newer) continue;
    CHECK(outcome->rounds == 1);
    CHECK(outcome->repetition.ahead == std::vector<bool>{false, true});
    CHECK(outcome->repetition.sources == std::vector<int>{1, 0, 1});
  }
}
