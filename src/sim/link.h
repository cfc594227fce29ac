// One direction of a cable: rate, propagation delay, jitter and impairments. May change during a run.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mlt::sim {

// Probabilities per datagram, each in [0, 1].
struct Impairments {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // arrives up to Link::reorder_ns late
  double corrupt = 0;  // one to three bits flip
  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0; }
};

struct Link {
  double rate_bytes_per_second = 1.25e9;
  base::DurationNs propagation_ns = base::kMicrosecond;
  base::DurationNs jitter_ns = 0;  // uniform in [0, jitter_ns] beyond the propagation; order is kept
  base::DurationNs reorder_ns = 100 * base::kMicrosecond;
  bool up = true;
  // False: the NIC reports every checksum as correct without a check, so that damage anywhere reaches the endpoint.
  bool udp_checksum = true;
  std::uint32_t mtu_bytes = 0;  // longer datagrams are dropped silently; 0: no limit
  Impairments data;
  Impairments control;
};

}  // namespace mlt::sim
