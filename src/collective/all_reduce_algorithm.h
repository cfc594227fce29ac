// The algorithms of an all-reduce, and which one carries a call that names none: the one place of that choice.
//
// Every rank chooses by the group's size, the tensor's bytes and the loss bound alone, so that all choose the same.
// Their shapes carry the choice (Shape::algorithm): ranks that differ are named.
#pragma once

#include <cstdint>
#include <string>

namespace mlt::collective {

enum class AllReduceAlgorithm : std::uint8_t {
  kAutomatic = 0,  // of a request only: chosen_algorithm()
  kDirect = 1,     // collective/direct_allreduce.h
  kCentral = 2,    // collective/central_allreduce.h
  kRing = 3,       // collective/ring_allreduce.h
  kHalving = 4,    // collective/halving_allreduce.h
};
inline constexpr std::uint8_t kAllReduceAlgorithmCount = 5;

constexpr const char* algorithm_name(AllReduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllReduceAlgorithm::kAutomatic:
      return "automatic";
    case AllReduceAlgorithm::kDirect:
      return "direct";
    case AllReduceAlgorithm::kCentral:
      return "central";
    case AllReduceAlgorithm::kRing:
      return "ring";
    case AllReduceAlgorithm::kHalving:
      return "halving";
  }
  return "unknown";
}

// Max bytes that a rank of a direct or central all-reduce sends in total.
inline constexpr std::uint64_t kDirectBytes = 64U << 10;
// Min missing bytes that a loss bound must allow to save a segment: below it a lossy transfer gains nothing.
inline constexpr double kDirectLossBytes = 1'024;
// Larger groups use the central algorithm for small tensors.
inline constexpr std::uint64_t kMaxDirectRanks = 16;
// Max bytes of a tensor by halving, for each rank of the group: of groups of up to 4 all that is small is as large.
// Measured (docs/collectives.md, tools/crossover.py).
inline constexpr std::uint64_t kHalvingBytesPerRank = 4U << 10;
// Max bytes that a rank holds for a direct or central all-reduce that a request names.
inline constexpr std::uint64_t kMaxRecordsBytes = 256U << 20;

// What carries a tensor of `bytes` of a call that names no algorithm.
AllReduceAlgorithm chosen_algorithm(std::uint64_t ranks, std::uint64_t bytes, double loss_bound);

// What carries it where the request names `requested`, or none.
AllReduceAlgorithm algorithm_of(AllReduceAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes,
                                double loss_bound);

// Why a request must not name the algorithm; empty if it may.
std::string check_algorithm(AllReduceAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes);

}  // namespace mlt::collective
