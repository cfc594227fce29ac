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
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "collective/messages.h"
#include "collective/partition_grid.h"
#include "collective/service_choice.h"
#include "collective/survivors.h"
#include "collective/takeover_record.h"
#include "collective/verbs.h"

namespace mlt::collective {

struct PushPullRequest {
  OperationId operation = 0;
  std::uint64_t key = 0;
  std::span<const float> input;
  std::span<float> output;  // as long as input; may be the same memory
  double loss_bound = 0;
  bool lossy_results = false;  // pulls may lose as much: where they do, the worker's own term stands in
  bool average = true;
  std::uint32_t order = 0;
  std::uint8_t traffic_class = 0;
  // Tags of all partitions' segments one after another (partition_segments() each), or null: all important. Must be
  // valid until the operation ends.
  const core::SegmentPriority* priorities = nullptr;
  base::DurationNs timeout_ns = 0;  // from the start, registration included; 0: the default
};

struct PushPullDone {
  OperationId operation = 0;
  std::uint64_t key = 0;
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  std::uint64_t total_bytes = 0;
  std::uint64_t missing_bytes = 0;  // missing from this worker's pushes and pulls
  std::uint64_t repaired_segments = 0;
  base::DurationNs elapsed_ns = 0;
  int failed_peer = -1;
  std::string error;  // empty unless it failed
};

struct PushPullConfig {
  std::uint16_t rank = 0;
  std::vector<std::uint16_t> services;
  std::uint16_t max_dead_services = 0;  // that may die while their partitions move to the others
  base::DurationNs default_timeout_ns = 0;
  // From the loss of a connection until the job has decided who goes on.
  base::DurationNs max_undecided_ns = 33 * base::kSecond;
};

class PushPull {
 public:
  PushPull(const PushPullConfig& config, Verbs& verbs);

  void start(TimeNs now, const PushPullRequest& request);
  void on_message(TimeNs now, std::uint16_t from, const Message& message);
  void on_completion(TimeNs now, const core::Completion& completion);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  void retry(TimeNs now);
  // Fails keys that time out before all of their pushes and pulls are posted; after that the endpoint's timers apply.
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const;
  bool poll_done(PushPullDone& done);
  // Who takes no further part; null where there is one service.
  const Survivors* survivors() const { return survivors_ ? &*survivors_ : nullptr; }
  // Workers that a service sums without, because they died or left.
  std::size_t workers_gone() const { return gone_.size(); }

 private:
  struct Key;
  struct Partition {
    TakeoverRecord record;
    std::uint64_t missing_bytes = 0;  // from the push in progress
    bool taken_over = false;          // a service that is gone summed it before
    bool undecided = false;    // the connection with its service is lost: the survivors decide which of both goes on
    bool moving = false;       // its service is gone; when nothing is posted to it any more, the next one is asked
    bool must_replay = false;  // the next service needs the newest result
    bool replaying = false;
    std::uint16_t service = 0;
    std::size_t first = 0;  // first element
    std::size_t count = 0;
    std::size_t first_segment = 0;  // in the request's priorities
    std::size_t segments = 0;
    bool registered = false;
    bool on_demand = false;  // the service requires Ready before each push
    bool pushing = false;
    bool pulling = false;
    bool push_posted = false;
    bool pull_posted = false;
  };
  struct Key {
    std::uint32_t index = 0;
    std::uint64_t key = 0;
    std::size_t elements = 0;
    double loss_bound = 0;
    bool average = true;
    std::vector<Partition> partitions;
    bool was_registered = false;
    std::size_t unregistered = 0;
    bool active = false;
    bool posted = false;
    PushPullRequest request;
    TimeNs started_ns = 0;
    TimeNs expires_ns = base::kNever;
    std::size_t outstanding = 0;  // pushes and pulls in progress
    PushPullDone done;
    std::string broken;  // why the key is unusable
    int broken_by = -1;
    int next_broken_by = -1;  // the worker whose failure breaks the key after the current round
  };
  struct Unposted {
    std::uint32_t key;
    std::uint32_t partition;
  };

  Key& key_of(const PushPullRequest& request);
  Register shape_of(const Key& key, std::uint32_t partition) const;
  void register_partitions(Key& key);
  void on_confirmed(TimeNs now, Key& key, std::uint32_t partition, std::uint64_t rounds);
  // The connection with it ended; all that was posted to it ends.
  void suspend_partitions(std::uint16_t service);
  void apply_exclusions(TimeNs now);
  void on_service_down(TimeNs now, std::uint16_t service);
  void break_keys_of(TimeNs now, std::uint16_t service);
  // The others go on without this worker.
  void end(TimeNs now);
  void move_partition(TimeNs now, Key& key, std::uint32_t partition);
  void ask_next_service(Key& key, std::uint32_t partition);
  core::PostStatus post_replay(TimeNs now, Key& key, std::uint32_t partition);
  void post_all(TimeNs now, Key& key);
  void post_partition(TimeNs now, Key& key, std::uint32_t partition);
  // Puts this worker's own term in the place of what the result of a partition misses.
  static void stand_in(const Key& key, const Partition& partition, const core::Completion& completion);
  void break_key(TimeNs now, Key& key, core::CompletionStatus status, int peer, const std::string& text);
  void abort(TimeNs now, Key& key, const Aborted& aborted);
  void finish_if_over(TimeNs now, Key& key);
  void fail_at_once(const PushPullRequest& request, core::CompletionStatus status, int peer, const std::string& text);
  void on_gone(std::uint16_t from, const Gone& gone);
  std::string abort_text(std::uint64_t key, int failed_rank) const;
  std::string down_text(std::uint16_t service) const;
  OperationId operation(const Key& key, std::uint32_t partition, bool is_send) const;
  Key* find(std::uint64_t key, std::uint32_t partition);

  ServiceChoice services_;
  Verbs& verbs_;
  base::DurationNs default_timeout_ns_;
  std::optional<Survivors> survivors_;  // where there are several services
  std::unordered_map<std::uint64_t, std::uint32_t> by_key_;
  std::vector<std::unique_ptr<Key>> keys_;
  std::vector<Unposted> unposted_;
  std::set<std::pair<TimeNs, std::uint32_t>> timers_;  // expiry and index of every active key; one each
  std::deque<PushPullDone> finished_;
  std::set<std::uint16_t> gone_;  // workers that a service sums without
  std::vector<std::byte> scratch_;
};

}  // namespace mlt::collective
