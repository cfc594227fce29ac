// Whether a send gets parity packets behind its first round, and how many: as many as make the repair round that a loss
// would cost improbable, where they cost less time than it. Section R1.5 of RECOVERY.md.
//
// Pure arithmetic. Absent on purpose: the code itself (erasure_code.h), and which sends may have parity (Sender).
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mlt::core {

// A transfer's blocks: all but the last of `block_segments` segments, each with as many parities.
struct ParityPlan {
  std::uint32_t blocks = 0;  // 0: no parity
  std::uint32_t block_segments = 0;
  std::uint32_t block_parities = 0;

  std::uint32_t packets() const { return blocks * block_parities; }
};

struct ParityConditions {
  std::uint32_t segments = 0;  // of the transfer
  std::uint32_t segment_bytes = 0;
  double loss = 0;                         // estimate of the path's
  base::DurationNs round_trip_ns = 0;      // the smallest; 0: not known
  double rate_bytes_per_second = 0;        // of the sender
  base::DurationNs min_round_trip_ns = 0;  // below it nothing gets parity
  bool sums_ahead = false;                 // the sums are made while segments leave, not behind them
};

ParityPlan plan_parity(const ParityConditions& conditions);

// The probability that more than `parities` of a block's packets, its parities included, are lost.
double block_failure(std::uint32_t segments, std::uint32_t parities, double loss);

}  // namespace mlt::core
