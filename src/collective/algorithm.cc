#include "collective/algorithm.h"

namespace mlt::collective {

namespace {

// PROTOCOL 22.4.1: A member MUST treat an all-reduce as small when n - 1 times the tensor's bytes are at most 65,536.
bool is_small(std::uint64_t ranks, std::uint64_t bytes) { return (ranks - 1) * bytes <= kDirectBytes; }

bool saves_by_loss(std::uint64_t bytes, double loss_bound) {
  return loss_bound * static_cast<double>(bytes) >= kDirectLossBytes;
}

}  // namespace

// PROTOCOL 22.2.6: A caller MAY name the algorithm. If it names none, a member MUST take: the ring when the loss bound
//     times the tensor's bytes is 1,024 or more, in float64; else for a small all-reduce (22.4.1) direct in a group of
//     at most 16 ranks, central in a larger one; else halving when the tensor has at most 4,096 bytes for each rank;
//     else the ring. So every member finds the same of the same shape, which carries the one that is taken. A group of
//     one rank takes direct, whatever its caller names.
CollectiveAlgorithm chosen_algorithm(std::uint64_t ranks, std::uint64_t bytes, double loss_bound) {
  if (ranks == 1) return CollectiveAlgorithm::kDirect;
  if (saves_by_loss(bytes, loss_bound)) return CollectiveAlgorithm::kRing;
  if (is_small(ranks, bytes)) {
    return ranks > kMaxDirectRanks ? CollectiveAlgorithm::kCentral : CollectiveAlgorithm::kDirect;
  }
  return bytes <= ranks * kHalvingBytesPerRank ? CollectiveAlgorithm::kHalving : CollectiveAlgorithm::kRing;
}

CollectiveAlgorithm algorithm_of(CollectiveAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes,
                                 double loss_bound) {
  // A group of one has nothing to carry.
  if (requested == CollectiveAlgorithm::kAutomatic || ranks == 1) return chosen_algorithm(ranks, bytes, loss_bound);
  return requested;
}

std::string check_algorithm(CollectiveAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes) {
  if (static_cast<std::uint8_t>(requested) >= kCollectiveAlgorithmCount) return "its algorithm is unknown";
  if (requested == CollectiveAlgorithm::kChain) {
    return "an all-reduce has no chain algorithm: use direct, central, ring or halving";
  }
  const bool has_records = requested == CollectiveAlgorithm::kDirect || requested == CollectiveAlgorithm::kCentral;
  if (!has_records || ranks == 1 || bytes <= kMaxRecordsBytes / ranks) return "";
  return std::string("the ") + algorithm_name(requested) + " algorithm holds " + std::to_string(ranks) +
         " tensors of " + std::to_string(bytes) + " bytes, and may hold " + std::to_string(kMaxRecordsBytes) +
         " bytes in all: use the ring or halving";
}

// PROTOCOL 22.6.1: A caller of a broadcast or reduce MAY name the algorithm. If it names none, a member MUST take the
//     chain when the tensor has 65,536 bytes or more, and the loss bound times its bytes is below 1,024, in float64;
//     else direct. A group of one rank takes direct, whatever its caller names.
CollectiveAlgorithm rooted_algorithm_of(CollectiveAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes,
                                        double loss_bound) {
  if (ranks == 1) return CollectiveAlgorithm::kDirect;
  if (requested != CollectiveAlgorithm::kAutomatic) return requested;
  if (saves_by_loss(bytes, loss_bound)) return CollectiveAlgorithm::kDirect;
  return bytes >= kChainBytes ? CollectiveAlgorithm::kChain : CollectiveAlgorithm::kDirect;
}

std::string check_rooted_algorithm(CollectiveAlgorithm requested, const std::string& what) {
  if (static_cast<std::uint8_t>(requested) >= kCollectiveAlgorithmCount) return "its algorithm is unknown";
  if (requested == CollectiveAlgorithm::kAutomatic || requested == CollectiveAlgorithm::kDirect ||
      requested == CollectiveAlgorithm::kChain) {
    return "";
  }
  return "a " + what + " has no " + algorithm_name(requested) + " algorithm: use direct or chain";
}

}  // namespace mlt::collective
