#include "core/path_window.h"

#include <doctest/doctest.h>

#include "support/simulation.h"
#include "support/transfer.h"

namespace {

using namespace mlt;
using base::kMillisecond;
using core::PathWindow;

constexpr std::uint64_t kOffered = 1'000'000;
constexpr std::uint64_t kMax = 50'000'000;
constexpr double kPathRate = 1e9;  // a MB per ms

TEST_CASE("bytes__what_the_peer_offered_until_a_report_says_more") {
  CHECK(PathWindow(kOffered, kMax).bytes() == kOffered);
  PathWindow window(kOffered, kMax);
  window.on_full();
  window.on_report(500'000, kPathRate, 0);  // the round trip is not known yet
  CHECK(window.bytes() == kOffered);
  CHECK(PathWindow(kOffered, 0).bytes() == kOffered);
}

TEST_CASE("on_report__grows_a_full_window_by_what_was_acknowledged_of_it") {
  PathWindow window(kOffered, kMax);
  window.on_report(500'000, kPathRate, 10 * kMillisecond);  // it was not full
  CHECK(window.bytes() == kOffered);
  window.on_full();
  window.on_report(300'000, kPathRate, 10 * kMillisecond);
  CHECK(window.bytes() == 1'300'000);
  window.on_report(1'000'000, kPathRate, 10 * kMillisecond);
  CHECK(window.bytes() == 2'000'000);  // a window was acknowledged
  window.on_report(1'000'000, kPathRate, 10 * kMillisecond);
  CHECK(window.bytes() == 2'000'000);
  window.on_full();
  window.on_full();
  window.on_report(9'000'000, kPathRate, 10 * kMillisecond);
  CHECK(window.bytes() == 4'000'000);
}

TEST_CASE("on_report__to_twice_the_product_of_rate_and_round_trip_and_no_further") {
  PathWindow window(kOffered, kMax);
  for (int i = 0; i < 100; ++i) {
    window.on_full();
    window.on_report(1'000'000, kPathRate, 10 * kMillisecond);
  }
  CHECK(window.bytes() == 20'000'000);
  // The rate falls, and rises again: the window follows at once.
  window.on_report(0, kPathRate / 4, 10 * kMillisecond);
  CHECK(window.bytes() == 5'000'000);
  window.on_report(0, kPathRate / 100, 10 * kMillisecond);
  CHECK(window.bytes() == kOffered);
  window.on_report(0, kPathRate, 10 * kMillisecond);
  CHECK(window.bytes() == 20'000'000);
  // A path that became long: the limit counts.
  for (int i = 0; i < 100; ++i) {
    window.on_full();
    window.on_report(10'000'000, kPathRate, 1'000 * kMillisecond);
  }
  CHECK(window.bytes() == kMax);
  for (int i = 0; i < 100; ++i) {
    window.on_full();
    window.on_report(~std::uint64_t{0} / 2, 1e300, 1'000 * kMillisecond);
  }
  CHECK(window.bytes() == kMax);
}

TEST_CASE("on_round_lost__halves_what_has_grown") {
  PathWindow window(kOffered, kMax);
  for (int i = 0; i < 3; ++i) {
    window.on_full();
    window.on_report(8'000'000, kPathRate, 10 * kMillisecond);
  }
  REQUIRE(window.bytes() == 8'000'000);
  window.on_round_lost();
  CHECK(window.bytes() == 4'500'000);
  for (int i = 0; i < 100; ++i) window.on_round_lost();
  CHECK(window.bytes() == kOffered + 1);
  PathWindow fresh(kOffered, kMax);
  fresh.on_round_lost();
  CHECK(fresh.bytes() == kOffered);
}

struct Carried {
  base::DurationNs took_ns = 0;
  std::uint64_t max_in_flight = 0;
};

// The third of three transfers over 10 ms at 10 Gbit/s, where the peer offers a window of 1 MB.
Carried carried(std::uint64_t max_window_bytes) {
  test::SimulationConfig config;
  config.link.propagation_ns = 5 * kMillisecond;
  config.window_bytes = kOffered;
  config.endpoint.max_window_bytes = max_window_bytes;
  test::Simulation network(config);
  Carried carried;
  network.on_run = [&](std::uint16_t, const core::Transmit&) {
    carried.max_in_flight = std::max(carried.max_in_flight, network.endpoint(0).in_flight_bytes(1));
  };
  network.connect(0, 1);
  for (core::OperationId i = 1; i <= 3; ++i) {
    test::TransferOptions options;
    options.operation = i;
    test::Transfer transfer(network, 20'000'000, options);
    const base::TimeNs start = network.now();
    transfer.post();
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    carried.took_ns = network.now() - start;
  }
  return carried;
}

TEST_CASE("sender__fills_a_long_path_as_far_as_its_limit_allows") {
  const Carried unlimited = carried(512U << 20);
  CHECK(unlimited.took_ns < 32 * kMillisecond);  // 16.5 ms of data, a round trip for STOP
  CHECK(unlimited.max_in_flight > 10'000'000);
  const Carried limited = carried(4'000'000);
  CHECK(limited.max_in_flight <= 4'000'000);
  CHECK(limited.took_ns > 2 * unlimited.took_ns);
  const Carried offered = carried(0);
  CHECK(offered.max_in_flight <= kOffered);
  CHECK(offered.took_ns > 180 * kMillisecond);  // a window per round trip
}

}  // namespace
