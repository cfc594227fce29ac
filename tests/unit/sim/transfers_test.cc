#include "sim/transfers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace mlt;
using sim::TransferSchedule;

namespace {

// Three hosts on one switch.
TransferSchedule star() {
  TransferSchedule schedule;
  schedule.hosts = 3;
  schedule.switches = 1;
  for (std::uint32_t host = 0; host < schedule.hosts; ++host) schedule.cables.push_back({host, 3});
  return schedule;
}

}  // namespace

TEST_CASE("run_transfers__a_relay_forwards_when_all_has_arrived") {
  TransferSchedule schedule = star();
  schedule.transfers = {{0, 1, 400'000, 0, {}}, {2, 1, 400'000, 0, {}}, {1, 2, 400'000, 0, {0, 1}}};
  const sim::TransferTimes times = sim::run_transfers(schedule);
  const auto wire_ns = static_cast<base::DurationNs>(400'000 / 1.25);
  CHECK(times.finish_ns[0] >= wire_ns);
  CHECK(times.finish_ns[2] >= std::max(times.finish_ns[0], times.finish_ns[1]) + wire_ns);
  CHECK(times.hops >= 2 * times.data_packets);
}

// Parts must overlap: a relay that answers while it receives takes little longer than the bytes, not twice as long.
TEST_CASE("run_transfers__parts_through_a_relay_overlap") {
  constexpr std::uint32_t kParts = 32;
  constexpr std::uint64_t kBytes = 500'000;
  TransferSchedule schedule = star();
  for (std::uint32_t part = 0; part < kParts; ++part) {
    schedule.transfers.push_back({0, 1, kBytes, 0, {}});
    schedule.transfers.push_back({1, 2, kBytes, 0, {2 * part}});
  }
  const sim::TransferTimes times = sim::run_transfers(schedule);
  CHECK(static_cast<double>(times.finish_ns.back()) < 1.25 * kParts * kBytes / 1.25);
}

TEST_CASE("run_transfers__the_seed_decides_and_nothing_else") {
  TransferSchedule schedule = star();
  schedule.transfers = {{0, 1, 1'000'000, 0, {}}, {2, 1, 1'000'000, 0, {}}};
  schedule.loss = 0.01;
  const sim::TransferTimes first = sim::run_transfers(schedule);
  CHECK(first.digest == sim::run_transfers(schedule).digest);
  CHECK(first.drops > 0);
  schedule.seed = 2;
  CHECK(first.digest != sim::run_transfers(schedule).digest);
}

TEST_CASE("run_transfers__refuses_a_circle_before_it_runs") {
  TransferSchedule schedule = star();
  schedule.transfers = {{0, 1, 4, 0, {1}}, {1, 0, 4, 0, {0}}};
  CHECK_THROWS_WITH_AS(sim::run_transfers(schedule), doctest::Contains("transfers[0] after"), std::invalid_argument);
}

namespace {

// Hosts 0 and 1 on leaf 4, hosts 2 and 3 on leaf 5, spines 6 and 7; all cables alike. Two flows across.
TransferSchedule two_spine_schedule() {
  TransferSchedule schedule;
  schedule.hosts = 4;
  schedule.switches = 4;
  schedule.cables = {{0, 4}, {1, 4}, {2, 5}, {3, 5}, {4, 6}, {4, 7}, {5, 6}, {5, 7}};
  schedule.transfers = {{0, 2, 4'000'000, 0, {}}, {1, 3, 4'000'000, 0, {}}};
  return schedule;
}

base::DurationNs last_finish(const TransferSchedule& schedule) {
  const sim::TransferTimes times = sim::run_transfers(schedule);
  return *std::max_element(times.finish_ns.begin(), times.finish_ns.end());
}

}  // namespace

TEST_CASE("run_transfers__all_ways_over_one_spine_halve_the_goodput") {
  TransferSchedule apart = two_spine_schedule();
  apart.ways = {{0, 2, {{0, 4, 6, 5, 2}}}, {1, 3, {{1, 4, 7, 5, 3}}}};
  TransferSchedule together = two_spine_schedule();
  together.ways = {{0, 2, {{0, 4, 7, 5, 2}}}, {1, 3, {{1, 4, 7, 5, 3}}}};
  const double ratio = static_cast<double>(last_finish(together)) / static_cast<double>(last_finish(apart));
  CHECK(ratio == doctest::Approx(2.0).epsilon(0.1));
}

TEST_CASE("run_transfers__a_pair_is_spread_over_its_ways_by_path") {
  TransferSchedule one = two_spine_schedule();
  for (sim::Cable& cable : one.cables) {
    if (cable.a < one.hosts) cable.rate_bytes_per_second = 2.5e9;  // a host's nic fills both spines
  }
  one.paths = 4;
  one.transfers = {{0, 2, 4'000'000, 0, {}}};
  TransferSchedule two = one;
  one.ways = {{0, 2, {{0, 4, 6, 5, 2}}}};
  two.ways = {{0, 2, {{0, 4, 6, 5, 2}, {0, 4, 7, 5, 2}}}};
  const double ratio = static_cast<double>(last_finish(one)) / static_cast<double>(last_finish(two));
  CHECK(ratio == doctest::Approx(2.0).epsilon(0.15));
}

// A way may be longer than the shortest: every packet then crosses its cables, and answers come back over them.
TEST_CASE("run_transfers__a_detour_is_followed_both_ways") {
  TransferSchedule schedule = two_spine_schedule();
  schedule.transfers = {{0, 1, 400'000, 0, {}}};
  const sim::TransferTimes shortest = sim::run_transfers(schedule);
  schedule.ways = {{0, 1, {{0, 4, 6, 5, 7, 4, 1}}}};
  CHECK_THROWS_WITH_AS(sim::run_transfers(schedule), doctest::Contains("passes node 4 twice"), std::invalid_argument);
  schedule.cables.push_back({1, 7});
  schedule.ways = {{0, 1, {{0, 4, 6, 5, 7, 1}}}};
  const sim::TransferTimes detour = sim::run_transfers(schedule);
  CHECK(shortest.hops % 2 == 0);
  CHECK(detour.hops % 5 == 0);
  CHECK(detour.hops > 2 * shortest.hops);
}

TEST_CASE("run_transfers__parallel_cables_are_taken_in_turn") {
  TransferSchedule schedule = two_spine_schedule();
  schedule.cables.push_back({4, 6});
  schedule.cables.push_back({5, 6});
  schedule.paths = 2;
  const std::vector<std::uint32_t> left = {0, 4, 6, 5, 2};
  const std::vector<std::uint32_t> right = {1, 4, 6, 5, 3};
  schedule.ways = {{0, 2, {left, left}}, {1, 3, {right, right}}};
  const base::DurationNs both = last_finish(schedule);
  schedule.ways = {{0, 2, {left}}, {1, 3, {right}}};  // the first cable only
  CHECK(static_cast<double>(last_finish(schedule)) > 1.8 * static_cast<double>(both));
}

TEST_CASE("run_transfers__refuses_a_way_that_does_not_fit") {
  const auto refused = [](sim::ScheduledWays ways, const char* why) {
    TransferSchedule schedule = two_spine_schedule();
    schedule.paths = 2;
    schedule.ways = {std::move(ways)};
    CHECK_THROWS_WITH_AS(sim::run_transfers(schedule), doctest::Contains(why), std::invalid_argument);
  };
  refused({9, 2, {{9, 2}}}, "ways[0] from is 9; expected a host from 0 to 3");
  refused({2, 2, {{2, 2}}}, "ways[0] to is 2; expected another host");
  refused({0, 2, {}}, "the number of ways in ways[0] is 0; expected 1 to 2");
  refused({0, 2, {{0, 4, 6, 5, 2}, {0, 4, 6, 5, 2}, {0, 4, 6, 5, 2}}}, "the number of ways in ways[0] is 3");
  refused({0, 2, {{0}}}, "the number of nodes in ways[0] way[0] is 1");
  refused({0, 2, {{1, 4, 6, 5, 2}}}, "ways[0] way[0] first node is 1; expected 0");
  refused({0, 2, {{0, 4, 6, 5, 3}}}, "ways[0] way[0] last node is 3; expected 2");
  refused({0, 2, {{0, 4, 5, 2}}}, "no cable joins 4 and 5");
  refused({0, 2, {{0, 4, 1, 5, 2}}}, "node[2] is 1; expected a switch");
  TransferSchedule twice = two_spine_schedule();
  twice.ways = {{0, 2, {{0, 4, 6, 5, 2}}}, {0, 2, {{0, 4, 7, 5, 2}}}};
  CHECK_THROWS_WITH_AS(sim::run_transfers(twice), doctest::Contains("are in ways[0] already"), std::invalid_argument);
}

TEST_CASE("run_transfers__a_line_rate_below_the_cable_limits_the_flow") {
  TransferSchedule schedule = two_spine_schedule();
  schedule.transfers = {{0, 2, 4'000'000, 0, {}}};
  const base::DurationNs at_the_cable = last_finish(schedule);
  schedule.line_rates = {0.25e9, 0, 0, 0};
  CHECK(static_cast<double>(last_finish(schedule)) > 4.0 * static_cast<double>(at_the_cable));
  schedule.line_rates = {1.0};
  CHECK_THROWS_WITH_AS(sim::run_transfers(schedule), doctest::Contains("the number of line_rates is 1"),
                       std::invalid_argument);
}
