// Moves batches from the endpoint to the datapath.
//
// A batch that the system does not accept counts as lost; the last such error is kept per peer, for its operations.
// Locking: all functions require the loop's lock (engine/driving.h). Invariant: a batch left, or counts as lost, before
// the endpoint's next call, because its slices point into tensors whose operations may then complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/endpoint.h"
#include "engine/datapath_opening.h"
#include "engine/path_mtu_errors.h"
#include "io/datapath.h"

namespace mlt::engine {

class Transmitter {
 public:
  // The references, and the datapath, must outlive the last transmit().
  Transmitter(std::uint16_t ranks, core::Endpoint& endpoint, const OpenedDatapath& datapath,
              PathMtuErrors& path_mtu_errors);

  // Sends up to `budget` batches; returns their number. `now`: the time of the turn, for what a rejected batch changes.
  std::size_t transmit(base::TimeNs now, std::size_t budget);

  // Batches that the system did not accept.
  std::uint64_t failures() const { return failures_; }
  // Why the system rejected the last such batch to the peer; empty if it rejected none.
  const std::string& last_error(std::uint16_t peer) const { return last_errors_[peer]; }

 private:
  void send(base::TimeNs now);
  void on_rejected(base::TimeNs now, io::SendStatus status);

  core::Endpoint& endpoint_;
  io::Datapath& datapath_;
  PathMtuErrors& path_mtu_errors_;
  core::TransmitCapabilities capabilities_;
  core::Transmit batch_;
  std::uint64_t failures_ = 0;
  std::vector<std::string> last_errors_;  // per peer
};

}  // namespace mlt::engine
