#include "collective/service_loads.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using mlt::collective::ServiceLoads;

namespace {

ServiceLoads of(const std::vector<double>& loads) { return ServiceLoads(loads); }
using Units = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("service_loads__loads_that_are_alike_are_equal") {
  CHECK(ServiceLoads(3).are_equal());
  CHECK(ServiceLoads(3).loaded() == 3);
  CHECK(of({2.5, 2.5}) == ServiceLoads(2));
  CHECK(of({1.0 / 3, 0.1 + 0.2 + 1.0 / 3 - 0.3, 1.0 / 3}).are_equal());
  CHECK(of({7}).are_equal());
  CHECK(ServiceLoads(3).text() == "equal loads");
}

TEST_CASE("service_loads__units_add_up_and_are_off_by_less_than_one") {
  CHECK(of({1, 3}).units() == Units{16'384, 49'152});
  CHECK(of({0, 1e-9, 1, 0}).units() == Units{0, 0, 65'536, 0});
  for (std::size_t services = 2; services < 40; ++services) {
    std::vector<double> loads;
    for (std::size_t i = 0; i < services; ++i) loads.push_back(i % 3 == 0 ? 0 : static_cast<double>(i * i) / 7);
    const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
    const ServiceLoads made(loads);
    CHECK(made.count() == services);
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < services; ++i) {
      const double exact = loads[i] / total * ServiceLoads::kUnits;
      if (services > 2) CHECK(made.units()[i] < exact + 1);
      if (services > 2) CHECK(made.units()[i] > exact - 1);
      CHECK(made.units_before(i) == sum);
      if (loads[i] == 0) CHECK(made.units()[i] == 0);
      sum += made.units()[i];
    }
    CHECK(sum == ServiceLoads::kUnits);
  }
}

TEST_CASE("service_at__every_service_holds_as_many_positions_as_units") {
  const ServiceLoads loads = of({0, 1, 0, 2, 5, 0});
  CHECK(loads.loaded() == 3);
  Units held(6);
  for (std::uint32_t position = 0; position < ServiceLoads::kUnits; ++position) ++held[loads.service_at(position)];
  CHECK(held == loads.units());
  CHECK(loads.text() == "the loads 0, 12.5, 0, 25, 62.5, 0 %");
}

TEST_CASE("from_units__takes_what_units_gives_and_nothing_that_does_not_add_up") {
  const ServiceLoads loads = of({1, 2, 3});
  CHECK(ServiceLoads::from_units(3, loads.units()) == loads);
  CHECK(ServiceLoads::from_units(3, {}) == ServiceLoads(3));
  CHECK_FALSE(ServiceLoads::from_units(2, loads.units()).has_value());
  CHECK_FALSE(ServiceLoads::from_units(2, {65'536, 1}).has_value());
  CHECK_FALSE(ServiceLoads::from_units(2, {65'535, 0}).has_value());
  CHECK_FALSE(ServiceLoads::from_units(3, {0xFFFF'FFFF, 2, 65'535}).has_value());
}
