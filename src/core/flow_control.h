// How much data may leave to each peer now: the rate paces it, the peer's window bounds what is in
// flight, and the driver's datapath bounds a batch. Paper section 4.2.2.
//
// Invariant: the peer's timer is set while pacing or a full window holds back data. Absent on purpose: what opens the
// window again (AckReport), the rate (Timely), the time of the next batch (Pacer), phases of the window
// (Window), the limit of early data (EarlyDataLimit), order (SendOrder), probes (ProbeSender). Owned by the endpoint's
// Sender, used by one thread.
#pragma once

#include <cstdint>

#include "base/datagram.h"
#include "core/peer.h"

namespace mlt::core {

// Limits of the driver's datapath for one batch.
struct TransmitCapabilities {
  std::uint32_t max_run_segments = base::kMaxRunSegments;
  std::uint32_t max_run_bytes = base::kMaxRunBytes;
  // Whether the datapath has space for data to a peer now; nullptr: always. A peer without space is skipped, and the
  // driver calls again once there is some. Replies and probes ignore this: they are few and small.
  bool (*has_room_for)(void* context, std::uint16_t peer) = nullptr;
  void* room_context = nullptr;
};

class FlowControl {
 public:
  explicit FlowControl(Shared& shared) : shared_(shared) {}

  std::uint64_t in_flight_bytes(std::uint16_t peer) const;

  // Before the peers are polled for the next batch.
  void begin_poll() {
    paced_until_ = base::kNever;
    is_only_paced_ = true;
  }
  // When the first batch leaves that pacing holds back, if pacing alone held back all data of the last poll, and only
  // to peers whose batches have two packets at most; kNever otherwise.
  TimeNs paced_until() const { return is_only_paced_ ? paced_until_ : base::kNever; }

  // Whether a batch may leave to the peer at `now`, as far as pacing, the window and the datapath are concerned.
  bool may_send(TimeNs now, std::uint16_t peer, const TransmitCapabilities& capabilities);
  // Max datagrams of the next batch to the peer; 0: the window is full, and data waits until it opens.
  std::uint32_t max_datagrams(TimeNs now, std::uint16_t peer, const TransmitCapabilities& capabilities);
  void on_sent(TimeNs now, std::uint16_t peer, std::uint64_t bytes);

  // The peer's timer expired. Returns for how many timeouts in a row the window has been full, 0 if it is not: if not
  // 0, the peer needs an ACK_ONLY probe.
  std::uint32_t on_timer(TimeNs now, std::uint16_t peer);

 private:
  static bool is_slow(const Peer& peer);

  Shared& shared_;
  TimeNs paced_until_ = base::kNever;
  bool is_only_paced_ = false;
};

}  // namespace mlt::core
