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
#include <string>
#include <vector>

#include "collective/agreed_loads.h"
#include "collective/checksums.h"
#include "collective/deadlines.h"
#include "collective/gone_workers.h"
#include "collective/messages.h"
#include "collective/partition_table.h"
#include "collective/service_partition.h"
#include "collective/service_posts.h"
#include "collective/survivors.h"
#include "collective/verbs.h"
#include "collective/wait_limit.h"

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
  // from the loss of a connection until the job has decided which end continues.
  base::DurationNs max_takeover_wait_ns = 33 * base::kSecond;
  bool checksums = false;  // of each push and result, as at all workers
};

class Summation {
 public:
  Summation(const SummationConfig& config, Verbs& verbs);
  Summation(const Summation&) = delete;
  Summation& operator=(const Summation&) = delete;

  void on_message(TimeNs now, std::uint16_t from, const Message& message);
  void on_completion(TimeNs now, const core::Completion& completion);
  // Where ranks connect on first use.
  void on_peer_up(TimeNs now, std::uint16_t peer);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  // Why the others continue without this service; empty if they do not.
  const std::string& out_text() const { return survivors_.out_text(); }
  const Survivors& survivors() const { return survivors_; }
  // Posts results that have a segment to send, and retries posts that failed for lack of space. Call after completions
  // were taken, and after arrivals when has_begun_results().
  void retry(TimeNs now);
  bool has_begun_results() const { return partitions_.has_begun(); }
  // Ends rounds that wait for pushes for too long.
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const;

  std::uint64_t rounds_summed() const { return rounds_summed_; }
  std::uint16_t workers_gone() const { return gone_.count(); }
  // Pushes that rounds ended without, because they came late.
  std::uint64_t late_pushes() const { return late_pushes_; }
  std::uint64_t bytes_held() const { return partitions_.bytes_held(); }
  // Of pushes.
  const ChecksumCounts& checksum_counts() const { return checksum_counts_; }

 private:
  using Partition = ServicePartition;
  using Push = ServicePartition::Push;

  // `move`: the worker takes it over from a service that is gone; null: it registers it.
  void on_register(TimeNs now, std::uint16_t from, const Register& shape, const Move* move);
  // False if the worker takes no part here, which it was told.
  bool admit(TimeNs now, std::uint16_t from, const Register& shape);
  void on_loads(TimeNs now, std::uint16_t from, const std::vector<std::uint32_t>& units);
  void on_takeover_report(TimeNs now, Partition& partition, std::uint16_t from, const Move* move, bool has_part);
  void begin_takeover(TimeNs now, Partition& partition);
  void close_takeover(TimeNs now, Partition& partition);
  void on_ready(TimeNs now, std::uint16_t from, const Ready& ready);
  void refuse(std::uint16_t to, const Register& shape, const std::string& text);
  // To a worker that asks whose pushes, or receives of results, the round waits for. False if it waits for no other.
  bool reply_with_late(Partition& partition, std::uint16_t from);
  // The worker's first round here begins.
  void begin_pushes(TimeNs now, Partition& partition, std::uint16_t worker);

  // The worker's push is over, whatever arrived of it.
  void end_push(TimeNs now, Partition& partition, std::uint16_t worker);
  // The same, of a partition without checksums too: the push is not compared.
  void end_push_unchecked(TimeNs now, Partition& partition, std::uint16_t worker);
  // The worker's push is whole: ends it, or the partition's rounds, once its checksum is here.
  void check_push(TimeNs now, Partition& partition, std::uint16_t worker);
  void on_checksum(TimeNs now, std::uint16_t from, const Checksum& checksum);
  void on_damaged(TimeNs now, std::uint16_t from, const Damaged& damaged);
  // No further rounds of the partition, because data of `rank` arrived changed.
  void give_up_damaged(TimeNs now, Partition& partition, std::uint16_t rank, const std::string& text);
  void send_result_checksums(const Partition& partition);
  void on_pushed(TimeNs now, Partition& partition);
  // Begins the next round if this one is over.
  void advance(TimeNs now, Partition& partition);
  void begin_round(TimeNs now, Partition& partition);
  // Starts the clock of max_wait_ns.
  void limit_wait(TimeNs now, Partition& partition);
  void close_round(TimeNs now, Partition& partition);
  // Those that are whole, and wait for their checksums. False if there are none.
  bool end_unchecked_pushes(TimeNs now, Partition& partition);
  // A line about late pushes or checksums, one in a second.
  void notice_late(TimeNs now, const std::string& text);
  void sum_without(TimeNs now, Partition& partition, const WaitLimit::Outcome& outcome);
  // Ends the rounds of a partition because of these workers: without them if so many may be dead, else with an error.
  void give_up(TimeNs now, Partition& partition, const std::vector<std::uint16_t>& workers, const std::string& text);

  // This worker's connection ended, or it takes no further part here: the survivors decide.
  void lose(TimeNs now, std::uint16_t worker);
  void apply_exclusions(TimeNs now);
  void on_gone(TimeNs now, std::uint16_t worker);
  // The others continue without this service.
  void end(TimeNs now);
  // Some rank may die while the others continue.
  bool has_spare() const { return config_.max_dead_workers > 0 || survivors_.max_dead_services() > 0; }
  // The worker is gone, and the partition is summed without it from now on.
  void lose_worker(TimeNs now, Partition& partition, std::uint16_t worker);

  // No further rounds of the partition because of this rank; its workers get the message when results have left.
  void fail(TimeNs now, Partition& partition, std::uint16_t rank);
  void announce_failure(TimeNs now, Partition& partition);
  void fail_and_announce(TimeNs now, Partition& partition, std::uint16_t rank);

  SummationConfig config_;
  Verbs& verbs_;
  Survivors survivors_;
  GoneWorkers gone_;
  AgreedLoads loads_;
  PartitionTable partitions_;
  ServicePosts posts_;
  WaitLimit wait_limit_;
  Deadlines deadlines_;  // by partition: of the wait for pushes, for results to be taken, or for reports of a takeover
  // Pushes that their workers cancelled: the reason may be that this service is excluded, which it has yet to learn.
  struct GivenUp {
    TimeNs fails_ns;
    std::uint32_t partition;
    std::uint16_t worker;
  };
  std::deque<GivenUp> given_up_;
  std::vector<std::byte> scratch_;
  std::uint64_t late_pushes_ = 0;
  TimeNs late_notice_ns_ = base::kNever;  // of the newest line about them, one in a second
  std::uint64_t rounds_summed_ = 0;
  ChecksumCounts checksum_counts_;
};

}  // namespace mlt::collective
