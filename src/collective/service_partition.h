// A partition at a service: who registered it, the state of each worker's push in the round, why it failed.
//
// Absent on purpose: all messages and posts (summation.h, service_posts.h), and the sums (partition_sums.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/gone_workers.h"
#include "collective/messages.h"
#include "collective/partition_sums.h"
#include "collective/push_checksums.h"
#include "collective/takeover.h"

namespace mlt::collective {

struct ServicePartition {
  // State of a worker's push in the round: not expected yet, receive waits for space, receive posted, whole, and its
  // checksum has yet to come, over: complete, late, or of a worker that is gone.
  enum class Push : std::uint8_t { kIdle, kWaiting, kPosted, kUnchecked, kArrived };

  // `registration`: of the first worker. `begun`: see PartitionSums.
  ServicePartition(const Register& registration, std::uint16_t from, std::uint32_t own_index, const GoneWorkers& gone,
                   std::vector<std::uint32_t>& begun);

  bool has_failed() const { return failed_rank >= 0; }
  bool is_summed() const { return arrived == pushes.size(); }
  // The worker's push is over, whatever arrived of it.
  void end_push(std::uint16_t worker);
  // The next round: pushes of the workers that are left. Their receives are to be posted.
  void begin_round(const GoneWorkers& gone);
  // Every worker that is left has registered.
  bool is_registered_by_all(const GoneWorkers& gone) const;
  // Elements of the live workers' terms that the round lacks, where the pushes of so many are not complete.
  std::uint64_t missing_elements(const GoneWorkers& gone, std::size_t late);
  // The message to the workers about its failure.
  void encode_failure(std::vector<std::byte>& out) const;
  std::string text() const;  // "key K, partition I"

  Register shape;
  std::uint32_t index;
  PartitionSums sums;
  PushChecksums checksums;
  std::uint16_t first_worker;    // `shape` is its registration
  std::vector<bool> registered;  // per worker
  std::vector<Push> pushes;      // per worker
  std::vector<bool> on_demand;   // per worker: its receive is posted when Ready arrives
  std::vector<bool> ready;       // per worker: Ready for the next round arrived before this one was over
  std::vector<bool> late;        // per worker: the round ends without the rest of its push
  // Per worker: receives posted for late pushes before their Ready, which is still to come.
  std::vector<std::uint8_t> early_receives;
  std::uint16_t arrived;            // pushes of this round that are over
  bool has_push = false;            // one of them is complete
  bool is_closed = false;           // this round has stopped waiting for pushes
  std::uint64_t missing_bytes = 0;  // from complete pushes of this round
  Takeover takeover;                // of a partition that a service that is gone summed before
  int failed_rank;                  // no further rounds; -1: none
  std::string refusal;              // why, where a worker registered another tensor than the first
  std::string overdue;              // why, where pushes came too late
  std::string damage;               // why, where data arrived changed
  bool is_failure_announced = false;
};

}  // namespace mlt::collective
