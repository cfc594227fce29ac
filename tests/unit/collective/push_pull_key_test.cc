#include "collective/push_pull_key.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "push_pull_world.h"

namespace {

using namespace mlt::collective;
using mlt::core::CompletionStatus;
using mlt::test::PushPullWorld;

}  // namespace

TEST_CASE("key__cuts_its_tensor_over_the_services") {
  PushPullWorld world;
  const PushPullKey& key = world.key();
  REQUIRE(key.partitions.size() == 2);
  CHECK(key.partitions[0].service == 3);  // (key + partition) mod services
  CHECK(key.partitions[1].service == 2);
  CHECK(key.partitions[1].first == 65'536);
  CHECK(key.partitions[1].count == 65'536);
  CHECK(key.partitions[0].segments == (65'536 * 4 + 1'431) / 1'432);
  CHECK(key.partitions[1].first_segment == key.partitions[0].segments);
  const Register shape = key.shape_of(1, world.services, world.verbs);
  CHECK(shape.partition == 1);
  CHECK(shape.elements == 65'536);
  CHECK(shape.tensor_elements == 131'072);
  CHECK(shape.services == 2);
  CHECK(shape.max_dead_services == 1);
}

TEST_CASE("fits__the_same_size_bound_and_average") {
  PushPullWorld world;
  const PushPullKey& key = world.key(10);
  PushPullRequest other = world.request();
  CHECK(key.fits(other));
  other.loss_bound = 0.1;
  CHECK(!key.fits(other));
  other = world.request();
  other.average = false;
  CHECK(!key.fits(other));
  other = world.request();
  other.input = other.input.first(9);
  CHECK(!key.fits(other));
  const std::string text = key.misfit_text(other);
  CHECK(text.find("key 1 was used with 10 elements") == 0);
  CHECK(text.find("now with 9 elements") != std::string::npos);
}

TEST_CASE("finish__when_all_pushes_and_pulls_of_the_round_have_ended") {
  PushPullWorld world;
  PushPullKey& key = world.key();
  key.begin(100, world.request(), 1'000);
  CHECK(!key.is_over());  // waits for registrations
  key.begin_round();
  CHECK(key.outstanding == 4);
  CHECK(!key.is_over());
  key.partitions[0].missing_bytes = 8;
  key.outstanding = 0;
  REQUIRE(key.is_over());
  const PushPullDone done = key.finish(350);
  CHECK(done.operation == 5);
  CHECK(done.elapsed_ns == 250);
  CHECK(done.missing_bytes == 8);
  CHECK(done.status == CompletionStatus::kWithinBound);
  CHECK(done.total_bytes == 131'072 * 4);
  CHECK(!key.is_over());
}

TEST_CASE("end_unposted__ends_only_what_was_not_posted") {
  PushPullWorld world;
  PushPullKey& key = world.key();
  key.begin(0, world.request(), 1'000);
  key.broken = "a rank died";
  CHECK(key.is_over());  // it failed before its round
  key.begin_round();
  key.partitions[0].push_posted = key.partitions[1].pull_posted = true;
  key.end_unposted();
  CHECK(key.outstanding == 2);
  CHECK(key.partitions[0].pushing);
  CHECK(!key.partitions[0].pulling);
  CHECK(!key.partitions[1].pushing);
  CHECK(key.partitions[1].pulling);
}

TEST_CASE("stand_in__puts_the_own_term_where_the_result_is_missing") {
  PushPullWorld world;
  PushPullKey& key = world.key(6);
  key.begin(0, world.request(), 1'000);
  world.output.assign(6, 9.0F);
  mlt::core::Completion completion;
  const std::vector<std::uint64_t> arrived{0b101};
  completion.received_bitmap = arrived;
  completion.segment_bytes = 8;
  completion.segment_count = 3;
  key.stand_in(key.partitions[0], completion);
  CHECK(world.output == std::vector<float>{9, 9, 1, 1, 9, 9});
}
