// Workers that a service sums without: they died, left or were excluded. Up to a bound the others continue.
//
// Absent on purpose: who decides about a worker whose connection is lost (survivors.h), and what a death means for a
// round (summation.h). Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/survivors.h"
#include "collective/verbs.h"

namespace mlt::collective {

class GoneWorkers {
 public:
  // Of ranks 0 .. workers-1; one must be left.
  GoneWorkers(std::uint16_t workers, std::uint16_t max_dead, const Survivors& survivors, Verbs& verbs)
      : gone_(workers), max_dead_(max_dead), survivors_(survivors), verbs_(verbs) {}

  std::uint16_t workers() const { return static_cast<std::uint16_t>(gone_.size()); }
  std::uint16_t count() const { return count_; }
  std::uint16_t live() const { return static_cast<std::uint16_t>(workers() - count_); }
  bool contains(std::uint16_t worker) const { return gone_[worker]; }
  const std::vector<bool>& by_worker() const { return gone_; }
  // Its connection is lost, and the survivors have not decided about it yet.
  bool is_undecided(std::uint16_t worker) const { return survivors_.is_lost(worker) && !gone_[worker]; }
  // So many more may be gone.
  bool may_lose(std::size_t workers) const;

  // Adds a worker that is not gone so far. False if no sum is possible any more.
  bool add(std::uint16_t worker);
  // The first that made sums impossible; -1: none did.
  int breaking() const { return breaking_; }

  // Reports to a worker one that is gone.
  void inform(std::uint16_t worker, std::uint16_t gone);
  // Logs those whose share a sum lacks, once each. Not before a sum does: all workers leave at the end of a job.
  void report();

 private:
  std::vector<bool> gone_;  // per worker
  std::uint16_t max_dead_;
  const Survivors& survivors_;
  Verbs& verbs_;
  std::uint16_t count_ = 0;
  int breaking_ = -1;
  std::vector<std::uint16_t> unreported_;
  std::vector<std::byte> scratch_;
};

}  // namespace mlt::collective
