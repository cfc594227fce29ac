// Collectives of real runs: every member ends once, for a reason, with the result that the inputs give.
#include <algorithm>
#include <map>
#include <set>

#include "sim/chaos/checker.h"
#include "sim/chaos/digest.h"

namespace mlt::chaos {

namespace {

using core::CompletionStatus;

// Element i of a member's tensor before an all-reduce: small whole numbers, whose sums are exact in any order.
float summand(std::uint64_t i, std::uint64_t rank, std::uint64_t sequence) {
  return static_cast<float>((i * 37 + rank * 11 + sequence * 101) % 251);
}

// The number that names what `from` sends `to` in the collective that operation `id` belongs to: the ids of a
// collective differ in the rank alone, which stands in bits 25 to 28, and leave bits 21 to 24 to this.
std::uint64_t part_id(std::uint64_t id, std::uint64_t from, std::uint64_t to) {
  constexpr std::uint64_t kRanks = 0xFFULL << 21;
  return (id & ~kRanks) | (from << 25) | (to << 21);
}

bool is_well(const Operation& operation) { return operation.ends > 0 && !core::is_failure(operation.status); }

}  // namespace

std::uint64_t Checker::expected_result(const Operation& operation) const {
  const std::size_t bytes = operation.plan.bytes;
  std::vector<std::byte> result(bytes);
  if (operation.verb == "all_reduce") {
    const float share = 1.0F / static_cast<float>(operation.group.size());
    for (std::size_t i = 0; i < bytes / sizeof(float); ++i) {
      float sum = 0;
      for (const std::uint16_t rank : operation.group) sum += summand(i, rank, operation.sequence);
      if (operation.average) sum *= share;
      std::memcpy(result.data() + i * sizeof(float), &sum, sizeof sum);
    }
    return digest(result);
  }
  // Parts of equal length, one of each member; of a gather to its root alone.
  if (operation.verb == "gather" && operation.plan.host != operation.root) return 0;
  const std::size_t part = bytes / operation.group.size();
  for (std::size_t i = 0; i < operation.group.size(); ++i) {
    const std::uint64_t id = part_id(operation.id, operation.group[i], operation.plan.host);
    sim::fill_contents(id, 0, std::span(result).subspan(i * part, part));
  }
  return digest(result);
}

void Checker::check_results(const std::vector<const Operation*>& members) {
  const bool all_well = std::ranges::all_of(members, [](const Operation* one) { return is_well(*one); }) &&
                        members.size() == members.front()->group.size();
  const bool nothing_missing =
      all_well && std::ranges::all_of(members, [](const Operation* one) { return one->completion.missing_bytes == 0; });
  std::set<std::uint64_t> results;
  for (const Operation* one : members) {
    if (!is_well(*one)) continue;
    results.insert(one->digest);
    if (one->status == CompletionStatus::kComplete && one->completion.missing_bytes != 0) {
      violate(1, *one, "complete, but something is missing");
    }
    if (one->plan.loss_bound == 0 && one->completion.missing_bytes != 0) violate(1, *one, "lost some without a bound");
    // Of all sums that a member receives, which are less than the tensor.
    const double most = one->plan.loss_bound * static_cast<double>(one->plan.bytes);
    if (one->verb == "all_reduce" && static_cast<double>(one->completion.missing_bytes) > most) {
      violate(1, *one, "lost more than the bound of its tensor");
    }
    if ((nothing_missing || one->plan.loss_bound == 0) && one->digest != expected_result(*one)) {
      violate(2, *one, "the result is not what the inputs give");
    }
  }
  if (members.front()->verb == "all_reduce" && results.size() > 1) {
    violate(2, *members.front(), "members of the group have different results");
  }
}

void Checker::check_collective(const std::vector<const Operation*>& members, bool earlier_failed) {
  check_results(members);
  base::TimeNs last = 0;
  bool excused = earlier_failed;
  for (const Operation* one : members) {
    last = std::max(last, one->ended_ns);
    excused = excused || one->cancelled_ns > 0 || is_lost(*one) ||
              (one->ends > 0 && one->status == CompletionStatus::kTimedOut &&
               one->ended_ns - one->posting_ns >= one->plan.timeout_ns);
  }
  for (const std::uint16_t a : members.front()->group) {
    for (const std::uint16_t b : members.front()->group) excused = excused || (a != b && is_cut(a, b, last));
  }
  // A member that never posted it: its group had failed there, or it left.
  if (excused || members.size() < members.front()->group.size()) return;
  for (const Operation* one : members) {
    if (one->ends > 0 && core::is_failure(one->status)) violate(3, *one, "failed for no reason");
  }
}

void Checker::check_collectives() {
  using Key = std::pair<std::vector<std::uint16_t>, std::uint64_t>;
  std::map<Key, std::vector<const Operation*>> collectives;
  for (const auto& [number, rank] : job_.ranks) {
    for (const auto& [id, operation] : rank.operations) {
      if (!operation.group.empty()) collectives[{operation.group, operation.sequence}].push_back(&operation);
    }
  }
  std::set<std::vector<std::uint16_t>> failed;
  for (const auto& [key, members] : collectives) {
    check_collective(members, failed.count(key.first) != 0);
    const bool all_well = std::ranges::all_of(members, [](const Operation* one) { return is_well(*one); });
    if (!all_well) failed.insert(key.first);
  }
}

}  // namespace mlt::chaos
