// The worker's half of push-pull: cuts tensors into partitions over the services, pushes them, pulls the results.
//
// A state machine over Verbs: no thread, no socket. A key identifies a tensor for the life of the job; at most one
// push-pull of a key is in progress. Pushes may lose data up to the bound, pulls only where the request says so: else
// every worker ends with identical bits (section 14 of PROTOCOL.md). Where services may die, their partitions move to
// the others: each worker keeps the newest result of each, and which segments of the next it has. Owned by the driver's
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "collective/checksums.h"
#include "collective/deadlines.h"
#include "collective/messages.h"
#include "collective/partition_moves.h"
#include "collective/push_pull_key.h"
#include "collective/push_pull_posts.h"
#include "collective/push_pull_request.h"
#include "collective/reported_gone.h"
#include "collective/service_choice.h"
#include "collective/service_loads.h"
#include "collective/survivors.h"
#include "collective/verbs.h"

namespace mlt::collective {

struct PushPullConfig {
  std::uint16_t rank = 0;
  std::vector<std::uint16_t> services;
  std::uint16_t max_dead_services = 0;  // that may die while their partitions move to the others
  base::DurationNs default_timeout_ns = 0;
  // From the loss of a connection until the job has decided which end continues.
  base::DurationNs max_undecided_ns = 33 * base::kSecond;
  std::optional<ServiceLoads> loads;  // of the services; default: equal
  bool checksums = false;             // of each push and result, as at all other workers and services
};

class PushPull {
 public:
  PushPull(const PushPullConfig& config, Verbs& verbs);
  PushPull(const PushPull&) = delete;
  PushPull& operator=(const PushPull&) = delete;

  void start(TimeNs now, const PushPullRequest& request);
  void on_message(TimeNs now, std::uint16_t from, const Message& message);
  void on_completion(TimeNs now, const core::Completion& completion);
  // Where ranks connect on first use.
  void on_peer_up(TimeNs now, std::uint16_t peer);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  void retry(TimeNs now);
  // Fails keys that time out before all of their pushes and pulls are posted; after that the endpoint's timers apply.
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const;
  bool poll_done(PushPullDone& done);
  // Who takes no further part; null where there is one service.
  const Survivors* survivors() const { return survivors_ ? &*survivors_ : nullptr; }
  // Workers that a service sums without, because they died or left.
  std::size_t workers_gone() const { return gone_.count(); }
  // Of results.
  const ChecksumCounts& checksum_counts() const { return checksum_counts_; }

 private:
  using Key = PushPullKey;
  using Partition = PushPullKey::Partition;
  using CompletionStatus = core::CompletionStatus;

  Key& key_of(const PushPullRequest& request);
  // The key of a message about a partition; null if it has none, or another rank than `from` sums it.
  Key* find(std::uint16_t from, std::uint64_t key, std::uint32_t partition);
  void send_loads();
  void register_partitions(TimeNs now, Key& key);
  // Which pushes the sum of a partition that is not here lacks.
  void ask_who_is_late(Key& key);
  // Whether the message is the reply to the question.
  static bool is_reply(const Key& key, std::uint16_t from, std::uint32_t partition);
  // A service sums the partition, from the round after so many on.
  void on_confirmed(TimeNs now, Key& key, const Moved& moved);
  void on_refused(TimeNs now, Key& key, const Refused& refused);
  void on_aborted(TimeNs now, Key& key, const Aborted& aborted);
  void post_all(TimeNs now, Key& key);
  void post(TimeNs now, Key& key, std::uint32_t partition);
  void on_replayed(TimeNs now, Key& key, std::uint32_t partition, CompletionStatus status);
  // The result is here, and waits for its service's checksum.
  void hold_result(TimeNs now, Key& key, std::uint32_t partition, const core::Completion& completion);
  // Ends the pull once both are here.
  void check_result(TimeNs now, Key& key, std::uint32_t partition);
  KeyFailure transfer_failure(const Key& key, std::uint32_t partition, bool is_send, CompletionStatus status) const;
  // Empty if the endpoint's timers end the key.
  std::optional<KeyFailure> timeout_failure(const Key& key) const;
  void fail_at_once(const PushPullRequest& request, CompletionStatus status, int peer, const std::string& text);
  // Only the first cause counts. Cancels operations in progress and waits for them, so that the buffers are unused.
  void break_key(TimeNs now, Key& key, const KeyFailure& failure);
  void on_damaged(TimeNs now, Key& key, const Damaged& damaged);
  void finish_if_over(TimeNs now, Key& key);

  void apply_exclusions(TimeNs now);
  // It is among the dead: its partitions move if so many may be dead.
  void on_dead(TimeNs now, std::uint16_t service);
  void move_partitions(TimeNs now, std::uint16_t service);
  void break_keys_of(TimeNs now, std::uint16_t service);
  std::string down_text(std::uint16_t service) const;
  // The others continue without this worker.
  void end(TimeNs now);

  ServiceChoice services_;
  Verbs& verbs_;
  base::DurationNs default_timeout_ns_;
  std::uint16_t rank_;
  bool has_checksums_;
  ChecksumCounts checksum_counts_;
  bool has_sent_loads_ = false;
  std::optional<Survivors> survivors_;  // where there are several services
  ReportedGone gone_;                   // workers that a service sums without
  PushPullPosts posts_;
  PartitionMoves moves_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_key_;
  std::vector<std::unique_ptr<Key>> keys_;
  Deadlines deadlines_;  // of the push-pulls in progress, by index of their key
  std::deque<PushPullDone> finished_;
  std::vector<std::byte> scratch_;
};

}  // namespace mlt::collective
