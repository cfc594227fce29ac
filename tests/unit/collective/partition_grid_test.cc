#include "collective/partition_grid.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/prng.h"

using mlt::collective::kPartitionElements;
using mlt::collective::PartitionGrid;
using mlt::collective::ServiceLoads;

namespace {

std::vector<std::size_t> cut(std::uint64_t elements, std::uint64_t services) {
  const PartitionGrid grid(elements, services);
  std::vector<std::size_t> sizes;
  for (std::uint64_t i = 0; i < grid.count(); ++i) sizes.push_back(grid.elements(i));
  return sizes;
}

using Sizes = std::vector<std::size_t>;
constexpr std::uint64_t kFloor = 65'536;
constexpr std::uint64_t kMinPipelined = 262'144;

}  // namespace

TEST_CASE("partition_grid__small_tensors_are_not_cut") {
  CHECK(cut(0, 1) == Sizes{0});
  CHECK(cut(1, 3) == Sizes{1});
  CHECK(cut(kFloor, 2) == Sizes{kFloor});
  CHECK(cut(2 * kFloor - 1, 2) == Sizes{2 * kFloor - 1});
}

TEST_CASE("partition_grid__a_share_of_256_KiB_for_each_service_is_enough_to_use_all") {
  CHECK(cut(2 * kFloor, 2) == Sizes(2, kFloor));
  CHECK(cut(3 * kFloor, 2) == Sizes(2, 3 * kFloor / 2));
  // Too few elements for 8 services: as many partitions as have 256 KiB.
  CHECK(cut(3 * kFloor, 8) == Sizes(3, kFloor));
}

TEST_CASE("partition_grid__four_partitions_for_each_service_and_more_above_4_MiB") {
  CHECK(cut(288'000, 2) == Sizes(2, 144'000));
  CHECK(cut(6 * kMinPipelined - 64, 2) == Sizes(4, 3 * kMinPipelined / 2 - 16));
  CHECK(cut(6 * kMinPipelined, 2) == Sizes(6, kMinPipelined));
  CHECK(cut(8 * kMinPipelined, 2) == Sizes(8, kMinPipelined));
  CHECK(cut(32 * kMinPipelined, 2) == Sizes(8, kPartitionElements));
  CHECK(cut(4 * kPartitionElements, 1) == Sizes(4, kPartitionElements));
  CHECK(cut(4 * kPartitionElements + 16, 1) == Sizes{838'864, 838'864, 838'864, 838'864, 838'864});
  CHECK(cut(std::uint64_t{16} * kPartitionElements, 1) == Sizes(16, kPartitionElements));
  // 6 for each of 3 services, not 16: equal shares.
  CHECK(cut(std::uint64_t{16} * kPartitionElements, 3).size() == 18);
}

TEST_CASE("partition_grid__partitions_cover_the_tensor_without_gap_and_have_at_most_4_MiB") {
  for (std::uint64_t services = 1; services <= 9; ++services) {
    for (std::uint64_t elements = 1; elements < 40'000'000; elements = elements * 7 / 5 + 3) {
      CAPTURE(services);
      CAPTURE(elements);
      const PartitionGrid grid(elements, services);
      std::uint64_t next = 0;
      bool sound = true;
      for (std::uint64_t i = 0; i < grid.count(); ++i) {
        const std::uint64_t size = grid.elements(i);
        sound = sound && grid.first(i) == next && next % 16 == 0 && size > 0 && size <= kPartitionElements &&
                size <= grid.elements(0);
        next += size;
      }
      CHECK(sound);
      CHECK(next == elements);
      CHECK((grid.count() == 1 || grid.elements(0) >= kFloor));
    }
  }
}

TEST_CASE("partition_grid__parts_are_in_proportion_to_the_loads") {
  const ServiceLoads loads(std::vector<double>{1, 0, 3});
  const PartitionGrid grid(4 * kMinPipelined, loads);
  REQUIRE(grid.count() == 4);
  CHECK(grid.elements(0) == kMinPipelined);
  for (std::uint64_t i = 1; i < 4; ++i) CHECK(grid.elements(i) == kMinPipelined);
  CHECK(grid.service(0) == 0);
  CHECK(grid.service(1) == 2);
  CHECK(grid.service(3) == 2);
  CHECK(grid.number_in_part(0) == 0);
  CHECK(grid.number_in_part(3) == 2);
  // 256 KiB for each service that sums anything; below, as for so many equal ones.
  CHECK(PartitionGrid(2 * kFloor, loads).service(0) == 0);
  CHECK(PartitionGrid(2 * kFloor, loads).elements(0) == kFloor / 2);
  const PartitionGrid small(2 * kFloor - 1, loads);
  CHECK(small.count() == 1);
  CHECK_FALSE(small.service(0).has_value());
  CHECK(small.number_in_part(0) == 0);
  // Equal loads are the other cut.
  CHECK_FALSE(PartitionGrid(8 * kFloor, ServiceLoads(3)).service(0).has_value());
}

TEST_CASE("partition_grid__parts_cover_the_tensor_and_are_as_large_as_the_loads") {
  mlt::base::Prng prng(7);
  for (int draw = 0; draw < 300; ++draw) {
    std::vector<double> given;
    const std::size_t services = 2 + prng.below(12);
    for (std::size_t i = 0; i < services; ++i) {
      given.push_back(prng.chance(0.2) ? 0 : prng.chance(0.2) ? 1e-4 : prng.uniform());
    }
    given[prng.below(services)] += 0.5;
    const ServiceLoads loads(given);
    const std::uint64_t elements = services * kFloor + prng.below(draw % 2 == 0 ? 1'000'000 : 60'000'000);
    CAPTURE(draw);
    const PartitionGrid grid(elements, loads);
    std::uint64_t next = 0;
    std::vector<double> parts(services);
    bool sound = true;
    for (std::uint64_t i = 0; i < grid.count(); ++i) {
      const std::uint64_t size = grid.elements(i);
      sound = sound && grid.first(i) == next && next % 16 == 0 && size > 0 && size <= kPartitionElements;
      parts[grid.service(i).value_or(0)] += static_cast<double>(size);
      next += size;
    }
    CHECK(sound);
    CHECK(next == elements);
    if (loads.are_equal()) continue;
    for (std::size_t i = 0; i < services; ++i) {
      const double exact = static_cast<double>(elements) * loads.units()[i] / ServiceLoads::kUnits;
      CHECK(std::abs(parts[i] - exact) <= 32);
      if (loads.units()[i] == 0) CHECK(parts[i] == 0);
    }
  }
}
