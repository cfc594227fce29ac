#include "core/send_tags.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "core/send_state.h"

namespace {

using namespace mlt;
using core::SendTags;

struct SendTagsWorld {
  explicit SendTagsWorld(const core::EndpointConfig& config = config_of(4)) : shared(config), tags(shared) {
    for (std::size_t peer = 0; peer < shared.peers.size(); ++peer) shared.peers[peer].up = true;
  }
  static core::EndpointConfig config_of(std::uint32_t retire_after) {
    core::EndpointConfig config;
    config.peers = 3;
    config.max_sends = config.max_receives = 16;
    config.max_tags = 64;
    config.retire_after = retire_after;
    return config;
  }

  // The generation of a send of the tag that is posted now.
  std::uint32_t post(std::uint64_t tag, std::uint16_t peer = 1) {
    core::SendTag* entry = tags.for_post(peer, tag);
    REQUIRE(entry != nullptr);
    return tags.take_generation(*entry);
  }
  void complete(std::uint64_t tag, std::uint32_t generation, std::uint16_t peer = 1) {
    tags.note_posted(peer, {tag, generation});
    tags.leave(peer, {tag, generation}, true);
  }
  struct List {
    std::uint32_t frames = 0;
    std::uint32_t floor = 0;
    std::set<std::uint64_t> kept;
  };
  // What the peer is told: every frame that is due.
  List retirement() {
    List list;
    while (tags.fill_retirement(output)) {
      wire::Retire retire;
      const std::span<const std::byte> bytes(output.bytes, output.size);
      REQUIRE(wire::decode_prefix(bytes, retire.prefix) == wire::DropReason::kNone);
      REQUIRE(wire::decode_retire(bytes, retire.prefix, retire) == wire::DropReason::kNone);
      ++list.frames;
      list.floor = retire.floor;
      for (std::uint32_t i = 0; i < retire.kept_count; ++i) REQUIRE(list.kept.insert(retire.kept[i]).second);
    }
    return list;
  }

  core::Shared shared;
  SendTags tags;
  core::ControlOutput output;
};

TEST_CASE("take_generation__counts_the_sends_of_each_tag_and_peer") {
  SendTagsWorld world;
  CHECK(world.post(5) == 0);
  CHECK(world.post(5) == 1);
  CHECK(world.post(6) == 0);
  CHECK(world.post(5, 2) == 0);
  CHECK(world.tags.count(1) == 2);
  CHECK(world.tags.held(1) == 2);
}

TEST_CASE("leave__frees_the_tag_only_once_its_sends_ended_and_matched") {
  SendTagsWorld world;
  const std::uint32_t first = world.post(5), second = world.post(5);
  world.tags.leave(1, {5, first}, false);  // failed: its receive may be posted later
  CHECK(world.tags.held(1) == 1);
  world.tags.leave(1, {5, second}, true);
  CHECK(world.tags.held(1) == 1);
  world.tags.note_posted(1, {5, first});
  CHECK(world.tags.held(1) == 0);
  CHECK(world.tags.count(1) == 1);
}

TEST_CASE("retirement__forgets_tags_not_in_use_and_lists_the_others") {
  SendTagsWorld world;
  const std::uint32_t open = world.post(100);
  for (std::uint64_t tag = 1; tag <= 2; ++tag) world.complete(tag, world.post(tag));
  CHECK(world.retirement().frames == 0);
  CHECK(world.post(3) == 1 + core::kGenerationGap);  // the fourth new tag: enough
  const SendTagsWorld::List list = world.retirement();
  CHECK(list.frames == 1);
  CHECK(list.floor == 1 + core::kGenerationGap);
  CHECK(list.kept == std::set<std::uint64_t>{100});
  CHECK(world.post(100) == open + 1);
  CHECK(world.post(1) == list.floor);  // unknown now
  CHECK(world.shared.counters.value(core::Counter::k_retirements_sent) == 1);
}

// While all tags are in use, none can be forgotten; the ends of the sends make up for it, without another post.
TEST_CASE("retirement__follows_the_ends_of_sends_that_put_it_off") {
  SendTagsWorld world;
  std::vector<std::uint32_t> generations;
  for (std::uint64_t tag = 0; tag < 6; ++tag) generations.push_back(world.post(tag));
  for (std::uint64_t tag = 0; tag < 6; ++tag) world.tags.note_posted(1, {tag, generations[tag]});
  CHECK(world.retirement().frames == 0);
  for (std::uint64_t tag = 0; tag < 6; ++tag) world.tags.leave(1, {tag, generations[tag]}, true);
  CHECK(world.retirement().frames == 1);
  CHECK(world.shared.counters.value(core::Counter::k_retirements_sent) == 1);
}

TEST_CASE("retirement__not_to_a_peer_that_is_down_nor_if_switched_off") {
  for (const bool down : {true, false}) {
    SendTagsWorld world(SendTagsWorld::config_of(down ? 4 : 0));
    world.shared.peers[1].up = !down;
    for (std::uint64_t tag = 1; tag <= 10; ++tag) world.complete(tag, world.post(tag));
    CHECK(world.retirement().frames == 0);
    CHECK(world.tags.count(1) == 10);
  }
}

TEST_CASE("for_post__fails_only_when_the_peer_may_have_no_further_tag") {
  SendTagsWorld world;
  // Peer 1 fills its own share and the common one with tags in use.
  std::uint64_t tag = 0;
  while (world.tags.for_post(1, ++tag) != nullptr) world.tags.take_generation(*world.tags.for_post(1, tag));
  CHECK(world.tags.count(1) == world.shared.config.own_tags_per_peer() + world.shared.config.common_tags());
  CHECK(world.tags.for_post(1, 1) != nullptr);  // known
  for (std::uint32_t i = 0; i < world.shared.config.own_tags_per_peer(); ++i) world.post(i, 2);
  CHECK(world.tags.for_post(2, 1'000) == nullptr);
}

TEST_CASE("reset__starts_every_tag_of_the_peer_at_zero") {
  SendTagsWorld world;
  world.post(5, 2);
  for (std::uint64_t tag = 1; tag <= 8; ++tag) world.complete(tag, world.post(tag));
  world.tags.reset(1);
  CHECK(world.retirement().frames == 0);
  CHECK(world.tags.count(1) == 0);
  CHECK(world.post(8) == 0);
  CHECK(world.post(5, 2) == 1);
}

}  // namespace
