// Collectives on simulated hosts: one state machine per host, driven as the engine drives its own. The same code under
// virtual time.
//
// Uses the simulator's on_completion, on_machine_message, on_peer_down and on_crash. A crashed host has no state
// machine. Absent on purpose: push-pull, which transfers (sim/transfers.h) model. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collective/collectives.h"
#include "sim/simulator.h"

namespace mlt::sim {

class CollectiveHosts {
 public:
  explicit CollectiveHosts(Simulator& simulator, bool shares_by_rate = false, bool checksums = false);
  ~CollectiveHosts();
  CollectiveHosts(const CollectiveHosts&) = delete;
  CollectiveHosts& operator=(const CollectiveHosts&) = delete;

  // The request must have passed check_request(), and its memory must outlive this object.
  void start(std::uint16_t rank, const collective::CollectiveRequest& request);
  void cancel(std::uint16_t rank, core::OperationId operation);
  // How the rank's collectives ended, oldest first.
  const std::vector<collective::CollectiveDone>& done(std::uint16_t rank) const;
  std::uint64_t rings_cut_by_rate(std::uint16_t rank) const;
  const collective::ChecksumCounts& checksum_counts(std::uint16_t rank) const;
  // A collective of the rank has ended: its memory is the caller's again. May start others.
  std::function<void(std::uint16_t rank, const collective::CollectiveDone& done)> on_done;
  bool has_crashed(std::uint16_t rank) const;
  // Number in progress at this rank; 0 for a crashed host.
  std::size_t open(std::uint16_t rank) const;

 private:
  class Machine;

  // After every call of a state machine: takes its completions, sets its timer.
  void settle(std::uint16_t rank);
  void on_timer(std::uint16_t rank, base::TimeNs at);

  Simulator& simulator_;
  std::vector<std::unique_ptr<Machine>> machines_;
};

}  // namespace mlt::sim
