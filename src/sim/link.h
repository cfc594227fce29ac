// One direction of a cable: rate, propagation, jitter, and what can go wrong on it. May be changed while a run goes on.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mlt::sim {

// Probabilities per datagram, each in [0, 1].
struct Impairments {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // comes up to Link::reorder_ns later than it should
  double corrupt = 0;  // one to three bits flip
  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0; }
};

struct Link {
  double rate_bytes_per_second = 1.25e9;
  base::DurationNs propagation_ns = base::kMicrosecond;
  base::DurationNs jitter_ns = 0;  // uniform in [0, jitter_ns] beyond the propagation; order is kept
  base::DurationNs reorder_ns = 100 * base::kMicrosecond;
  bool up = true;
  // False: the card vouches for checksums that it did not look at, so that damage anywhere reaches the endpoint.
  bool udp_checksum = true;
  std::uint32_t mtu_bytes = 0;  // longer datagrams are lost, and nobody is told; 0: none is too long
  Impairments data;
  Impairments control;
};

}  // namespace mlt::sim
