// What the environment says: the options of every connection of this process, and its network interface.
#pragma once

#include <cstdint>
#include <string>

#include "interfaces.h"
#include "mlt.h"

namespace mlt::nccl {

inline constexpr int kTrafficClasses = 7;  // of the default DSCPs (Options::data_dscp), the only ones here

// A receive waits for as long as its sender computes. Peers that die are noticed without a limit.
inline constexpr std::int64_t kNoLimitNs = 10LL * 365 * 24 * 3600 * 1'000'000'000;

struct Settings {
  Options options;  // without rank, job and secret, which each connection has of its own
  Interface interface;
  int speed_mbps = 0;          // of all paths together
  std::uint64_t job_name = 0;  // hash of MLT_JOB
  std::string job_secret;      // empty: none
  std::int64_t connect_timeout_ns = 0;
};

// Throws mlt::Error that names the variable. docs/nccl.md lists what is read.
Settings read_settings();

}  // namespace mlt::nccl
