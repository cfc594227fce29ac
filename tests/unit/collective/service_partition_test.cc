#include "collective/service_partition.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "service_world.h"

namespace {

using namespace mlt::collective;
using mlt::test::ServiceWorld;
using Push = ServicePartition::Push;

Message failure_message_of(const ServicePartition& partition) {
  std::vector<std::byte> bytes;
  partition.encode_failure(bytes);
  return decode(bytes).value();
}

}  // namespace

TEST_CASE("round__ends_with_the_push_of_every_worker_that_is_left") {
  ServiceWorld world(3, 1);
  ServicePartition& early = world.partition(1);
  CHECK(early.sums.expected() == 3);
  world.gone.add(1);
  ServicePartition& late = world.partition(2);
  CHECK(late.pushes[1] == Push::kArrived);
  CHECK(late.sums.expected() == 2);
  late.end_push(0);
  CHECK(!late.is_summed());
  late.end_push(2);
  CHECK(late.is_summed());
  late.late[2] = late.has_push = late.is_closed = true;
  late.missing_bytes = 4;
  late.begin_round(world.gone);
  CHECK(!late.is_summed());
  CHECK(late.arrived == 1);
  CHECK(late.pushes == std::vector<Push>{Push::kIdle, Push::kArrived, Push::kIdle});
  CHECK(!late.late[2]);
  CHECK(!late.has_push);
  CHECK(!late.is_closed);
  CHECK(late.missing_bytes == 0);
}

TEST_CASE("is_registered_by_all__of_the_workers_that_are_left") {
  ServiceWorld world(2, 1);
  ServicePartition& partition = world.partition();
  CHECK(partition.is_registered_by_all(world.gone));
  partition.registered[1] = false;
  CHECK(!partition.is_registered_by_all(world.gone));
  world.gone.add(1);
  CHECK(partition.is_registered_by_all(world.gone));
}

TEST_CASE("encode_failure__says_why_rounds_ended") {
  ServiceWorld world(2);
  ServicePartition& partition = world.partition(9);
  CHECK(!partition.has_failed());
  partition.failed_rank = 1;
  CHECK(partition.has_failed());
  CHECK(std::get<Aborted>(failure_message_of(partition)).failed_rank == 1);
  partition.overdue = "too late";
  CHECK(std::get<Overdue>(failure_message_of(partition)).text == "too late");
  CHECK(std::get<Overdue>(failure_message_of(partition)).rank == 1);
  partition.refusal = "another tensor";
  CHECK(std::get<Refused>(failure_message_of(partition)).text == "another tensor");
  CHECK(std::get<Refused>(failure_message_of(partition)).key == 9);
  CHECK(partition.text() == "key 9, partition 0");
}

TEST_CASE("partition__made_after_too_many_workers_are_gone_has_failed") {
  ServiceWorld world(2);
  world.gone.add(1);
  CHECK(world.partition().failed_rank == 1);
}

TEST_CASE("missing_elements__counts_the_late_shares_whole_where_a_worker_died_in_the_round") {
  ServiceWorld world(3, 1);
  ServicePartition& partition = world.partition();
  CHECK(partition.missing_elements(world.gone, 2) == 18);  // of the three pushes nothing has arrived
  world.gone.add(0);
  partition.missing_bytes = 8;
  CHECK(partition.missing_elements(world.gone, 1) == 6 + 2);
}
