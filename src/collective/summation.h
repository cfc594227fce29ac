// A summation service: sums workers' pushes in place, averages over the pushes that arrived, sends the result reliably.
//
// BytePS (OSDI'20) section 5 for the service, MLT appendix A for the average. A state machine over Verbs: no thread, no
// socket. Pushes are added straight from the packets, and a segment is sent back once the segments of all workers are
// added: pushes and results of a partition overlap. Two buffers per partition: pushes of the next iteration may
// arrive while results of this one are still being sent. A worker that dies counts as loss up to a bound, and so does
// one whose push comes late, as far as the push-pull's loss bound allows. Owned by the driver's thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "collective/messages.h"
#include "collective/verbs.h"

namespace mlt::collective {

struct SummationConfig {
  std::uint16_t workers = 0;                          // ranks 0 .. workers-1
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
  // From the first report of a worker that had a part in rounds of a service that is gone to that of the last.
  base::DurationNs max_takeover_wait_ns = 33 * base::kSecond;
};

class Summation {
 public:
  Summation(const SummationConfig& config, Verbs& verbs) : config_(config), verbs_(verbs), gone_(config.workers) {}

  void on_message(TimeNs now, std::uint16_t from, const Message& message);
  void on_completion(TimeNs now, const core::Completion& completion);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  // Posts results that have a segment to send, and retries posts that failed for lack of space. Call after completions
  // were taken, and after arrivals when has_begun_results().
  void retry(TimeNs now);
  bool has_begun_results() const { return !begun_results_.empty(); }
  // Ends rounds that wait for pushes for too long.
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const { return timers_.empty() ? base::kNever : timers_.begin()->first; }

  std::uint64_t rounds_summed() const { return rounds_summed_; }
  std::uint16_t workers_gone() const { return gone_count_; }
  // Pushes that rounds ended without, because they came late.
  std::uint64_t late_pushes() const { return late_pushes_; }
  std::uint64_t bytes_held() const { return bytes_held_; }

 private:
  // State of a worker's push in the round: not expected yet, receive waits for space, receive posted, over: complete,
  // late, or of a worker that is gone.
  enum class Push : std::uint8_t { kIdle, kWaiting, kPosted, kArrived };
  // A segment of the connection's grid: the workers whose push of it arrived, and whether it can be sent.
  struct Cell {
    std::uint16_t contributors = 0;
    bool complete = false;
  };
  // A worker's result: the segments to send it are complete cells, several where worker and service share memory.
  struct Result {
    std::uint32_t cells_per_segment = 1;
    core::SendFeed feed;
    std::vector<std::uint64_t> words;  // of the feed
    bool is_pending = false;           // in progress, or waits for space
    bool is_late = false;              // its worker may not have begun the round
  };
  struct Buffer {
    // The contents of a cell without contributors are left over from an earlier round.
    std::vector<float> values;
    std::vector<Result> results;  // per worker
    std::uint16_t sending = 0;    // pending results
    bool begun = false;           // a cell of the round is complete
    bool posting = false;         // its results were given to send_result()
  };
  // What a worker had of a partition that another service summed before.
  struct Report {
    std::uint64_t rounds = 0;
    std::vector<std::byte> cells;
  };
  struct Partition;
  struct PushContext {
    Partition* partition = nullptr;
    std::uint16_t worker = 0;
  };
  struct Partition {
    Summation* owner = nullptr;
    Register shape;
    std::uint32_t index = 0;
    std::array<Buffer, 2> buffers;
    std::uint8_t current = 0;         // the buffer that this round is summed in; the other has the round before
    std::vector<Cell> cells;          // of this round
    std::vector<bool> registered;     // per worker
    std::vector<Push> pushes;         // per worker
    std::vector<bool> on_demand;      // per worker: its receive is posted when Ready arrives
    std::vector<bool> ready;          // per worker: Ready for the next round arrived before this one was over
    std::vector<bool> late;           // per worker: the round ends without the rest of its push
    std::uint16_t expected = 0;       // workers that were not gone when this round began
    std::uint16_t arrived = 0;        // pushes of this round that are over
    bool has_push = false;            // one of them is complete
    bool is_closed = false;           // this round has stopped waiting for pushes
    std::uint64_t missing_bytes = 0;  // from complete pushes of this round
    TimeNs closes_ns = base::kNever;  // in timers_: when it will
    // Of a partition taken over from a service that is gone: the workers' reports until all are here.
    std::vector<std::optional<Report>> reports;
    // Of the round that repeats one of that service: per cell the worker whose result of it is taken, or -1 where none
    // has it and it is summed; empty in other rounds. `ahead`: workers that have its result whole.
    std::vector<int> sources;
    std::vector<bool> ahead;
    std::vector<PushContext> contexts;
    std::uint16_t first_worker = 0;  // `shape` is its registration
    int failed_rank = -1;            // no further rounds; -1: none
    std::string refusal;             // why, where a worker registered another tensor than the first
    std::string overdue;             // why, where pushes came too late
    bool is_failure_announced = false;

    Buffer& sum() { return buffers[current]; }
    Buffer& before() { return buffers[current ^ 1U]; }
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
  std::uint64_t cost_bytes(const Register& shape) const;
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
  static void add_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  static void add_repeated(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  void add_cell(Partition& partition, std::size_t cell, std::span<const std::byte> terms);
  void complete_cell(Partition& partition, std::size_t cell);
  // The round repeats one whose result the worker has whole.
  static bool has_result(const Partition& partition, std::uint16_t worker) {
    return !partition.sources.empty() && partition.ahead[worker];
  }
  static std::span<float> values_of(Partition& partition, std::size_t cell);

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
