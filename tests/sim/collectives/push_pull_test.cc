// Times of push-pull beside the least that equation 6 of BytePS permits: eight workers on hosts of their own, a service
// beside each, and k hosts with a service alone (BytePS, figure 12; docs/summation.md has the figures of all k).
//
// PUSH_PULL_SPARE="0 1 2 3 4 5 6 7 8" PUSH_PULL_MIB=8 PUSH_PULL_WORKERS=8 prints the times of these k, for tensors of
// this size and so many workers.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "sim/collectives/push_pull_times.h"

using namespace mlt::test;

TEST_CASE("push_pull__with_a_service_beside_each_worker_takes_as_long_as_equation_6_says") {
  PushPulls what;
  CHECK(time_push_pulls(what).mean() / 1e9 < 1.1 * least_seconds(what));
}

// Services beside workers get nothing then. Equal parts take half as long again.
TEST_CASE("push_pull__with_as_many_services_on_spare_hosts_is_faster_by_their_loads") {
  PushPulls what;
  what.spare = 8;
  const double equal = time_push_pulls(what).mean();
  what.loads = best_loads(8, 8);
  const double by_loads = time_push_pulls(what).mean();
  CHECK(by_loads / 1e9 < 1.15 * least_seconds(what));
  CHECK(by_loads < 0.8 * equal);
}

TEST_CASE("push_pull__prints_times_beside_equation_6" * doctest::test_suite("long")) {
  const char* sizes = std::getenv("PUSH_PULL_MIB");
  const char* spares = std::getenv("PUSH_PULL_SPARE");
  const char* number = std::getenv("PUSH_PULL_WORKERS");
  const auto workers = static_cast<std::uint16_t>(number == nullptr ? 8 : std::atoi(number));
  std::istringstream numbers(spares == nullptr ? "" : spares);
  for (std::uint16_t spare = 0; numbers >> spare;) {
    PushPulls equal;
    equal.workers = workers;
    equal.spare = spare;
    if (sizes != nullptr) equal.bytes = static_cast<std::size_t>(std::atof(sizes) * 1'048'576);
    PushPulls best = equal;
    best.loads = best_loads(workers, spare);
    const double least = least_seconds(best);
    const double by_loads = time_push_pulls(best).mean() / 1e9, by_parts = time_push_pulls(equal).mean() / 1e9;
    std::printf("k=%d least %.3f ms, by loads %.3f ms (%.3f), equal %.3f ms (%.3f)\n", spare, least * 1e3,
                by_loads * 1e3, by_loads / least, by_parts * 1e3, by_parts / least);
    std::fflush(stdout);
  }
}
