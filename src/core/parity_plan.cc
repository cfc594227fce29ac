#include "core/parity_plan.h"

#include <algorithm>
#include <cmath>

#include "core/erasure_code.h"
#include "wire/packet.h"

namespace mlt::core {

namespace {

// Max probability that a transfer needs a repair round in spite of its parities: a quarter of what a p99 shows.
constexpr double kMaxFailure = 0.0025;
// Bytes of segments that one core multiplies and adds to a sum in a second. What bench_erasure measures on a core with
// AVX2 is a fifth more.
constexpr double kSumBytesPerSecond = 25e9;
// Share of a core that is free for sums while segments leave.
constexpr double kFreeShare = 0.5;

// How many repair rounds a transfer may be expected to need without parity: of n segments, n * loss are sent in the
// first, n * loss^2 in the second, and so on.
double expected_rounds(double segments, double loss) {
  double rounds = 0;
  for (double left = segments * loss; left > 1e-6; left *= loss) rounds += std::min(1.0, left);
  return rounds;
}

}  // namespace

double block_failure(std::uint32_t segments, std::uint32_t parities, double loss) {
  const double packets = segments + parities;
  double probability = std::exp(packets * std::log1p(-loss));  // of no loss
  double sum = probability;
  for (std::uint32_t lost = 1; lost <= parities; ++lost) {
    probability *= (packets - lost + 1) / lost * loss / (1 - loss);
    sum += probability;
  }
  return std::max(0.0, 1 - sum);
}

ParityPlan plan_parity(const ParityConditions& conditions) {
  // RECOVERY R1.5.2: A sender MUST NOT send parity where no loss is known, where a tenth or more is lost, where the
  //     smallest round trip is not known, or where it is less than 500 us.
  if (conditions.segments == 0 || conditions.loss <= 0 || conditions.loss >= 0.1) return {};
  if (conditions.round_trip_ns <= 0 || conditions.round_trip_ns < conditions.min_round_trip_ns) return {};
  ParityPlan plan;
  // PROTOCOL 6.12.3: Blocks MUST be equally long, but for the last, and have as few segments as that allows, of at most
  //     224.
  plan.blocks = (conditions.segments + kMaxBlockSegments - 1) / kMaxBlockSegments;
  plan.block_segments = (conditions.segments + plan.blocks - 1) / plan.blocks;
  plan.blocks = (conditions.segments + plan.block_segments - 1) / plan.block_segments;
  // RECOVERY R1.5.3: The parities of a block MUST be as few as leave a probability of at most 1/400, divided by the
  //     number of blocks, that more of the block's packets are lost than it has parities.
  while (block_failure(plan.block_segments, ++plan.block_parities, conditions.loss) > kMaxFailure / plan.blocks) {
    if (plan.block_parities == kMaxBlockParities) return {};
  }
  // RECOVERY R1.5.4: A sender MUST NOT send parity that costs more time than the repair rounds that it saves.
  const double packet_bytes = conditions.segment_bytes + MLT_DATA_HEADER_BYTES;
  const double sends_s = conditions.segments * packet_bytes / conditions.rate_bytes_per_second;
  const double sums = static_cast<double>(plan.block_parities) * conditions.segments * conditions.segment_bytes;
  const double sums_s = sums / kSumBytesPerSecond - (conditions.sums_ahead ? kFreeShare * sends_s : 0);
  const double cost_s = plan.packets() * packet_bytes / conditions.rate_bytes_per_second + std::max(0.0, sums_s);
  const double rounds_s = expected_rounds(conditions.segments, conditions.loss) *
                          static_cast<double>(conditions.round_trip_ns) / static_cast<double>(base::kSecond);
  return cost_s < rounds_s + sends_s * conditions.loss ? plan : ParityPlan{};
}

}  // namespace mlt::core
