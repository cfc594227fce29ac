// A summation service: sums workers' pushes in place, averages over the pushes that arrived, sends the result reliably.
//
// BytePS (OSDI'20) section 5 for the service, MLT appendix A for the average. A state machine over Verbs: no thread, no
// socket. Pushes are added straight from the packets, and a segment is sent back once the segments of all workers are
// added: pushes and results of a partition overlap. Two buffers per partition: pushes of the next iteration may
// arrive while results of this one are still being sent. A worker that dies counts as loss up to a bound, and so does
// one whose push comes late, as far as the push-pull's loss bound allows. Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "collective/messages.h"
#include "collective/partition_sums.h"
#include "collective/survivors.h"
#include "collective/takeover.h"
#include "collective/verbs.h"

namespace mlt::collective {

struct SummationConfig {
  std::uint16_t workers = 0;                          // ranks 0 .. workers-1
  std::uint16_t services = 1;                         // the ranks that follow
  std::uint16_t rank = 0;                             // this one, where there are several
  std::uint64_t max_bytes = std::uint64_t{16} << 30;  // max memory of all partitions together
  // Max partitions times workers. Each takes one of the endpoint's tags (EndpointConfig::max_tags).
  std::uint32_t max_registrations = 32'768;
  // Max receives posted between rounds for pushes that may come late. They hold endpoint slots, so the max is below the
  // endpoint's (EndpointConfig::max_receives): the rest serves workers that announce a push.
  std::uint32_t max_standing = 512;
  // Workers that may die or leave while the others continue; 0: none. One worker must be left.
  std::uint16_t max_dead_workers = 0;
  // From the first complete push of a round, which every worker has registered for, to its end without the pushes that
  // are missing; 0: no limit.
  base::DurationNs max_wait_ns = 0;
  // From the first report of a worker that had a part in rounds of a service that is gone to that of the last, and
  // from the loss of a connection until the job has decided who goes on.
  base::DurationNs max_takeover_wait_ns = 33 * base::kSecond;
};

class Summation {
 public:
  Summation(const SummationConfig& config, Verbs& verbs);

  void on_message(TimeNs now, std::uint16_t from, const Message& message);
  void on_completion(TimeNs now, const core::Completion& completion);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  // Why the others go on without this service; empty if they do not.
  const std::string& out_text() const { return survivors_.out_text(); }
  const Survivors& survivors() const { return survivors_; }
  // Posts results that have a segment to send, and retries posts that failed for lack of space. Call after completions
  // were taken, and after arrivals when has_begun_results().
  void retry(TimeNs now);
  bool has_begun_results() const { return !begun_results_.empty(); }
  // Ends rounds that wait for pushes for too long.
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const;

  std::uint64_t rounds_summed() const { return rounds_summed_; }
  std::uint16_t workers_gone() const { return gone_count_; }
  // Pushes that rounds ended without, because they came late.
  std::uint64_t late_pushes() const { return late_pushes_; }
  std::uint64_t bytes_held() const { return bytes_held_; }

 private:
  // State of a worker's push in the round: not expected yet, receive waits for space, receive posted, over: complete,
  // late, or of a worker that is gone.
  enum class Push : std::uint8_t { kIdle, kWaiting, kPosted, kArrived };
  using Buffer = PartitionSums::Buffer;
  struct Partition {
    Partition(const Register& registration, std::uint32_t own_index, std::uint16_t workers,
              std::vector<std::uint32_t>& begun)
        : shape(registration),
          index(own_index),
          sums(registration, own_index, workers, begun),
          registered(workers),
          pushes(workers),
          on_demand(workers),
          ready(workers),
          late(workers),
          early_receives(workers) {}

    Register shape;
    std::uint32_t index;
    PartitionSums sums;
    std::vector<bool> registered;  // per worker
    std::vector<Push> pushes;      // per worker
    std::vector<bool> on_demand;   // per worker: its receive is posted when Ready arrives
    std::vector<bool> ready;       // per worker: Ready for the next round arrived before this one was over
    std::vector<bool> late;        // per worker: the round ends without the rest of its push
    // Per worker: receives posted for late pushes before their Ready, which is still to come.
    std::vector<std::uint8_t> early_receives;
    std::uint16_t arrived = 0;        // pushes of this round that are over
    bool has_push = false;            // one of them is complete
    bool is_closed = false;           // this round has stopped waiting for pushes
    std::uint64_t missing_bytes = 0;  // from complete pushes of this round
    TimeNs closes_ns = base::kNever;  // in timers_: when it will
    Takeover takeover;                // of a partition that a service that is gone summed before
    std::uint16_t first_worker = 0;   // `shape` is its registration
    int failed_rank = -1;             // no further rounds; -1: none
    std::string refusal;              // why, where a worker registered another tensor than the first
    std::string overdue;              // why, where pushes came too late
    bool is_failure_announced = false;

    bool is_summed() const { return arrived == pushes.size(); }
  };
  struct Unposted {
    std::uint32_t partition;
    std::uint16_t worker;
    std::uint8_t buffer;
  };

  // `move`: the worker takes it over from a service that is gone; null: it registers it.
  void on_register(TimeNs now, std::uint16_t from, const Register& shape, const Move* move);
  void begin_takeover(TimeNs now, Partition& partition);
  std::unique_ptr<Partition> make_partition(const Register& shape);
  // The partition of a registration, made if it is new; null if the service has no space for it, and refused it.
  Partition* find_or_make(std::uint16_t from, const Register& shape, bool is_takeover);
  void on_ready(TimeNs now, std::uint16_t from, const Ready& ready);
  void refuse(std::uint16_t to, const Register& shape, const std::string& text);
  void expect_push(TimeNs now, Partition& partition, std::uint16_t worker);
  void send_results(TimeNs now, Partition& partition);
  // False if there is no space: try again later.
  bool post_push(TimeNs now, Partition& partition, std::uint16_t worker);
  bool post_result(TimeNs now, Partition& partition, std::uint16_t worker, std::uint8_t buffer);
  // The worker's push is over, whatever arrived of it.
  void end_push(TimeNs now, Partition& partition, std::uint16_t worker);
  void on_pushed(TimeNs now, Partition& partition);
  // Begins the next round if this one is over.
  void advance(TimeNs now, Partition& partition);
  void begin_round(TimeNs now, Partition& partition);
  // This worker's connection ended, or it takes no further part here: the survivors decide.
  void lose(TimeNs now, std::uint16_t worker);
  void apply_exclusions(TimeNs now);
  void on_gone(TimeNs now, std::uint16_t worker);
  // The others go on without this service.
  void end(TimeNs now);
  bool is_undecided(std::uint16_t worker) const { return survivors_.is_lost(worker) && !gone_[worker]; }
  // Some rank may die while the others go on.
  bool has_spare() const { return config_.max_dead_workers > 0 || survivors_.max_dead_services() > 0; }
  // The worker is gone, and the partition is summed without it from now on.
  void lose_worker(TimeNs now, Partition& partition, std::uint16_t worker);
  void forget_posts(std::uint16_t worker);
  void report_gone();
  void send_gone(std::uint16_t worker, std::uint16_t gone);
  // So many more workers may be gone.
  bool may_lose(std::size_t workers) const {
    return gone_count_ + workers <= config_.max_dead_workers && gone_count_ + workers < config_.workers;
  }
  // Starts and stops the clock of max_wait_ns.
  void limit_wait(TimeNs now, Partition& partition);
  void stop_waiting(Partition& partition);
  void close_round(TimeNs now, Partition& partition);
  void close_takeover(TimeNs now, Partition& partition);
  // Ends the rounds of a partition because of these workers: without them if so many may be dead, else with an error.
  void give_up(TimeNs now, Partition& partition, const std::vector<std::uint16_t>& workers, const std::string& text);
  static void end_result(Buffer& buffer, std::uint16_t worker);
  static bool has_due_result(const Buffer& buffer);
  std::uint64_t missing_elements(Partition& partition, std::size_t late) const;
  void cancel_late(TimeNs now, Partition& partition, std::uint16_t worker);
  void fail(TimeNs now, Partition& partition, std::uint16_t rank);
  void announce_failure(TimeNs now, Partition& partition);
  // The message about a partition that has failed; in scratch_.
  std::span<const std::byte> failure_of(const Partition& partition);
  OperationId operation(const Partition& partition, std::uint16_t worker, std::uint8_t buffer, bool is_send) const;

  SummationConfig config_;
  Verbs& verbs_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> by_key_;
  std::vector<std::unique_ptr<Partition>> partitions_;
  // Posts that wait for space, in order: a new post never overtakes them.
  std::deque<Unposted> unposted_pushes_;
  std::deque<Unposted> unposted_results_;
  std::vector<std::uint32_t> begun_results_;  // partitions whose results of this round are to be posted
  std::uint32_t standing_ = 0;                // registrations with a receive posted between rounds
  std::vector<std::byte> scratch_;
  Survivors survivors_;
  // Pushes that their workers cancelled: the reason may be that this service is excluded, which it has yet to learn.
  struct GivenUp {
    TimeNs fails_ns;
    std::uint32_t partition;
    std::uint16_t worker;
  };
  std::deque<GivenUp> given_up_;
  std::vector<bool> gone_;  // per worker: it died or left
  std::uint16_t gone_count_ = 0;
  std::vector<std::uint16_t> unreported_;              // of them: no sum was made without them yet
  int gone_worker_ = -1;                               // the first beyond max_dead_workers: no sum is possible any more
  std::set<std::pair<TimeNs, std::uint32_t>> timers_;  // closes_ns and index of partitions
  std::uint64_t late_pushes_ = 0;
  TimeNs late_notice_ns_ = base::kNever;  // of the newest line about them, one in a second
  std::uint64_t rounds_summed_ = 0;
  std::uint64_t bytes_held_ = 0;
};

}  // namespace mlt::collective
