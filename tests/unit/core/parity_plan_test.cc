#include "core/parity_plan.h"

#include <doctest/doctest.h>

#include "core/erasure_code.h"

using namespace mlt;
using core::ParityConditions;
using core::ParityPlan;
using core::plan_parity;

namespace {

// 1 MiB over 1 Gbit/s and 10 ms, of which a hundredth is lost.
ParityConditions conditions() {
  ParityConditions made;
  made.segments = 733;
  made.segment_bytes = 1'432;
  made.loss = 0.01;
  made.round_trip_ns = 10 * base::kMillisecond;
  made.rate_bytes_per_second = 1.25e8;
  made.min_round_trip_ns = 500 * base::kMicrosecond;
  return made;
}

}  // namespace

TEST_CASE("plan_parity__makes_a_repair_round_improbable") {
  const ParityPlan plan = plan_parity(conditions());
  CHECK(plan.blocks == 4);
  CHECK(plan.block_segments == 184);
  CHECK(plan.block_parities == 8);
  CHECK(core::block_failure(184, 8, 0.01) <= 0.0025 / 4);
  CHECK(core::block_failure(184, 7, 0.01) > 0.0025 / 4);
}

TEST_CASE("plan_parity__is_off_where_nothing_is_lost_or_too_much_or_round_trips_are_short_or_unknown") {
  const auto off = [](auto change) {
    ParityConditions changed = conditions();
    change(changed);
    return plan_parity(changed).packets() == 0;
  };
  CHECK(off([](ParityConditions& it) { it.loss = 0; }));
  CHECK(off([](ParityConditions& it) { it.loss = 0.1; }));
  CHECK(off([](ParityConditions& it) { it.round_trip_ns = 0; }));
  CHECK(off([](ParityConditions& it) { it.round_trip_ns = 499'999; }));
  CHECK(off([](ParityConditions& it) { it.segments = 0; }));
  // Parity would take longer than the rounds that it saves.
  CHECK(off([](ParityConditions& it) { it.rate_bytes_per_second = 1e6; }));
  CHECK(off([](ParityConditions& it) {
    it.segments = 46'864;
    it.round_trip_ns = 500 * base::kMicrosecond;
  }));
  CHECK_FALSE(off([](ParityConditions&) {}));
}

TEST_CASE("plan_parity__covers_every_segment_with_blocks_of_one_length") {
  for (std::uint32_t segments = 1; segments < 3'000; ++segments) {
    ParityConditions changed = conditions();
    changed.segments = segments;
    changed.round_trip_ns = base::kSecond;
    const ParityPlan plan = plan_parity(changed);
    REQUIRE(plan.packets() > 0);
    REQUIRE(plan.block_segments <= core::kMaxBlockSegments);
    REQUIRE(plan.block_parities <= core::kMaxBlockParities);
    REQUIRE(plan.blocks * plan.block_segments >= segments);
    REQUIRE((plan.blocks - 1) * plan.block_segments < segments);
  }
}

TEST_CASE("plan_parity__of_a_long_transfer_counts_the_time_of_the_sums") {
  ParityConditions changed = conditions();
  changed.segments = 46'864;  // 64 MiB
  changed.rate_bytes_per_second = 1.25e9;
  CHECK(plan_parity(changed).packets() == 0);
  changed.sums_ahead = true;
  CHECK(plan_parity(changed).packets() > 0);
}

TEST_CASE("block_failure__is_a_binomial_tail") {
  CHECK(core::block_failure(1, 0, 0.25) == doctest::Approx(0.25));
  CHECK(core::block_failure(1, 1, 0.25) == doctest::Approx(0.0625));
  CHECK(core::block_failure(2, 1, 0.5) == doctest::Approx(0.5));
  CHECK(core::block_failure(224, 32, 0.01) < 1e-12);
}
