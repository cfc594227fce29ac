// The posts of a service: receives of pushes and sends of results. Those that the endpoint has no space for wait, in
// order.
//
// Absent on purpose: when a push is expected and a result is due (summation.h). Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "collective/gone_workers.h"
#include "collective/partition_table.h"
#include "collective/verbs.h"

namespace mlt::collective {

class ServicePosts {
 public:
  // A post, as it is in its operation's number.
  struct Id {
    std::uint32_t partition = 0;
    std::uint16_t worker = 0;
    std::uint8_t buffer = 0;
    bool is_send = false;

    OperationId operation() const;
    static Id of(OperationId operation);
  };
  // The endpoint rejected a post of this worker's, for another reason than space.
  using OnRejected = std::function<void(TimeNs, ServicePartition&, std::uint16_t)>;

  // `max_standing`: receives posted between rounds.
  ServicePosts(std::uint32_t max_standing, const PartitionTable& partitions, const GoneWorkers& gone, Verbs& verbs,
               OnRejected on_rejected)
      : max_standing_(max_standing),
        partitions_(partitions),
        gone_(gone),
        verbs_(verbs),
        on_rejected_(std::move(on_rejected)) {}

  // Whether one more registration may have a receive posted between rounds; it then counts.
  bool take_standing();
  // Posts the receive of the worker's push, unless it is posted or over.
  void expect_push(TimeNs now, ServicePartition& partition, std::uint16_t worker);
  // Sends the results of the round that is summed, once.
  void send_results(TimeNs now, ServicePartition& partition);
  // Posts what waits for space. Results first: workers wait for them, and each one sent frees space.
  void retry_results(TimeNs now);
  void retry_pushes(TimeNs now);
  // Posts that wait for space; results for it are no longer due.
  void forget(std::uint16_t worker);
  void cancel_push(TimeNs now, const ServicePartition& partition, std::uint16_t worker);
  void cancel_result(TimeNs now, const ServicePartition& partition, std::uint16_t worker, std::uint8_t buffer);

 private:
  using Push = ServicePartition::Push;

  // False if there is no space: try again later.
  bool post_push(TimeNs now, ServicePartition& partition, std::uint16_t worker);
  bool post_result(TimeNs now, ServicePartition& partition, std::uint16_t worker, std::uint8_t buffer);

  std::uint32_t max_standing_;
  std::uint32_t standing_ = 0;  // registrations with a receive posted between rounds
  const PartitionTable& partitions_;
  const GoneWorkers& gone_;
  Verbs& verbs_;
  OnRejected on_rejected_;
  // A new post never overtakes these.
  std::deque<Id> unposted_pushes_;
  std::deque<Id> unposted_results_;
};

}  // namespace mlt::collective
