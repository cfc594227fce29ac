#include "collective/push_pull_posts.h"

#include <doctest/doctest.h>

#include <optional>

#include "push_pull_world.h"

namespace {

using namespace mlt::collective;
using mlt::core::CompletionStatus;
using mlt::core::PostStatus;
using mlt::test::PushPullWorld;

PushPullKey& begun(PushPullWorld& world, std::size_t elements = 10) {
  PushPullKey& key = world.key(elements);
  key.begin(0, world.request(), 1'000);
  key.begin_round();
  return key;
}

}  // namespace

TEST_CASE("push_pull_posts__an_id_is_the_same_in_the_number_of_the_operation") {
  const PushPullPosts::Id id{90'000, 65'535, true};
  const auto [key, partition, is_send] = PushPullPosts::Id::of(id.operation());
  CHECK(machine_of(id.operation()) == MachineId::kPushPull);
  CHECK(key == 90'000);
  CHECK(partition == 65'535);
  CHECK(is_send);
}

TEST_CASE("push_pull_posts__the_receive_of_the_result_then_the_push_once") {
  PushPullWorld world;
  PushPullKey& key = begun(world);
  CHECK(!world.posts.post(400, key, 0));
  CHECK(!world.posts.post(400, key, 0));
  REQUIRE(world.verbs.receives.size() == 1);
  REQUIRE(world.verbs.sends.size() == 1);
  CHECK(world.verbs.receives[0].timeout_ns == 600);  // what is left of the push-pull's
  CHECK(world.verbs.sends[0].peer == 3);
  CHECK(world.verbs.sent.empty());
}

TEST_CASE("push_pull_posts__no_space_waits_and_posts_the_rest_later") {
  PushPullWorld world;
  PushPullKey& key = begun(world);
  world.verbs.send_status = PostStatus::kTooManyOperations;
  CHECK(!world.posts.post(0, key, 0));
  CHECK(world.posts.is_waiting(key));
  world.verbs.send_status = PostStatus::kPosted;
  REQUIRE(world.posts.take_waiting().size() == 1);
  CHECK(!world.posts.is_waiting(key));
  CHECK(!world.posts.post(0, key, 0));
  CHECK(world.verbs.receives.size() == 1);
  CHECK(world.verbs.sends.size() == 1);
  world.verbs.receive_status = PostStatus::kOutOfBitmaps;
  key.begin_round();
  CHECK(!world.posts.post(0, key, 0));
  world.posts.forget(key, 1);
  CHECK(world.posts.is_waiting(key));
  world.posts.forget(key, 0);
  CHECK(!world.posts.is_waiting(key));
}

TEST_CASE("push_pull_posts__a_rejected_post_fails_the_key") {
  PushPullWorld world;
  PushPullKey& key = begun(world);
  world.verbs.receive_status = PostStatus::kTooManyTags;
  std::optional<KeyFailure> failure = world.posts.post(0, key, 0);
  REQUIRE(failure);
  CHECK(failure->status == CompletionStatus::kCancelled);
  world.verbs.receive_status = PostStatus::kPeerNotConnected;
  failure = world.posts.post(0, key, 0);
  REQUIRE(failure);
  CHECK(failure->peer == 3);
  CHECK(failure->text.find("rank 3 is not connected") != std::string::npos);
}

TEST_CASE("push_pull_posts__on_demand_a_push_needs_ready_unless_another_service_may_take_over") {
  for (const std::uint16_t max_dead : {std::uint16_t{0}, std::uint16_t{1}}) {
    PushPullWorld world(max_dead);
    PushPullKey& key = begun(world);
    key.partitions[0].on_demand = true;
    CHECK(!world.posts.post(0, key, 0));
    CHECK(std::holds_alternative<Ready>(world.verbs.last));
    key.begin_round();
    world.verbs.is_connected = false;
    CHECK(world.posts.post(0, key, 0).has_value() == (max_dead == 0));
  }
}

TEST_CASE("push_pull_posts__a_replay_goes_before_the_push") {
  PushPullWorld world;
  PushPullKey& key = begun(world);
  key.partitions[0].must_replay = true;
  CHECK(!world.posts.post(0, key, 0));
  CHECK(key.partitions[0].replaying);
  CHECK(!key.partitions[0].must_replay);
  CHECK(world.verbs.sends.size() == 1);
  CHECK(world.verbs.receives.empty());
  key.partitions[0].replaying = false;
  CHECK(!world.posts.post(0, key, 0));
  CHECK(world.verbs.sends.size() == 2);
  world.posts.cancel_push(0, key, 0);
  world.posts.cancel_pull(0, key, 0);
  REQUIRE(world.verbs.cancelled.size() == 2);
  CHECK(world.verbs.cancelled[0].first == world.verbs.sends[1].operation);
  CHECK(world.verbs.cancelled[1].first == world.verbs.receives[0].operation);
}
