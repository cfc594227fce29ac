// Sends and receives of user threads: from the operation table to the endpoint, and their outcomes back.
//
// Locking: all functions require the loop's lock (engine/driving.h). Invariant: each post leads to exactly one outcome
// in the operation table, at once if the endpoint rejects it. Absent on purpose: the operations that collectives post
// (collectives.h).
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "core/endpoint.h"
#include "engine/operation_table.h"
#include "engine/path_mtu_errors.h"
#include "engine/peer_table.h"
#include "engine/transmitter.h"
#include "mlt.h"

namespace mlt::engine {

class UserOperations {
 public:
  // The arguments must outlive this object.
  UserOperations(const Options& options, core::Endpoint& endpoint, OperationTable& operations, const PeerTable& peers,
                 const PathMtuErrors& path_mtu_errors, const Transmitter& transmitter)
      : options_(options),
        endpoint_(endpoint),
        operations_(operations),
        peers_(peers),
        path_mtu_errors_(path_mtu_errors),
        transmitter_(transmitter) {}

  void post(base::TimeNs now, const core::SendRequest& request);
  void post(base::TimeNs now, const core::ReceiveRequest& request);
  // No effect if `operation` is no send or receive in progress.
  void cancel(base::TimeNs now, OperationId operation);
  void on_completion(const core::Completion& completion);
  // Whether there was a post since the last call, and all of them were of a few hundred bytes.
  bool take_small_post() { return std::exchange(has_small_, false) & !std::exchange(has_large_, false); }

 private:
  static constexpr std::size_t kSmallBytes = 448;  // with its header, a datagram that may leave with others

  void note_size(std::size_t bytes) { (bytes <= kSmallBytes ? has_small_ : has_large_) = true; }
  void reject(OperationId operation, std::uint16_t peer, std::uint64_t tag, core::PostStatus status);
  std::string error_text(const core::Completion& completion) const;

  const Options& options_;
  core::Endpoint& endpoint_;
  OperationTable& operations_;
  const PeerTable& peers_;
  const PathMtuErrors& path_mtu_errors_;
  const Transmitter& transmitter_;
  bool has_small_ = false;
  bool has_large_ = false;
};

}  // namespace mlt::engine
