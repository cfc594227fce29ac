// How long a round of a service waits for pushes and for results to be taken, and what follows then.
//
// Absent on purpose: the clock (summation.h), and what a round without a worker's push means for it. MLT's bound
// decides whether late pushes may count as loss.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "collective/gone_workers.h"
#include "collective/service_partition.h"

namespace mlt::collective {

// Workers for whose pushes the round waits or, once it is summed, for whose receives of the result before.
std::vector<std::uint16_t> late_workers(ServicePartition& partition, const GoneWorkers& gone);
// Names them, for an error of another worker.
std::string late_text(ServicePartition& partition, const std::vector<std::uint16_t>& late);

class WaitLimit {
 public:
  enum class Decision : std::uint8_t {
    kNothing,     // all has arrived, or is about to
    kSumWithout,  // the round ends without the rest of the late pushes
    kGiveUp,      // on the late workers
  };
  struct Outcome {
    Decision decision = Decision::kNothing;
    std::vector<std::uint16_t> late;  // workers
    std::string text;                 // for the log and the late workers
  };

  // 0: no limit.
  explicit WaitLimit(base::DurationNs max_wait_ns) : max_wait_ns_(max_wait_ns) {}

  // The end of a wait that begins now; kNever without a limit.
  base::TimeNs end(base::TimeNs now) const;
  std::string text() const;  // "300 ms"
  // Whether the round waits for the rest of its pushes from now on: one is complete, and every worker has registered.
  bool begins(const ServicePartition& partition, const GoneWorkers& gone) const;
  // The limit of the round has passed.
  Outcome decide(ServicePartition& partition, const GoneWorkers& gone) const;

 private:
  base::DurationNs max_wait_ns_;
};

// "rank 1, rank 2": the first 16, then how many more, so that what follows them in an error is not cut off.
std::string names_of(const std::vector<std::uint16_t>& ranks);

}  // namespace mlt::collective
