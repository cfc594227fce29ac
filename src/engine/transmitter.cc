#include "engine/transmitter.h"

#include <poll.h>

#include "io/os/clock.h"

namespace mlt::engine {

namespace {

// If the kernel accepts no datagram for this long, the interface has failed: the batch counts as lost.
constexpr int kSendWaitMs = 20;

}  // namespace

Transmitter::Transmitter(std::uint16_t ranks, core::Endpoint& endpoint, const OpenedDatapath& datapath,
                         PathMtuErrors& path_mtu_errors)
    : endpoint_(endpoint), datapath_(*datapath.outer), path_mtu_errors_(path_mtu_errors), last_errors_(ranks) {
  const io::Capabilities& capabilities = datapath_.capabilities();
  capabilities_.max_run_segments = capabilities.max_run_segments;
  capabilities_.max_run_bytes = capabilities.max_run_bytes;
  capabilities_.room_context = &datapath_;
  if (datapath.shared == nullptr) return;
  capabilities_.has_room_for = [](void* context, std::uint16_t peer) {
    return static_cast<io::Datapath*>(context)->has_room_for(peer);
  };
}

std::size_t Transmitter::transmit(base::TimeNs now, std::size_t budget) {
  std::size_t sent = 0;
  for (; sent < budget; ++sent) {
    // Each batch carries its send time: round trips are measured from it.
    if (!endpoint_.poll_transmit(io::monotonic_now(), capabilities_, batch_)) break;
    send(now);
  }
  return sent;
}

// The batch's slices point into tensors: it must leave before any operation can complete.
void Transmitter::send(base::TimeNs now) {
  io::SendStatus status = io::SendStatus::kWouldBlock;
  for (int waited_ms = 0; waited_ms < kSendWaitMs; ++waited_ms) {
    status = datapath_.send(io::monotonic_now(), batch_);
    if (status == io::SendStatus::kSent) return;
    if (status != io::SendStatus::kWouldBlock) break;
    pollfd writable{datapath_.writable_fd(batch_), POLLOUT, 0};
    ::poll(&writable, 1, 1);
  }
  on_rejected(now, status);
}

// PROTOCOL 18.1.4: An endpoint MUST treat a batch that the system refuses to send as lost, like any datagram, and name
//     the reason if its transfer then fails.
void Transmitter::on_rejected(base::TimeNs now, io::SendStatus status) {
  ++failures_;
  if (status == io::SendStatus::kFailed) last_errors_[batch_.peer] = datapath_.last_error();
  if (status == io::SendStatus::kTooLarge) path_mtu_errors_.on_too_large(now, batch_);
}

}  // namespace mlt::engine
