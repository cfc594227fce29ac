#include "sim/first_use.h"

#include <doctest/doctest.h>

#include <vector>

#include "sim/simulator.h"

namespace {

using namespace mlt;
using base::kMillisecond;
using base::kSecond;

sim::Topology first_use_star(std::uint16_t hosts) {
  sim::Fabric fabric;
  fabric.port = sim::uniform_port({}, sim::kUnlimited, sim::kUnlimited);
  return sim::star(hosts, fabric);
}

constexpr sim::FirstUsePlan kSlowSetUp{true, 10 * kMillisecond, 5 * kMillisecond, 100 * kMillisecond};

}  // namespace

TEST_CASE("post__waits_for_its_connection_alone_and_keeps_the_order") {
  sim::Simulator simulator({}, first_use_star(3));
  sim::FirstUse first_use(simulator, kSlowSetUp, 1);
  std::vector<int> posted;
  for (int i = 0; i < 3; ++i) {
    first_use.post(0, 1, [&, i] {
      CHECK(simulator.endpoint_connection(0, 1) != 0);
      posted.push_back(i);
    });
  }
  CHECK(posted.empty());
  CHECK(first_use.waiting() == 3);
  simulator.run_for(50 * kMillisecond);
  CHECK(posted == std::vector<int>{0, 1, 2});
  CHECK(first_use.waiting() == 0);
  CHECK(simulator.connection(0, 2) == 0);
  first_use.post(1, 0, [&] { posted.push_back(3); });  // the other side has it as well
  CHECK(posted.size() == 4);
}

TEST_CASE("post__to_a_host_that_comes_late_waits_for_it_and_to_one_that_never_comes_goes_on_without") {
  sim::Simulator simulator({}, first_use_star(3));
  sim::FirstUse first_use(simulator, kSlowSetUp, 1);
  simulator.crash(1, 0);
  simulator.crash(2, 0);
  std::vector<std::uint64_t> connections;
  for (const std::uint16_t peer : {std::uint16_t{1}, std::uint16_t{2}}) {
    first_use.post(0, peer, [&, peer] { connections.push_back(simulator.endpoint_connection(0, peer)); });
  }
  simulator.run_for(50 * kMillisecond);
  CHECK(connections.empty());
  simulator.restart(1);
  simulator.run_for(30 * kMillisecond);
  REQUIRE(connections.size() == 1);
  CHECK(connections[0] != 0);
  simulator.run_for(kSecond);
  REQUIRE(connections.size() == 2);
  CHECK(connections[1] == 0);
}

TEST_CASE("post__after_a_crash_connects_again") {
  sim::Simulator simulator({}, first_use_star(2));
  sim::FirstUse first_use(simulator, kSlowSetUp, 1);
  int posted = 0;
  first_use.post(0, 1, [&] { ++posted; });
  simulator.run_for(50 * kMillisecond);
  const std::uint64_t first = simulator.endpoint_connection(0, 1);
  simulator.crash(1, 0);
  simulator.restart(1);
  simulator.run_for(50 * kMillisecond);
  CHECK(simulator.connection(0, 1) == 0);
  first_use.post(1, 0, [&] { ++posted; });
  simulator.run_for(50 * kMillisecond);
  CHECK(posted == 2);
  CHECK(simulator.endpoint_connection(0, 1) > first);
}
