#include "engine/partner_cache.h"

#include <utility>

namespace mlt::engine {

std::vector<std::uint16_t> PartnerCache::partners(const collective::CollectiveRequest& request) {
  Call call{request.ranks, request.kind, algorithm_of(request), 0, 0};
  if (has_root(request.kind)) call.root = request.root;
  if (call.algorithm == collective::CollectiveAlgorithm::kTwoLevel) call.ranks_per_host = request.ranks_per_host;
  const std::lock_guard lock(mutex_);
  if (const auto found = lists_.find(call); found != lists_.end()) return found->second;
  if (lists_.size() >= kMaxLists) lists_.clear();
  ++plans_built_;
  return lists_.emplace(std::move(call), collective::partners(request, rank_)).first->second;
}

std::uint64_t PartnerCache::plans_built() const {
  const std::lock_guard lock(mutex_);
  return plans_built_;
}

}  // namespace mlt::engine
