#include "collective/agreed_loads.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using mlt::collective::AgreedLoads;

TEST_CASE("agreed_loads__of_workers_that_have_the_same") {
  AgreedLoads loads(2, 2);
  CHECK_FALSE(loads.has(1));
  loads.add(1, {16'384, 49'152});
  CHECK(loads.has(1));
  CHECK(loads.loads().units() == std::vector<std::uint32_t>{16'384, 49'152});
  loads.add(0, {16'384, 49'152});
  loads.add(0, {});  // only the first counts
  CHECK(loads.difference().empty());
}

TEST_CASE("agreed_loads__that_differ_are_named_with_both_ranks") {
  AgreedLoads loads(3, 2);
  loads.add(2, {});
  loads.add(1, {});
  loads.add(0, {16'384, 49'152});
  CHECK(loads.difference().find("rank 0 cuts its tensors by the loads 25, 75 %; rank 2 cuts its tensors by equal") ==
        0);
  CHECK(loads.loads().are_equal());
}

TEST_CASE("agreed_loads__of_other_services_are_named") {
  for (const std::vector<std::uint32_t>& units :
       {std::vector<std::uint32_t>{65'536}, {65'536, 1}, {1, 2, 3}, {0xFFFF'FFFF, 65'537}}) {
    AgreedLoads loads(1, 2);
    loads.add(0, units);
    CHECK(loads.difference().find("rank 0 cuts its tensors by loads of " + std::to_string(units.size())) == 0);
  }
}
