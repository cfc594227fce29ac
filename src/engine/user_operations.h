// Sends and receives of user threads: from the operation table to the endpoint, and their outcomes back.
//
// Locking: all functions require the loop's lock (engine/driving.h). Invariant: each post leads to exactly one outcome
// in the operation table, at once if the endpoint rejects it. Absent on purpose: the operations that collectives post
// (collectives.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "core/endpoint.h"
#include "engine/operation_table.h"
#include "engine/path_mtu_errors.h"
#include "engine/peer_table.h"
#include "engine/transfer_checksums.h"
#include "engine/transmitter.h"
#include "mlt.h"

namespace mlt::engine {

class UserOperations {
 public:
  // Sends a peer what TransferChecksums reports.
  using SendChecksum = std::function<void(std::uint16_t peer, std::span<const std::byte> bytes)>;

  // The arguments must outlive this object.
  UserOperations(const Options& options, core::Endpoint& endpoint, OperationTable& operations, const PeerTable& peers,
                 const PathMtuErrors& path_mtu_errors, const Transmitter& transmitter, SendChecksum send_checksum)
      : options_(options),
        endpoint_(endpoint),
        operations_(operations),
        peers_(peers),
        path_mtu_errors_(path_mtu_errors),
        transmitter_(transmitter),
        send_checksum_(std::move(send_checksum)),
        checksums_(options.rank, options.checksums, options.max_operations, options.operation_timeout_ns) {}

  void post(base::TimeNs now, const core::SendRequest& request);
  void post(base::TimeNs now, const core::ReceiveRequest& request);
  // No effect if `operation` is no send or receive in progress.
  void cancel(base::TimeNs now, OperationId operation);
  void on_completion(base::TimeNs now, const core::Completion& completion);
  void on_checksum(base::TimeNs now, std::uint16_t from, std::span<const std::byte> bytes);
  void on_peer_down(std::uint16_t peer);
  // True if anything was due.
  bool on_timeout(base::TimeNs now);
  base::TimeNs next_timeout() const { return checksums_.next_timeout(); }
  const collective::ChecksumCounts& checksum_counts() const { return checksums_.counts(); }
  // Number of posts since the last call, if all of them were of a few hundred bytes, else 0.
  std::size_t take_small_posts() {
    const std::size_t small = std::exchange(small_posts_, 0);
    return std::exchange(has_large_, false) ? 0 : small;
  }

 private:
  static constexpr std::size_t kSmallBytes = 448;  // with its header, a datagram that may leave with others

  void note_size(std::size_t bytes) {
    ++small_posts_;
    has_large_ |= bytes > kSmallBytes;
  }
  void cancel_posted(base::TimeNs now, OperationId operation);
  // False if it was rejected, because the peer's option is another.
  bool check_checksums(OperationId operation, std::uint16_t peer, std::uint64_t tag);
  void reject(OperationId operation, std::uint16_t peer, std::uint64_t tag, core::PostStatus status);
  std::string error_text(const core::Completion& completion) const;
  // Both complete operations whose checksums were compared, or can't be.
  void finish_compared();
  void finish_compared(Completion&& done);

  const Options& options_;
  core::Endpoint& endpoint_;
  OperationTable& operations_;
  const PeerTable& peers_;
  const PathMtuErrors& path_mtu_errors_;
  const Transmitter& transmitter_;
  SendChecksum send_checksum_;
  TransferChecksums checksums_;
  std::size_t small_posts_ = 0;  // since take_small_posts(), as long as has_large_ is false
  bool has_large_ = false;
};

}  // namespace mlt::engine
