#include "engine/partner_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "base/prng.h"
#include "collective/collective.h"

namespace {

using namespace mlt;
using collective::CollectiveAlgorithm;
using collective::CollectiveKind;
using collective::CollectiveRequest;
using engine::PartnerCache;

// Calls with memory of their own.
struct CachedCall {
  CachedCall(CollectiveKind kind, std::uint16_t ranks, std::uint16_t own, std::size_t part_bytes,
             std::uint16_t root = 0) {
    request.kind = kind;
    request.ranks.resize(ranks);
    std::iota(request.ranks.begin(), request.ranks.end(), std::uint16_t{0});
    request.root = root;
    set_sizes(part_bytes, part_bytes * ranks, own == root);
  }
  void set_sizes(std::size_t part_bytes, std::size_t all, bool is_root) {
    switch (request.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBroadcast:
        return set(0, all);
      case CollectiveKind::kReduce:
        return set(all, is_root ? all : 0);
      case CollectiveKind::kGather:
        return set(part_bytes, is_root ? all : 0);
      case CollectiveKind::kScatter:
        return set(is_root ? all : 0, part_bytes);
      case CollectiveKind::kAllGather:
        return set(part_bytes, all);
      case CollectiveKind::kReduceScatter:
        return set(all, part_bytes);
      case CollectiveKind::kAllToAll:
        request.send_bytes.assign(request.ranks.size(), part_bytes);
        request.receive_bytes = request.send_bytes;
        return set(all, all);
      case CollectiveKind::kBarrier:
        return;
    }
  }
  void set(std::size_t input_bytes, std::size_t output_bytes) {
    input.resize(input_bytes);
    output.resize(output_bytes);
    request.input = input;
    request.output = output;
  }
  std::vector<std::byte> input, output;
  CollectiveRequest request;
};

constexpr CollectiveKind kCachedKinds[] = {
    CollectiveKind::kAllReduce,     CollectiveKind::kAllToAll, CollectiveKind::kGather,
    CollectiveKind::kAllGather,     CollectiveKind::kScatter,  CollectiveKind::kBroadcast,
    CollectiveKind::kReduceScatter, CollectiveKind::kReduce,   CollectiveKind::kBarrier};

}  // namespace

TEST_CASE("partners__builds_one_plan_for_calls_that_differ_in_their_tensors_alone") {
  PartnerCache cache(2);
  for (int i = 0; i < 3; ++i) {
    for (const std::size_t bytes : {std::size_t{1} << 18, std::size_t{1} << 20}) {
      const CachedCall call(CollectiveKind::kAllReduce, 4, 2, bytes);
      CHECK(cache.partners(call.request) == std::vector<std::uint16_t>{1, 3});
    }
  }
  CHECK(cache.plans_built() == 1);
  const CachedCall small(CollectiveKind::kAllReduce, 4, 2, 4);  // another algorithm
  CHECK(cache.partners(small.request) == std::vector<std::uint16_t>{0, 1, 3});
  CHECK(cache.plans_built() == 2);
}

// Whatever was cached before by calls of other sizes.
TEST_CASE("partners__are_those_of_the_calls_own_plan") {
  base::Prng prng(7);
  PartnerCache cache(1);
  for (int i = 0; i < 5000; ++i) {
    const CollectiveKind kind = kCachedKinds[prng.below(std::size(kCachedKinds))];
    const auto ranks = static_cast<std::uint16_t>(prng.chance(0.2) ? 20 : 2 + prng.below(6));
    const auto root = static_cast<std::uint16_t>(prng.below(ranks));
    const std::size_t bytes = prng.chance(0.1) ? 0 : std::size_t{4} << prng.below(15);
    CachedCall call(kind, ranks, 1, bytes, root);
    if (has_algorithm(kind)) {
      call.request.algorithm = static_cast<CollectiveAlgorithm>(prng.below(7));
      if (ranks % 2 == 0 && prng.chance(0.5)) call.request.ranks_per_host = ranks / 2;
    }
    if (!check_request(call.request, 1).empty()) continue;
    CAPTURE(i);
    CHECK(cache.partners(call.request) == collective::partners(call.request, 1));
  }
  CHECK(cache.plans_built() < 1000);
}

TEST_CASE("partners__of_more_calls_than_it_keeps") {
  PartnerCache cache(0);
  for (std::size_t i = 0; i < PartnerCache::kMaxLists + 1; ++i) {
    CachedCall call(CollectiveKind::kBarrier, 2, 0, 0);
    call.request.ranks[1] = static_cast<std::uint16_t>(i + 1);
    CHECK(cache.partners(call.request) == std::vector<std::uint16_t>{static_cast<std::uint16_t>(i + 1)});
  }
  const std::uint64_t plans = cache.plans_built();
  CHECK(plans == PartnerCache::kMaxLists + 1);
  CachedCall last(CollectiveKind::kBarrier, 2, 0, 0);
  last.request.ranks[1] = static_cast<std::uint16_t>(PartnerCache::kMaxLists + 1);
  cache.partners(last.request);
  CHECK(cache.plans_built() == plans);  // kept
  CachedCall first(CollectiveKind::kBarrier, 2, 0, 0);
  cache.partners(first.request);
  CHECK(cache.plans_built() == plans + 1);  // gone
}
