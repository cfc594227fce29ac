#include "engine/transmitter.h"

#include <poll.h>

#include <algorithm>

#include "io/os/clock.h"

namespace mlt::engine {

namespace {

// If the kernel accepts no datagram for this long, the interface has failed: the batch counts as lost.
constexpr int kSendWaitMs = 20;

}  // namespace

Transmitter::Transmitter(std::uint16_t ranks, core::Endpoint& endpoint, const OpenedDatapath& datapath,
                         PathMtuErrors& path_mtu_errors)
    : endpoint_(endpoint),
      datapath_(*datapath.outer),
      path_mtu_errors_(path_mtu_errors),
      gathered_bytes_(new std::array<std::byte, base::kMaxRunSegments * kMaxGatheredBytes>),
      last_errors_(ranks) {
  const io::Capabilities& capabilities = datapath_.capabilities();
  capabilities_.max_run_segments = capabilities.max_run_segments;
  capabilities_.max_run_bytes = capabilities.max_run_bytes;
  capabilities_.room_context = &datapath_;
  if (datapath.shared == nullptr) return;
  capabilities_.has_room_for = [](void* context, std::uint16_t peer) {
    return static_cast<io::Datapath*>(context)->has_room_for(peer);
  };
}

bool Transmitter::transmit(base::TimeNs now, std::size_t budget) {
  std::size_t sent = 0, short_batches = 0;
  bool any = false;
  has_more_ = true;
  while (sent < budget) {
    // Each batch carries its send time: round trips are measured from it.
    if (!endpoint_.poll_transmit(io::monotonic_now(), capabilities_, batch_)) {
      has_more_ = false;
      break;
    }
    any = true;
    if (gathered_.datagram_count > 0 && !may_follow(batch_)) {
      send_gathered(now);
      ++sent;
    }
    const bool is_short = batch_.datagram_count == 1 && batch_.total_bytes <= kMaxGatheredBytes;
    // One alone leaves at once: to look for another first would delay it.
    if (is_short && (++short_batches > 1 || expects_more_)) {
      gather(batch_);
    } else {
      send(now, batch_);
      ++sent;
    }
  }
  send_gathered(now);
  if (any) expects_more_ = short_batches > 1;
  return any;
}

// PROTOCOL 6.2.3: A sender MAY give batches of one packet of at most 512 bytes, whatever their transfers and types, to
//     the system in one call, if they follow each other and have the same peer, path, DSCP, ECN mark and length.
bool Transmitter::may_follow(const core::Transmit& batch) const {
  const core::Transmit& first = gathered_;
  return batch.datagram_count == 1 && batch.total_bytes == first.datagram_bytes && batch.peer == first.peer &&
         batch.path == first.path && batch.traffic_class() == first.traffic_class() &&
         first.datagram_count < std::min<std::size_t>(capabilities_.max_run_segments, base::kMaxRunSegments) &&
         first.total_bytes + batch.total_bytes <= capabilities_.max_run_bytes;
}

void Transmitter::gather(const core::Transmit& batch) {
  core::Transmit& all = gathered_;
  if (all.datagram_count == 0) all.begin_like(batch, batch.total_bytes);
  std::byte* const to = gathered_bytes_->data() + all.total_bytes;
  std::byte* end = to;
  for (std::uint32_t i = 0; i < batch.slice_count; ++i) {
    end = std::copy_n(batch.slices[i].data, batch.slices[i].size, end);
  }
  all.slices[all.slice_count++] = {to, batch.total_bytes};
  all.total_bytes += batch.total_bytes;
  ++all.datagram_count;
}

void Transmitter::send_gathered(base::TimeNs now) {
  if (gathered_.datagram_count == 0) return;
  send(now, gathered_);
  gathered_.datagram_count = 0;
}

// The batch's slices point into tensors: it must leave before any operation can complete.
void Transmitter::send(base::TimeNs now, const core::Transmit& batch) {
  io::SendStatus status = io::SendStatus::kWouldBlock;
  for (int waited_ms = 0; waited_ms < kSendWaitMs; ++waited_ms) {
    status = datapath_.send(io::monotonic_now(), batch);
    if (status == io::SendStatus::kSent) return;
    if (status != io::SendStatus::kWouldBlock) break;
    pollfd writable{datapath_.writable_fd(batch), POLLOUT, 0};
    ::poll(&writable, 1, 1);
  }
  on_rejected(now, batch, status);
}

// PROTOCOL 18.1.4: An endpoint MUST treat a batch that the system refuses to send as lost, like any datagram, and name
//     the reason if its transfer then fails.
void Transmitter::on_rejected(base::TimeNs now, const core::Transmit& batch, io::SendStatus status) {
  ++failures_;
  if (status == io::SendStatus::kFailed) last_errors_[batch.peer] = datapath_.last_error();
  if (status == io::SendStatus::kTooLarge) path_mtu_errors_.on_too_large(now, batch);
}

}  // namespace mlt::engine
