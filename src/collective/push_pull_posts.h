// The posts of push-pull at a worker: receives of results, then sends of pushes. Those that the endpoint has no space
// for wait.
//
// Absent on purpose: which partitions are due (push_pull.h). Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collective/push_pull_key.h"
#include "collective/service_choice.h"
#include "collective/verbs.h"

namespace mlt::collective {

class PushPullPosts {
 public:
  // A post, as it is in its operation's number.
  struct Id {
    std::uint32_t key = 0;
    std::uint32_t partition = 0;
    bool is_send = false;

    OperationId operation() const;
    static Id of(OperationId operation);
  };
  struct Waiting {
    std::uint32_t key;  // its index
    std::uint32_t partition;
  };

  PushPullPosts(const ServiceChoice& services, Verbs& verbs, base::DurationNs replay_timeout_ns)
      : services_(services), verbs_(verbs), replay_timeout_ns_(replay_timeout_ns) {}

  // Posts what of the partition is due and not posted: a result that the next service needs, the receive of its
  // result, and the push. Returns why the key fails, if it does.
  std::optional<KeyFailure> post(TimeNs now, PushPullKey& key, std::uint32_t partition);
  // Partitions that waited for space since the last call.
  std::vector<Waiting> take_waiting() { return std::exchange(waiting_, {}); }
  bool is_waiting(const PushPullKey& key) const;
  void forget(const PushPullKey& key);
  void forget(const PushPullKey& key, std::uint32_t partition);
  void cancel_push(TimeNs now, const PushPullKey& key, std::uint32_t partition);
  void cancel_pull(TimeNs now, const PushPullKey& key, std::uint32_t partition);

 private:
  core::PostStatus post_replay(TimeNs now, PushPullKey& key, std::uint32_t partition);
  core::PostStatus post_pull(TimeNs now, PushPullKey& key, std::uint32_t partition);
  core::PostStatus post_push(TimeNs now, PushPullKey& key, std::uint32_t partition);
  bool send_checksum(const PushPullKey& key, std::uint32_t partition, std::span<const std::byte> data);
  bool send_ready(const PushPullKey& key, std::uint32_t partition);

  const ServiceChoice& services_;
  Verbs& verbs_;
  base::DurationNs replay_timeout_ns_;
  std::vector<Waiting> waiting_;
  std::vector<std::byte> scratch_;
};

}  // namespace mlt::collective
