// What the parts of push-pull are over at a worker: two services, ranks 2 and 3, without a network.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collective/partition_moves.h"
#include "collective/push_pull_key.h"
#include "collective/push_pull_posts.h"
#include "collective/survivors.h"
#include "recording_verbs.h"

namespace mlt::test {

struct PushPullWorld {
  explicit PushPullWorld(std::uint16_t max_dead_services = 1) : services({2, 3}, max_dead_services) {
    survivors.emplace(collective::Survivors::Config{0, 2, 2}, verbs);
    survivors->set_limits(0, max_dead_services);
  }

  // Key 1, over as many partitions as there are 65,536 elements, up to 2; all are registered.
  collective::PushPullKey& key(std::size_t elements = 131'072) {
    input.assign(elements, 1.0F);
    output.assign(elements, 0.0F);
    made.emplace(0, request(), services, verbs);
    for (auto& partition : made->partitions) partition.registered = true;
    return *made;
  }
  collective::PushPullRequest request() {
    collective::PushPullRequest request;
    request.operation = 5;
    request.key = 1;
    request.input = input;
    request.output = output;
    return request;
  }

  RecordingVerbs verbs;
  collective::ServiceChoice services;
  std::optional<collective::Survivors> survivors;
  collective::PushPullPosts posts{services, verbs, base::kSecond};
  collective::PartitionMoves moves{services, survivors, posts, verbs};
  std::vector<float> input, output;
  std::optional<collective::PushPullKey> made;
};

}  // namespace mlt::test
