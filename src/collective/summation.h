// A summation service: sums workers' pushes in place, averages over the pushes that arrived, sends the result reliably.
//
// BytePS (OSDI'20) section 5 for the service, MLT appendix A for the average. A state machine over Verbs: no thread, no
// socket. Pushes are added straight from the packets. Two buffers per partition: pushes of the next iteration may
// arrive while results of this one are still being sent. Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
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
};

class Summation {
 public:
  Summation(const SummationConfig& config, Verbs& verbs) : config_(config), verbs_(verbs) {}

  void on_message(TimeNs now, std::uint16_t from, const Message& message);
  void on_completion(TimeNs now, const core::Completion& completion);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  // Retries posts that failed for lack of space; call after completions were taken.
  void retry(TimeNs now);

  std::uint64_t rounds_summed() const { return rounds_summed_; }
  std::uint64_t bytes_held() const { return bytes_held_; }

 private:
  // State of a worker's push in the round: not expected yet, receive waits for space, receive posted, complete.
  enum class Push : std::uint8_t { kIdle, kWaiting, kPosted, kArrived };
  struct Partition {
    Register shape;
    std::uint32_t index = 0;
    // `sum` of this round and `result` of the one before; finish_round() swaps them. The sum of a cell without
    // contributors is left over from an earlier round.
    std::vector<float> sum;
    std::vector<float> result;
    std::vector<std::uint16_t> contributors;  // per cell, a segment of the connection: workers whose segment arrived
    std::vector<bool> registered;             // per worker
    std::vector<Push> pushes;                 // per worker
    std::vector<bool> on_demand;              // per worker: its receive is posted when Ready arrives
    std::uint16_t arrived = 0;                // complete pushes of this round
    std::uint16_t sending = 0;                // results of the previous round in progress
    int failed_rank = -1;                     // no further rounds; -1: none
  };
  struct Unposted {
    std::uint32_t partition;
    std::uint16_t worker;
  };

  void on_register(TimeNs now, std::uint16_t from, const Register& shape);
  std::unique_ptr<Partition> make_partition(const Register& shape) const;
  std::uint64_t cost_bytes(const Register& shape) const;
  void on_ready(TimeNs now, std::uint16_t from, const Ready& ready);
  void refuse(std::uint16_t to, const Register& shape, const std::string& text);
  void expect_push(TimeNs now, Partition& partition, std::uint16_t worker);
  void send_result(TimeNs now, Partition& partition, std::uint16_t worker);
  // False if there is no space: try again later.
  bool post_push(TimeNs now, Partition& partition, std::uint16_t worker);
  bool post_result(TimeNs now, Partition& partition, std::uint16_t worker);
  void finish_round(TimeNs now, Partition& partition);
  void fail(TimeNs now, Partition& partition, std::uint16_t rank);
  void announce_failure(Partition& partition);
  OperationId operation(const Partition& partition, std::uint16_t worker, bool is_send) const;
  static void add_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  static void add_cell(Partition& partition, std::size_t cell, std::span<const std::byte> terms);

  SummationConfig config_;
  Verbs& verbs_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> by_key_;
  std::vector<std::unique_ptr<Partition>> partitions_;
  // Posts that wait for space, in order: a new post never overtakes them.
  std::deque<Unposted> unposted_pushes_;
  std::deque<Unposted> unposted_results_;
  std::uint32_t standing_ = 0;  // registrations with a receive posted between rounds
  std::vector<std::byte> scratch_;
  int gone_worker_ = -1;  // the first that died or left: no sum is possible any more
  std::uint64_t rounds_summed_ = 0;
  std::uint64_t bytes_held_ = 0;
};

}  // namespace mlt::collective
