// Moves batches from the endpoint to the datapath.
//
// Batches of one short datagram leave together where they follow each other (section 6.2.3). A batch that the system
// does not accept counts as lost; the last such error is kept per peer, for its operations. Locking: all functions
// require the loop's lock (engine/driving.h). Invariant: a batch left, was copied, or counts as lost, before the
// endpoint's next call, because its slices point into tensors whose operations may then complete.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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

  // Sends up to `budget` batches, of which short ones that leave together count as one; true if any left. `now`: the
  // time of the turn, for what a rejected batch changes.
  bool transmit(base::TimeNs now, std::size_t budget);
  // Whether the last transmit() ended with its budget used up: there may be more to send.
  bool has_more() const { return has_more_; }

  // Batches that the system did not accept.
  std::uint64_t failures() const { return failures_; }
  // Why the system rejected the last such batch to the peer; empty if it rejected none.
  const std::string& last_error(std::uint16_t peer) const { return last_errors_[peer]; }

 private:
  static constexpr std::size_t kMaxGatheredBytes = base::kMaxGatheredBytes;  // a copy costs little beside a call

  bool may_follow(const core::Transmit& batch) const;
  void gather(const core::Transmit& batch);
  void send_gathered(base::TimeNs now);
  void send(base::TimeNs now, const core::Transmit& batch);
  void on_rejected(base::TimeNs now, const core::Transmit& batch, io::SendStatus status);

  core::Endpoint& endpoint_;
  io::Datapath& datapath_;
  PathMtuErrors& path_mtu_errors_;
  core::TransmitCapabilities capabilities_;
  core::Transmit batch_;
  // Batches of one short datagram that will leave together, in one call of the system.
  core::Transmit gathered_;
  std::unique_ptr<std::array<std::byte, base::kMaxRunSegments * kMaxGatheredBytes>> gathered_bytes_;
  bool expects_more_ = false;  // the last transmit() that sent anything had several of them
  bool has_more_ = false;
  std::uint64_t failures_ = 0;
  std::vector<std::string> last_errors_;  // per peer
};

}  // namespace mlt::engine
