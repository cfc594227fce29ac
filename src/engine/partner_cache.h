// The ranks that a rank exchanges something with in the collectives of its groups, where ranks connect on first use: a
// post asks for these connections. Only a plan (collective::make_collective) shows them, and it may take as much memory
// as all terms of a reduction. So calls that differ in their tensors alone share one plan.
//
// Any thread may call it. Absent on purpose: which of them are connected (engine/peer_table.h).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "collective/algorithm.h"
#include "collective/collective.h"

namespace mlt::engine {

class PartnerCache {
 public:
  // Lists kept: 16 for each of 64 groups. One more empties the cache, so that no job of many groups grows it.
  static constexpr std::size_t kMaxLists = 1024;

  explicit PartnerCache(std::uint16_t rank) : rank_(rank) {}

  // In ascending order. The request must have passed collective::check_request().
  std::vector<std::uint16_t> partners(const collective::CollectiveRequest& request);
  std::uint64_t plans_built() const;

 private:
  // All that decides who sends something to whom: the sizes of what is sent do not, beyond the choice of the algorithm.
  struct Call {
    std::vector<std::uint16_t> ranks;
    collective::CollectiveKind kind;
    collective::CollectiveAlgorithm algorithm;
    std::uint16_t root;            // 0 where there is none
    std::uint16_t ranks_per_host;  // 0 unless the algorithm is two levels
    auto operator<=>(const Call&) const = default;
  };

  const std::uint16_t rank_;
  mutable std::mutex mutex_;
  std::map<Call, std::vector<std::uint16_t>> lists_;  // guarded by mutex_
  std::uint64_t plans_built_ = 0;                     // guarded by mutex_
};

}  // namespace mlt::engine
