#include "collective/partition_table.h"

#include <doctest/doctest.h>

#include <string>

#include "service_world.h"

namespace {

using namespace mlt::collective;
using mlt::test::ServiceWorld;

}  // namespace

TEST_CASE("find_or_make__makes_a_partition_once") {
  ServiceWorld world(2);
  std::string refusal;
  CHECK(world.partitions.find(5, 0) == nullptr);
  ServicePartition* made = world.partitions.find_or_make(1, ServiceWorld::shape(5), false, refusal);
  REQUIRE(made != nullptr);
  CHECK(made->first_worker == 1);
  CHECK(!made->takeover.is_waiting());
  const std::uint64_t bytes = world.partitions.bytes_held();
  CHECK(bytes > 0);
  CHECK(world.partitions.find_or_make(0, ServiceWorld::shape(5), true, refusal) == made);
  CHECK(world.partitions.find(5, 0) == made);
  CHECK(world.partitions.find(5, 1) == nullptr);
  CHECK(&world.partitions[0] == made);
  CHECK(world.partitions.bytes_held() == bytes);
  // One that is taken over waits for reports, which take memory too.
  CHECK(world.partitions.find_or_make(0, ServiceWorld::shape(6), true, refusal)->takeover.is_waiting());
  CHECK(world.partitions.bytes_held() > 2 * bytes);
  CHECK(refusal.empty());
}

TEST_CASE("find_or_make__names_the_limit_that_is_reached") {
  ServiceWorld world(2);
  std::string refusal;
  PartitionTable small({100, 1'000}, world.gone);
  CHECK(small.find_or_make(0, ServiceWorld::shape(1), false, refusal) == nullptr);
  CHECK(refusal.find("memory limit of 100") != std::string::npos);
  PartitionTable few({1 << 20, 2}, world.gone);
  CHECK(few.find_or_make(0, ServiceWorld::shape(1), false, refusal) != nullptr);
  CHECK(few.find_or_make(0, ServiceWorld::shape(2), false, refusal) == nullptr);
  CHECK(refusal.find("limit of 1 partitions") != std::string::npos);
  CHECK(few.find(2, 0) == nullptr);
}

TEST_CASE("take_begun__names_partitions_whose_first_segment_is_summed_once") {
  ServiceWorld world(1);
  ServicePartition& partition = world.partition();
  CHECK(!world.partitions.has_begun());
  mlt::core::ReceiveRequest request;
  partition.sums.receive(request, 0);
  const std::vector<float> values{1, 2};
  request.place(request.place_context, 0, std::as_bytes(std::span(values)));
  CHECK(world.partitions.has_begun());
  CHECK(world.partitions.take_begun() == std::vector<std::uint32_t>{0});
  CHECK(!world.partitions.has_begun());
}
