// What the environment says about the van (docs/byteps-van.md lists it).
#pragma once

#include <cstdint>

#include "mlt.h"

namespace mlt::van {

struct Settings {
  Options options;  // without rank, job and host, which each connection has of its own
  std::int64_t connect_timeout_ns = 0;
  double push_loss_bound = 0;            // of keys without one of their own
  std::int64_t recovery_timeout_ns = 0;  // how long a failed node may be replaced; 0: its failure ends this process
};

// Throws mlt::Error that names the variable.
Settings read_settings();

}  // namespace mlt::van
