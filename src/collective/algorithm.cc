#include "collective/algorithm.h"

#include <algorithm>
#include <vector>

namespace mlt::collective {

namespace {

// PROTOCOL 22.4.1: A member MUST treat an all-reduce as small when n - 1 times the tensor's bytes are at most 65,536.
bool is_small(std::uint64_t ranks, std::uint64_t bytes) { return (ranks - 1) * bytes <= kDirectBytes; }

// Not small: at most this.
bool is_middle(std::uint64_t ranks, std::uint64_t bytes) { return bytes <= ranks * kHalvingBytesPerRank; }

// PROTOCOL 22.7.1: ... A member MUST refuse two levels in any other group of more than one rank.
bool lacks_hosts(CollectiveAlgorithm requested, const GroupSize& group) {
  return requested == CollectiveAlgorithm::kTwoLevel && group.ranks > 1 && !group.has_two_levels();
}
constexpr const char* kNeedsHosts =
    "the two-level algorithm needs two or more hosts with equally many ranks of the group, two or more, next to each "
    "other in it";

}  // namespace

std::uint16_t ranks_per_host(std::span<const std::uint16_t> group, std::span<const std::uint16_t> hosts) {
  const auto is_known = [&](std::uint16_t rank) { return rank < hosts.size(); };
  if (group.empty() || !std::ranges::all_of(group, is_known)) return 0;
  const auto is_next = [&](std::uint16_t a, std::uint16_t b) { return hosts[a] != hosts[b]; };
  const auto first_end = std::ranges::adjacent_find(group, is_next);
  const std::size_t length =
      first_end == group.end() ? group.size() : static_cast<std::size_t>(first_end - group.begin()) + 1;
  if (group.size() % length != 0) return 0;
  std::vector<std::uint16_t> seen;
  for (std::size_t i = 0; i < group.size(); i += length) {
    const auto run = group.subspan(i, length);
    if (std::ranges::adjacent_find(run, is_next) != run.end()) return 0;
    seen.push_back(hosts[run[0]]);
  }
  std::ranges::sort(seen);
  return std::ranges::adjacent_find(seen) == seen.end() ? static_cast<std::uint16_t>(length) : std::uint16_t{0};
}

bool depends_on_hosts(CollectiveAlgorithm requested, std::uint64_t ranks, std::uint64_t bytes) {
  if (requested != CollectiveAlgorithm::kAutomatic) return requested == CollectiveAlgorithm::kTwoLevel;
  return ranks > 1 && !is_small(ranks, bytes) && !is_middle(ranks, bytes);
}

// PROTOCOL 22.2.6: A caller MAY name the algorithm. If it names none, a member MUST take, whatever the loss bound: for
// a
//     small all-reduce (22.4.1) direct in a group of at most 16 ranks, central in a larger one; else halving when the
//     tensor has at most 4,096 bytes for each rank; else two levels in a group of two or three hosts that may take them
//     (22.7.1); else the ring. So every member finds the same, and its shape carries the one that is taken. A group of
//     one rank takes direct, whatever its caller names.
CollectiveAlgorithm chosen_algorithm(const GroupSize& group, std::uint64_t bytes) {
  const std::uint64_t ranks = group.ranks;
  if (ranks == 1) return CollectiveAlgorithm::kDirect;
  if (is_small(ranks, bytes)) {
    return ranks > kMaxDirectRanks ? CollectiveAlgorithm::kCentral : CollectiveAlgorithm::kDirect;
  }
  if (is_middle(ranks, bytes)) return CollectiveAlgorithm::kHalving;
  const bool has_few_hosts = group.has_two_levels() && ranks / group.ranks_per_host <= kMaxTwoLevelHosts;
  return has_few_hosts ? CollectiveAlgorithm::kTwoLevel : CollectiveAlgorithm::kRing;
}

CollectiveAlgorithm algorithm_of(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes) {
  // A group of one has nothing to carry.
  const bool chooses = requested == CollectiveAlgorithm::kAutomatic || group.ranks == 1;
  return chooses ? chosen_algorithm(group, bytes) : requested;
}

std::string check_algorithm(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes) {
  const std::uint64_t ranks = group.ranks;
  if (static_cast<std::uint8_t>(requested) >= kCollectiveAlgorithmCount) return "its algorithm is unknown";
  if (requested == CollectiveAlgorithm::kChain) {
    return "an all-reduce has no chain algorithm: use direct, central, ring, halving or two-level";
  }
  if (lacks_hosts(requested, group)) return std::string(kNeedsHosts) + ": use the ring or halving";
  const bool has_records = requested == CollectiveAlgorithm::kDirect || requested == CollectiveAlgorithm::kCentral;
  if (!has_records || ranks == 1 || bytes <= kMaxRecordsBytes / ranks) return "";
  return std::string("the ") + algorithm_name(requested) + " algorithm holds " + std::to_string(ranks) +
         " tensors of " + std::to_string(bytes) + " bytes, and may hold " + std::to_string(kMaxRecordsBytes) +
         " bytes in all: use the ring or halving";
}

bool rooted_depends_on_hosts(CollectiveAlgorithm requested, std::uint64_t bytes) {
  if (requested != CollectiveAlgorithm::kAutomatic) return requested == CollectiveAlgorithm::kTwoLevel;
  return bytes >= kChainBytes;
}

// PROTOCOL 22.6.1: A caller of a broadcast or reduce MAY name the algorithm. If it names none, a member MUST take, when
//     the tensor has 65,536 bytes or more, whatever the loss bound, two levels in a group that may take them (22.7.1),
//     and the chain in any other; else direct. A group of one rank takes direct, whatever its caller names.
CollectiveAlgorithm rooted_algorithm_of(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes) {
  if (group.ranks == 1) return CollectiveAlgorithm::kDirect;
  if (requested != CollectiveAlgorithm::kAutomatic) return requested;
  if (bytes < kChainBytes) return CollectiveAlgorithm::kDirect;
  return group.has_two_levels() ? CollectiveAlgorithm::kTwoLevel : CollectiveAlgorithm::kChain;
}

bool parted_depends_on_hosts(CollectiveAlgorithm requested, std::uint64_t bytes) {
  if (requested != CollectiveAlgorithm::kAutomatic) return requested == CollectiveAlgorithm::kTwoLevel;
  return bytes >= kTwoLevelPartBytes;
}

// PROTOCOL 22.3.6: A caller of an all-gather or reduce-scatter MAY name the algorithm, direct or two levels. If it
// names
//     none, a member MUST take two levels in a group that may take them (22.7.1) when a member's part has 4,096 bytes
//     or more, whatever the loss bound; else direct. A group of one rank takes direct, whatever its caller names.
CollectiveAlgorithm parted_algorithm_of(CollectiveAlgorithm requested, const GroupSize& group, std::uint64_t bytes) {
  if (group.ranks == 1) return CollectiveAlgorithm::kDirect;
  if (requested != CollectiveAlgorithm::kAutomatic) return requested;
  const bool is_two_level = group.has_two_levels() && bytes >= kTwoLevelPartBytes;
  return is_two_level ? CollectiveAlgorithm::kTwoLevel : CollectiveAlgorithm::kDirect;
}

std::string check_other_algorithm(CollectiveAlgorithm requested, const GroupSize& group, bool is_rooted,
                                  const std::string& what) {
  if (static_cast<std::uint8_t>(requested) >= kCollectiveAlgorithmCount) return "its algorithm is unknown";
  const std::string others = is_rooted ? "direct or chain" : "direct";
  if (lacks_hosts(requested, group)) return std::string(kNeedsHosts) + ": use " + others;
  if (requested == CollectiveAlgorithm::kAutomatic || requested == CollectiveAlgorithm::kDirect ||
      requested == CollectiveAlgorithm::kTwoLevel || (is_rooted && requested == CollectiveAlgorithm::kChain)) {
    return "";
  }
  const bool has_an = what.starts_with('a');
  return (has_an ? "an " : "a ") + what + " has no " + algorithm_name(requested) + " algorithm: use " + others +
         (is_rooted ? "" : " or two-level");
}

// PROTOCOL 22.7.7: A broadcast or reduce by two levels MUST be a chain (22.6) in an order of its own, which begins with
//     the root: of a broadcast the other members of its host follow, then the other hosts; of a reduce the other hosts,
//     then the other members of the root's host. Each host's members are in the order of the group, those of the
//     root's host from the root on, and the hosts in the order of the group from the root's host on.
std::vector<std::uint32_t> two_level_chain(std::uint32_t ranks, std::uint32_t ranks_per_host, std::uint32_t root,
                                           bool is_reduce) {
  const std::uint32_t hosts = ranks / ranks_per_host, host = root / ranks_per_host, local = root % ranks_per_host;
  std::vector<std::uint32_t> order = {root};
  const auto add_own = [&] {
    for (std::uint32_t i = 1; i < ranks_per_host; ++i) {
      order.push_back(host * ranks_per_host + (local + i) % ranks_per_host);
    }
  };
  if (!is_reduce) add_own();
  for (std::uint32_t i = 1; i < hosts; ++i) {
    for (std::uint32_t j = 0; j < ranks_per_host; ++j) order.push_back((host + i) % hosts * ranks_per_host + j);
  }
  if (is_reduce) add_own();
  return order;
}

}  // namespace mlt::collective
