// One partition and its move; push_pull_takeovers_test.cc has whole rounds.
#include "collective/partition_moves.h"

#include <doctest/doctest.h>

#include <optional>
#include <utility>

#include "push_pull_world.h"

namespace {

using namespace mlt::collective;
using mlt::test::PushPullWorld;

// Partition 0 of a round in progress, at service 3, whose push and pull are posted.
PushPullKey& posted(PushPullWorld& world) {
  PushPullKey& key = world.key(10);
  key.begin(0, world.request(), 1'000);
  key.begin_round();
  CHECK(!world.posts.post(0, key, 0));
  return key;
}

}  // namespace

TEST_CASE("partition_moves__the_next_service_is_asked_when_nothing_is_posted_to_the_one_that_is_gone") {
  PushPullWorld world;
  PushPullKey& key = posted(world);
  world.services.add_dead(3);
  CHECK(!world.moves.move(0, key, 0));
  PushPullKey::Partition& partition = key.partitions[0];
  CHECK(partition.service == 2);
  CHECK(key.unregistered == 1);
  CHECK(world.verbs.sent.empty());
  // This worker still reached it: it leaves it.
  CHECK(world.verbs.cancelled.size() == 2);
  partition.push_posted = false;
  world.moves.ask_next_service(key, 0);
  CHECK(world.verbs.sent.empty());
  partition.pull_posted = false;
  world.moves.ask_next_service(key, 0);
  REQUIRE(world.verbs.sent.size() == 1);
  CHECK(world.verbs.sent[0].first == 2);
  CHECK(std::holds_alternative<Move>(world.verbs.last));
  CHECK(partition.taken_over);
  world.moves.ask_next_service(key, 0);
  CHECK(world.verbs.sent.size() == 1);
}

TEST_CASE("partition_moves__a_push_that_was_over_is_repeated_unless_its_result_is_here") {
  for (const bool has_result : {false, true}) {
    PushPullWorld world;
    PushPullKey& key = posted(world);
    PushPullKey::Partition& partition = key.partitions[0];
    partition.pushing = has_result;  // what is in progress is the other of both
    partition.pulling = !has_result;
    key.outstanding = 1;
    partition.push_posted = partition.pull_posted = false;
    world.services.add_dead(3);
    CHECK(!world.moves.move(0, key, 0));
    CHECK(partition.pushing == !has_result);
    CHECK(key.outstanding == (has_result ? 0 : 2));
  }
}

TEST_CASE("partition_moves__an_undecided_service_is_waited_for") {
  PushPullWorld world;
  PushPullKey& key = posted(world);
  world.moves.suspend(key, 0);
  key.partitions[0].push_posted = key.partitions[0].pull_posted = false;
  world.moves.ask_next_service(key, 0);
  CHECK(key.partitions[0].undecided);
  CHECK(world.verbs.sent.empty());
  CHECK(key.partitions[0].service == 3);
}

TEST_CASE("partition_moves__not_to_a_service_whose_packets_have_another_size") {
  PushPullWorld world;
  PushPullKey& key = posted(world);
  world.verbs.grids[2] = 8'000;
  world.services.add_dead(3);
  const std::optional<KeyFailure> failure = world.moves.move(0, key, 0);
  REQUIRE(failure);
  CHECK(failure->peer == 2);
  CHECK(failure->text.find("partition 0 of key 1") != std::string::npos);
  CHECK(failure->text.find("the same MTU") != std::string::npos);
}
