// Moves partitions of a service that is gone to the next one, which repeats their round (section 14.1 of PROTOCOL.md).
//
// Absent on purpose: which services are gone (push_pull.h, survivors.h), which is next (service_choice.h), and what a
// partition keeps for the next (takeover_record.h). Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collective/push_pull_key.h"
#include "collective/push_pull_posts.h"
#include "collective/service_choice.h"
#include "collective/survivors.h"
#include "collective/verbs.h"

namespace mlt::collective {

class PartitionMoves {
 public:
  // `survivors`: empty where there is one service.
  PartitionMoves(const ServiceChoice& services, const std::optional<Survivors>& survivors, PushPullPosts& posts,
                 Verbs& verbs)
      : services_(services), survivors_(survivors), posts_(posts), verbs_(verbs) {}

  // The connection with its service ended: all that was posted to it ends. The survivors decide what follows.
  void suspend(PushPullKey& key, std::uint32_t partition);
  // Its service is gone. Returns why the key fails, if no other service can take the partition over.
  std::optional<KeyFailure> move(TimeNs now, PushPullKey& key, std::uint32_t partition);
  // Asks the next service to take over, if the partition moves and nothing is posted to the one that is gone any more.
  void ask_next_service(PushPullKey& key, std::uint32_t partition);

 private:
  using Partition = PushPullKey::Partition;

  void leave(PushPullKey& key, Partition& partition);

  const ServiceChoice& services_;
  const std::optional<Survivors>& survivors_;
  PushPullPosts& posts_;
  Verbs& verbs_;
  std::vector<std::byte> scratch_;
};

}  // namespace mlt::collective
