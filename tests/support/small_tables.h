// Limits of an endpoint for tests that are not about them. At the default limits a host takes 100 MB of address space,
// which costs nothing until it is used, except under AddressSanitizer: it marks every byte at both ends of a host's
// life, which is most of the time of a short test.
#pragma once

#include "core/config.h"

namespace mlt::test {

inline core::EndpointConfig small_tables(core::EndpointConfig config = {}) {
  config.max_sends = config.max_receives = 4'096;
  config.max_tags = 65'536;
  config.parity_packets = 128;
  config.bitmap_words = 1U << 17;  // 12 GB of tensors in progress, at 1,432 bytes a segment
  return config;
}

}  // namespace mlt::test
