#include "collective/service_posts.h"

#include <doctest/doctest.h>

#include <vector>

#include "service_world.h"

namespace {

using namespace mlt::collective;
using mlt::test::ServiceWorld;
using Push = ServicePartition::Push;
using mlt::core::PostStatus;

struct PostsWorld : ServiceWorld {
  explicit PostsWorld(std::uint16_t workers, std::uint32_t max_standing = 8)
      : ServiceWorld(workers, 1),
        posts(max_standing, partitions, gone, verbs, [this](TimeNs, ServicePartition& of, std::uint16_t worker) {
          of.failed_rank = worker;
          rejected.push_back(worker);
        }) {}
  std::vector<std::uint16_t> rejected;
  ServicePosts posts;
};

}  // namespace

TEST_CASE("id__is_the_same_in_the_number_of_the_operation") {
  const ServicePosts::Id id{70'000, 65'535, 1, true};
  const auto [partition, worker, buffer, is_send] = ServicePosts::Id::of(id.operation());
  CHECK(machine_of(id.operation()) == MachineId::kSummation);
  CHECK(partition == 70'000);
  CHECK(worker == 65'535);
  CHECK(buffer == 1);
  CHECK(is_send);
  CHECK(!ServicePosts::Id::of(ServicePosts::Id{3, 2, 0, false}.operation()).is_send);
}

TEST_CASE("take_standing__as_often_as_receives_may_be_posted_between_rounds") {
  PostsWorld one(1, 2);
  CHECK(one.posts.take_standing());
  CHECK(one.posts.take_standing());
  CHECK(!one.posts.take_standing());
}

TEST_CASE("expect_push__waits_for_space_in_order") {
  PostsWorld one(3);
  ServicePartition& partition = one.partition();
  one.posts.expect_push(0, partition, 0);
  one.posts.expect_push(0, partition, 0);
  CHECK(one.verbs.receives.size() == 1);
  one.verbs.receive_status = PostStatus::kTooManyOperations;
  one.posts.expect_push(0, partition, 2);
  one.verbs.receive_status = PostStatus::kPosted;
  one.posts.expect_push(0, partition, 1);  // must not overtake it
  CHECK(one.verbs.receives.size() == 1);
  CHECK(partition.pushes == std::vector<Push>{Push::kPosted, Push::kWaiting, Push::kWaiting});
  one.posts.retry_pushes(0);
  REQUIRE(one.verbs.receives.size() == 3);
  CHECK(one.verbs.receives[1].peer == 2);
  CHECK(one.verbs.receives[2].peer == 1);
}

TEST_CASE("expect_push__not_of_a_worker_whose_connection_is_lost") {
  PostsWorld one(3);
  ServicePartition& partition = one.partition();
  one.survivors.on_lost(0, 1);
  one.posts.expect_push(0, partition, 1);
  CHECK(partition.pushes[1] == Push::kIdle);
  partition.late[2] = true;
  one.posts.expect_push(0, partition, 2);  // the round ends without the rest of it
  REQUIRE(one.verbs.cancelled.size() == 1);
  CHECK(one.verbs.cancelled[0].first == ServicePosts::Id{0, 2, 0, false}.operation());
}

TEST_CASE("send_results__once_to_every_worker_that_is_left") {
  PostsWorld one(3);
  ServicePartition& partition = one.partition();
  one.gone.add(1);
  one.posts.send_results(0, partition);
  one.posts.send_results(0, partition);
  REQUIRE(one.verbs.sends.size() == 2);
  CHECK(one.verbs.sends[0].peer == 0);
  CHECK(one.verbs.sends[1].peer == 2);
  CHECK(partition.sums.sum().sending == 2);
}

TEST_CASE("forget__ends_results_that_wait_for_space") {
  PostsWorld one(2);
  ServicePartition& partition = one.partition();
  one.verbs.send_status = PostStatus::kOutOfBitmaps;
  one.posts.send_results(0, partition);
  CHECK(partition.sums.sum().sending == 2);
  one.posts.forget(1);
  CHECK(partition.sums.sum().sending == 1);
  CHECK(!partition.sums.sum().results[1].is_pending);
  one.verbs.send_status = PostStatus::kPosted;
  one.posts.retry_results(0);
  REQUIRE(one.verbs.sends.size() == 1);
  CHECK(one.verbs.sends[0].peer == 0);
}

TEST_CASE("post__that_the_endpoint_rejects_is_reported") {
  PostsWorld one(2);
  ServicePartition& partition = one.partition();
  one.verbs.receive_status = PostStatus::kPeerNotConnected;
  one.posts.expect_push(0, partition, 1);
  CHECK(one.rejected == std::vector<std::uint16_t>{1});
  // A sum that will never be complete is sent to no worker.
  one.posts.send_results(0, partition);
  CHECK(one.verbs.sends.empty());
  CHECK(partition.sums.sum().sending == 0);
}
