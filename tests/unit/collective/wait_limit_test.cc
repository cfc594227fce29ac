#include "collective/wait_limit.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "service_world.h"

namespace {

using namespace mlt::collective;
using mlt::test::ServiceWorld;
using Decision = WaitLimit::Decision;

constexpr mlt::base::DurationNs kWaitLimitNs = 200 * mlt::base::kMillisecond;

void push_whole(ServicePartition& partition, std::uint16_t worker) {
  mlt::core::ReceiveRequest request;
  partition.sums.receive(request, worker);
  const std::vector<float> values(6, 1.0F);
  request.place(request.place_context, 0, std::as_bytes(std::span(values)));
  partition.has_push = true;
  partition.end_push(worker);
}

}  // namespace

TEST_CASE("begins__with_the_first_complete_push_of_a_partition_that_all_have_registered") {
  ServiceWorld world(2);
  ServicePartition& partition = world.partition();
  const WaitLimit limit(kWaitLimitNs);
  CHECK(limit.end(5) == 5 + kWaitLimitNs);
  CHECK(!limit.begins(partition, world.gone));
  push_whole(partition, 0);
  CHECK(limit.begins(partition, world.gone));
  CHECK(!WaitLimit(0).begins(partition, world.gone));
  CHECK(WaitLimit(0).end(5) == mlt::base::kNever);
  partition.registered[1] = false;
  CHECK(!limit.begins(partition, world.gone));
  partition.registered[1] = true;
  partition.is_closed = true;
  CHECK(!limit.begins(partition, world.gone));
}

TEST_CASE("late_workers__are_those_without_a_whole_push_that_are_not_gone") {
  ServiceWorld world(3);
  ServicePartition& partition = world.partition();
  push_whole(partition, 0);
  partition.registered[2] = false;
  const std::vector<std::uint16_t> late = late_workers(partition, world.gone);
  CHECK(late == std::vector<std::uint16_t>{1, 2});
  CHECK(late_text(partition, late) ==
        "key 1, partition 0: no complete push of rank 1, rank 2 has arrived; rank 2 never posted a push-pull of this "
        "key");
  CHECK(late_text(partition, {1}) == "key 1, partition 0: no complete push of rank 1 has arrived");
  partition.pushes[1] = ServicePartition::Push::kUnchecked;
  CHECK(late_text(partition, {1}) == "key 1, partition 0: the checksum of the push of rank 1 has not arrived");
}

TEST_CASE("decide__late_pushes_are_loss_within_the_bound_only") {
  const WaitLimit limit(kWaitLimitNs);
  for (const bool is_within : {false, true}) {
    ServiceWorld world(2);
    ServicePartition& partition = world.partition(3, is_within ? 0.5 : 0.4);
    push_whole(partition, 0);
    const WaitLimit::Outcome outcome = limit.decide(partition, world.gone);
    CHECK(outcome.decision == (is_within ? Decision::kSumWithout : Decision::kGiveUp));
    CHECK(outcome.late == std::vector<std::uint16_t>{1});
    CHECK(outcome.text.find("key 3, partition 0: no push of rank 1 within 200 ms") == 0);
    CHECK((outcome.text.find("6 of the 12 terms") != std::string::npos) == !is_within);
  }
}

TEST_CASE("decide__nothing_where_all_has_arrived_or_only_workers_that_are_gone_are_late") {
  const WaitLimit limit(kWaitLimitNs);
  ServiceWorld world(2, 1);
  ServicePartition& partition = world.partition();
  push_whole(partition, 0);
  world.gone.add(1);
  CHECK(limit.decide(partition, world.gone).decision == Decision::kNothing);
}

TEST_CASE("decide__gives_up_on_a_worker_that_takes_no_result") {
  const WaitLimit limit(kWaitLimitNs);
  ServiceWorld world(2);
  ServicePartition& partition = world.partition();
  push_whole(partition, 0);
  push_whole(partition, 1);
  partition.sums.before().results[1].is_pending = true;
  const WaitLimit::Outcome outcome = limit.decide(partition, world.gone);
  CHECK(outcome.decision == Decision::kGiveUp);
  CHECK(outcome.late == std::vector<std::uint16_t>{1});
  CHECK(outcome.text.find("rank 1 did not take a result") != std::string::npos);
}

TEST_CASE("names_of__the_first_sixteen_and_how_many_more") {
  CHECK(names_of({3}) == "rank 3");
  CHECK(names_of({3, 5}) == "rank 3, rank 5");
  std::vector<std::uint16_t> many;
  for (std::uint16_t rank = 0; rank < 18; ++rank) many.push_back(rank);
  CHECK(names_of(many).find("rank 15 and 2 more") != std::string::npos);
}
