// The algorithms of all-reduce, broadcast, reduce, all-gather and reduce-scatter, and which one carries a call that
// names none: the one place of that choice. The other collectives have one each.
//
// Every rank chooses by the group's size and hosts, the tensor's bytes and the loss bound alone, so that all choose the
// same. Their shapes carry the choice (Shape::algorithm): ranks that differ are named.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mlt::collective {

enum class CollectiveAlgorithm : std::uint8_t {
  kAutomatic = 0,  // of a request only: chosen_algorithm()
  kDirect = 1,     // of all five: collective/direct_allreduce.h, exchange.h
  kCentral = 2,    // of an all-reduce: collective/central_allreduce.h
  kRing = 3,       // of an all-reduce: collective/ring_allreduce.h
  kHalving = 4,    // of an all-reduce: collective/staged.h
  kChain = 5,      // of a broadcast or reduce: collective/chain.h
  kTwoLevel = 6,   // of all five: collective/staged.h; of a broadcast or reduce: chain.h
};
inline constexpr std::uint8_t kCollectiveAlgorithmCount = 7;

constexpr const char* algorithm_name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kAutomatic:
      return "automatic";
    case CollectiveAlgorithm::kDirect:
      return "direct";
    case CollectiveAlgorithm::kCentral:
      return "central";
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kHalving:
      return "halving";
    case CollectiveAlgorithm::kChain:
      return "chain";
    case CollectiveAlgorithm::kTwoLevel:
      return "two-level";
  }
  return "unknown";
}

// Max bytes that a rank of a direct or central all-reduce sends in total.
inline constexpr std::uint64_t kDirectBytes = 64U << 10;
// Larger groups use the central algorithm for small tensors.
inline constexpr std::uint64_t kMaxDirectRanks = 16;
// Max bytes of a tensor by halving, for each rank of the group: of groups of up to 4 all that is small is as large.
// Measured (docs/collectives.md, tools/crossover.py).
inline constexpr std::uint64_t kHalvingBytesPerRank = 4U << 10;
// Max bytes that a rank holds for a direct or central all-reduce that a request names.
inline constexpr std::uint64_t kMaxRecordsBytes = 256U << 20;

// Min bytes of a tensor that a chain carries. It takes a transfer's latency more for each further rank, and saves the
// root's link the tensor's time for each: the size at which the two are equal does not depend on the ranks. Measured
// with four ranks only, on one host and on four (docs/collectives.md): in a larger group a tree may be faster at middle
// sizes.
inline constexpr std::uint64_t kChainBytes = 64U << 10;

// Max hosts between which two levels are chosen: with more, a ring's link carries hardly more bytes, and a ring does
// not wait for whole parts. Measured (docs/collectives.md).
inline constexpr std::uint64_t kMaxTwoLevelHosts = 3;

// Min bytes of a member's part of an all-gather or reduce-scatter that takes two levels where it may: with less, the
// second round costs more than the bytes between hosts. Measured (docs/collectives.md).
inline constexpr std::uint64_t kTwoLevelPartBytes = 4U << 10;

// The members of a group, for the choice.
struct GroupSize {
  std::uint64_t ranks = 0;
  std::uint64_t ranks_per_host = 0;  // adjacent in the group, on every host as many; 0: not so, or not known

  bool has_two_levels() const { return ranks_per_host > 1 && ranks_per_host < ranks; }
};

// GroupSize::ranks_per_host of a group: `hosts` has the number of each rank's host, or is empty.
std::uint16_t ranks_per_host(std::span<const std::uint16_t> group, std::span<const std::uint16_t> hosts);

// Whether what carries the tensor depends on GroupSize::ranks_per_host, which takes a look at every rank.
bool depends_on_hosts(CollectiveAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes);

// What carries a tensor of `bytes` of an all-reduce that names no algorithm. A loss bound changes nothing: what it
// saves a ring is less than what a ring costs beside the others (docs/collectives.md).
CollectiveAlgorithm chosen_algorithm(const GroupSize& group, std::uint64_t bytes);

// What carries it where the request names `requested`, or none.
CollectiveAlgorithm algorithm_of(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes);

// Why an all-reduce must not name the algorithm; empty if it may.
std::string check_algorithm(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes);

// The same of a broadcast or reduce.
bool rooted_depends_on_hosts(CollectiveAlgorithm requested, std::uint64_t bytes);
CollectiveAlgorithm rooted_algorithm_of(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes);

// The same of an all-gather or reduce-scatter, whose members have a part of `bytes` each.
bool parted_depends_on_hosts(CollectiveAlgorithm requested, std::uint64_t bytes);
CollectiveAlgorithm parted_algorithm_of(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes);

// Of these four; `what`: the collective's name.
std::string check_other_algorithm(CollectiveAlgorithm requested, const GroupSize& group, bool is_rooted,
                                  const std::string& what);

// The order of a chain by two levels, as positions in the group: from the root on for a broadcast (its host's members,
// then those of the other hosts); a reduce begins with the member behind the root and ends there.
std::vector<std::uint32_t> two_level_chain(std::uint32_t ranks, std::uint32_t ranks_per_host, std::uint32_t root,
                                           bool is_reduce);

}  // namespace mlt::collective
