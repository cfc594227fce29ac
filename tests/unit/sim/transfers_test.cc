#include "sim/transfers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

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
