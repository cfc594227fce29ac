#include "core/receive_tags.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using namespace mlt;
using core::ReceiveTag;
using core::ReceiveTags;

struct ReceiveTagsWorld {
  ReceiveTagsWorld() : tags(config()) {}
  static core::EndpointConfig config() {
    core::EndpointConfig config;
    config.peers = 3;
    config.max_tags = 8;
    config.unknown_tags = 2;
    return config;
  }

  std::uint32_t post(std::uint64_t tag) {
    ReceiveTag* entry = tags.for_post(1, tag);
    REQUIRE(entry != nullptr);
    return ReceiveTags::take_generation(*entry);
  }
  // A list of kept tags in one frame. Returns the tags that were renumbered.
  std::vector<std::uint64_t> retire(std::uint32_t floor, const std::vector<std::uint64_t>& kept) {
    wire::Retire message;
    message.prefix.flags = MLT_RETIRE_FLAG_LAST;
    message.floor = floor;
    for (const std::uint64_t tag : kept) message.kept[message.kept_count++] = tag;
    std::vector<std::uint64_t> renumbered;
    if (!tags.on_retire(1, message, counters)) return renumbered;
    tags.retire(1, floor, [&](ReceiveTag& entry) {
      renumbered.push_back(entry.tag);
      ReceiveTags::restart(entry, floor);
    });
    return renumbered;
  }
  bool is_over(std::uint64_t tag, std::uint32_t generation) { return tags.is_over(1, {tag, generation}); }

  ReceiveTags tags;
  core::Counters counters;
};

TEST_CASE("is_over__before_the_next_receive_of_the_tag_or_the_floor") {
  ReceiveTagsWorld world;
  CHECK_FALSE(world.is_over(5, 0));
  CHECK(world.post(5) == 0);
  CHECK(world.post(5) == 1);
  CHECK(world.is_over(5, 1));
  CHECK_FALSE(world.is_over(5, 2));
  world.retire(1'000, {});  // both were seen
  CHECK(world.is_over(5, 2));
  CHECK(world.is_over(77, 999));
  CHECK_FALSE(world.is_over(77, 1'000));
  CHECK(world.post(5) == 1'000);
}

TEST_CASE("retire__keeps_listed_tags_and_renumbers_receives_without_a_send") {
  ReceiveTagsWorld world;
  world.post(1);
  world.post(2);
  world.post(3);
  world.tags.note_seen(1, {1, 0});
  world.tags.note_seen(1, {2, 0});
  CHECK(world.retire(1'000, {2}) == std::vector<std::uint64_t>{3});
  CHECK(world.post(1) == 1'000);  // forgotten
  CHECK(world.post(2) == 1);      // kept
  CHECK(world.post(3) == 1'001);  // its first receive is number 1,000 now
}

TEST_CASE("retire__ignores_a_floor_that_is_not_after_its_own") {
  ReceiveTagsWorld world;
  world.retire(1'000, {});
  world.post(1);
  world.tags.note_seen(1, {1, 1'000});
  world.retire(1'000, {});
  world.retire(999, {});
  CHECK(world.counters.value(core::Counter::k_stale_control) == 2);
  CHECK(world.post(1) == 1'001);
}

TEST_CASE("retire__remembers_so_many_listed_tags_without_a_receive") {
  ReceiveTagsWorld world;
  world.retire(1'000, {7, 8, 9});
  // Packets of tags that their sender keeps are not stale, though their generations are before the floor.
  CHECK_FALSE(world.is_over(7, 0));
  CHECK_FALSE(world.is_over(8, 0));
  CHECK(world.is_over(9, 0));  // beyond the limit of two
  CHECK(world.post(7) == 0);   // no longer counts
  world.retire(2'000, {7, 8, 9});
  CHECK_FALSE(world.is_over(9, 1'000));
}

TEST_CASE("is_far_ahead__of_receives_without_a_send") {
  ReceiveTag entry;
  entry.unseen = 7;
  entry.generation = 7 + core::kGenerationGap - 2;
  CHECK_FALSE(ReceiveTags::is_far_ahead(entry));
  ReceiveTags::take_generation(entry);
  CHECK(ReceiveTags::is_far_ahead(entry));
}

TEST_CASE("outcome_of__the_newest_receive_of_the_tag_under_its_number") {
  ReceiveTagsWorld world;
  world.post(5);
  core::FinishedReceive finished;
  finished.peer = 1;
  finished.transfer = {5, 0};
  finished.status = wire::StopStatus::kDeadline;
  finished.missing_bytes = 44;
  world.tags.keep_outcome(finished);
  REQUIRE(world.tags.outcome_of(1, {5, 0}).has_value());
  CHECK(world.tags.outcome_of(1, {5, 0})->status == wire::StopStatus::kDeadline);
  CHECK(world.tags.outcome_of(1, {5, 0})->missing_bytes == 44);
  CHECK_FALSE(world.tags.outcome_of(1, {5, 1}).has_value());
  CHECK_FALSE(world.tags.outcome_of(2, {5, 0}).has_value());
  // Nothing of its send arrived: its number moves with the floor.
  world.retire(1'000, {});
  CHECK_FALSE(world.tags.outcome_of(1, {5, 0}).has_value());
  CHECK(world.tags.outcome_of(1, {5, 1'000}).has_value());
  world.tags.note_seen(1, {5, 1'000});
  world.retire(2'000, {});
  CHECK_FALSE(world.tags.outcome_of(1, {5, 1'000}).has_value());  // forgotten with the tag
}

TEST_CASE("for_post__fails_when_the_peer_may_have_no_further_tag") {
  ReceiveTagsWorld world;
  std::uint64_t tag = 0;
  while (world.tags.for_post(1, ++tag) != nullptr) ReceiveTags::take_generation(*world.tags.for_post(1, tag));
  CHECK(tag - 1 == ReceiveTagsWorld::config().own_tags_per_peer() + ReceiveTagsWorld::config().common_tags());
  CHECK(world.tags.for_post(2, 1) != nullptr);  // a share of its own
  world.tags.reset(1);
  CHECK(world.post(99) == 0);
}

}  // namespace
