#include "collective/service_choice.h"

#include <doctest/doctest.h>

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
