#include "collective/service_choice.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

namespace {

using namespace mlt::collective;

}  // namespace

TEST_CASE("next_index__asks_every_other_service_once_and_spreads_the_partitions_of_one") {
  for (const std::size_t services : {std::size_t{2}, std::size_t{3}, std::size_t{5}}) {
    std::vector<std::size_t> taken(services);
    for (std::uint32_t partition = 0; partition < 1'000; ++partition) {
      std::set<std::size_t> asked;
      for (std::size_t gone = 0; gone < services; ++gone) {
        asked.insert(ServiceChoice::next_index(7, partition, services, gone));
      }
      CHECK(asked.size() == services);
      CHECK(ServiceChoice::next_index(7, partition, services, 0) ==
            ServiceChoice::service_index(7, partition, services));
      if (ServiceChoice::service_index(7, partition, services) == 0) {
        ++taken[ServiceChoice::next_index(7, partition, services, 1)];
      }
    }
    CHECK(taken[0] == 0);
    for (std::size_t service = 1; service < services; ++service) {
      CHECK(taken[service] * (services - 1) * services >= 990 - services * services);
    }
  }
}

TEST_CASE("own_index__small_tensors_of_many_keys_are_spread_in_proportion_to_the_loads") {
  const ServiceLoads loads(std::vector<double>{1, 0, 2, 4.5, 2.5});
  const PartitionGrid grid(1'000, loads);
  for (const std::uint64_t step : {1ULL, 2ULL, 7ULL, 65'536ULL}) {
    CAPTURE(step);
    std::vector<double> taken(5);
    for (std::uint64_t key = 0; key < 200; ++key) ++taken[ServiceChoice::own_index(key * step, 0, grid, loads)];
    CHECK(taken[1] == 0);
    for (std::size_t i = 0; i < 5; ++i) CHECK(std::abs(taken[i] - 200 * loads.units()[i] / 65'536.0) <= 8);
  }
}

TEST_CASE("own_index__partitions_of_a_large_tensor_belong_to_the_part_of_their_service") {
  const ServiceLoads loads(std::vector<double>{1, 3});
  const PartitionGrid grid(1'048'576, loads);
  REQUIRE(grid.count() == 4);
  for (std::uint64_t key = 0; key < 5; ++key) {
    CHECK(ServiceChoice::own_index(key, 0, grid, loads) == 0);
    for (std::uint32_t i = 1; i < 4; ++i) CHECK(ServiceChoice::own_index(key, i, grid, loads) == 1);
  }
}

TEST_CASE("service_of__a_dead_services_partitions_are_spread_by_the_loads_whoever_died_first") {
  const ServiceLoads loads(std::vector<double>{1, 0, 2, 4.5, 2.5});
  const PartitionGrid grid(1'000, loads);
  const std::vector<std::uint16_t> ranks{4, 5, 6, 7, 8};
  ServiceChoice services(ranks, 4, loads), others(ranks, 4, loads);
  services.add_dead(7);
  std::vector<double> taken(9);
  double moved = 0;
  for (std::uint64_t key = 0; key < 4'000; ++key) {
    const std::uint16_t own = services.own_service(key, 0, grid);
    const std::uint16_t now = services.service_of(key, 0, own);
    if (own != 7) CHECK(now == own);
    if (own == 7) ++taken[now];
    if (own == 7) ++moved;
  }
  CHECK(moved > 1'700);
  CHECK(taken[5] == 0);
  CHECK(taken[7] == 0);
  CHECK(std::abs(taken[4] - moved * 1 / 5.5) < moved * 0.05);
  CHECK(std::abs(taken[6] - moved * 2 / 5.5) < moved * 0.05);
  // The order of deaths does not matter, nor is a partition moved whose service lives.
  others.add_dead(4);
  for (std::uint64_t key = 0; key < 100; ++key) {
    const std::uint16_t own = services.own_service(key, 0, grid);
    const std::uint16_t before = services.service_of(key, 0, own);
    services.add_dead(4);
    others.add_dead(7);
    CHECK(services.service_of(key, 0, own) == others.service_of(key, 0, own));
    if (before != 4) CHECK(services.service_of(key, 0, own) == before);
  }
}

TEST_CASE("service_of__one_without_a_load_takes_over_where_no_other_is_left") {
  const ServiceLoads loads(std::vector<double>{1, 0, 2});
  const PartitionGrid grid(1'000, loads);
  ServiceChoice services({1, 2, 3}, 2, loads);
  services.add_dead(1);
  services.add_dead(3);
  for (std::uint64_t key = 0; key < 50; ++key) {
    CHECK(services.service_of(key, 0, services.own_service(key, 0, grid)) == 2);
  }
  services.add_dead(2);  // beyond the limit: its own one, whose failure the key then names
  CHECK(services.service_of(9, 0, services.own_service(9, 0, grid)) == services.own_service(9, 0, grid));
}
