#include "collective/wait_limit.h"

#include <algorithm>

#include "collective/collective.h"
#include "core/loss_bound.h"

namespace mlt::collective {

std::string names_of(const std::vector<std::uint16_t>& ranks) {
  constexpr std::size_t kMaxNames = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMaxNames); ++i) {
    text += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]);
  }
  return ranks.size() <= kMaxNames ? text : text + " and " + std::to_string(ranks.size() - kMaxNames) + " more";
}

std::vector<std::uint16_t> late_workers(ServicePartition& partition, const GoneWorkers& gone) {
  std::vector<std::uint16_t> late;
  for (std::uint16_t worker = 0; worker < gone.workers(); ++worker) {
    const bool is_over = partition.is_summed() ? !partition.sums.before().results[worker].is_pending
                                               : partition.pushes[worker] == ServicePartition::Push::kArrived;
    if (!is_over && !gone.contains(worker)) late.push_back(worker);
  }
  return late;
}

std::string late_text(ServicePartition& partition, const std::vector<std::uint16_t>& late) {
  const std::string names = names_of(late);
  if (partition.is_summed()) return partition.text() + ": the result before has not arrived at " + names;
  std::vector<std::uint16_t> missing, unregistered, unchecked;
  for (const std::uint16_t worker : late) {
    const bool is_whole = partition.pushes[worker] == ServicePartition::Push::kUnchecked;
    (is_whole ? unchecked : missing).push_back(worker);
    if (!partition.registered[worker]) unregistered.push_back(worker);
  }
  std::string text = partition.text() + ": ";
  if (!missing.empty()) text += "no complete push of " + names_of(missing) + " has arrived";
  if (!unregistered.empty()) text += "; " + names_of(unregistered) + " never posted a push-pull of this key";
  if (!missing.empty() && !unchecked.empty()) text += "; ";
  if (!unchecked.empty()) text += "the checksum of the push of " + names_of(unchecked) + " has not arrived";
  return text;
}

base::TimeNs WaitLimit::end(base::TimeNs now) const {
  return max_wait_ns_ > 0 ? base::after(now, max_wait_ns_) : base::kNever;
}

std::string WaitLimit::text() const { return std::to_string(max_wait_ns_ / base::kMillisecond) + " ms"; }

bool WaitLimit::begins(const ServicePartition& partition, const GoneWorkers& gone) const {
  return max_wait_ns_ > 0 && !partition.is_closed && partition.has_push && !partition.has_failed() &&
         !partition.is_summed() && partition.is_registered_by_all(gone);
}

// PROTOCOL 14.1.17: A service that limits how long it waits for pushes MUST then end the iteration without the rest of
//     the late ones, if no more of all workers' terms is missing than the bound, or else sum without their workers as
//     if these were gone, where it may, or else send overdue to every worker that registered the partition, and end its
//     iterations as 14.1.10 says.
WaitLimit::Outcome WaitLimit::decide(ServicePartition& partition, const GoneWorkers& gone) const {
  Outcome outcome;
  const bool waits_for_results = partition.is_summed();
  outcome.late = late_workers(partition, gone);
  if (outcome.late.empty()) return outcome;  // the transfers with workers that are gone are about to end
  const std::string names = names_of(outcome.late);
  outcome.decision = Decision::kGiveUp;
  if (waits_for_results) {
    outcome.text = partition.text() + ": " + names + " did not take a result for " + text() + " (max_wait)";
    return outcome;
  }
  const Register& shape = partition.shape;
  const std::uint64_t missing = partition.missing_elements(gone, outcome.late.size());
  if (missing == 0 && shape.elements > 0) return {};  // all has arrived, and the receives are about to end
  const std::uint64_t terms = std::uint64_t{shape.elements} * gone.live();
  outcome.text = partition.text() + ": no push of " + names + " within " + text() + " after the first (max_wait)";
  if (partition.sums.is_repeated()) {
    outcome.text += ", of a round that is repeated";
  } else if (!core::is_within_bound(missing, terms, shape.loss_bound)) {
    outcome.text += "; " + std::to_string(missing) + " of the " + std::to_string(terms) +
                    " terms are missing, more than the loss bound " + in_short(shape.loss_bound) + " allows";
  } else {
    outcome.decision = Decision::kSumWithout;
  }
  return outcome;
}

}  // namespace mlt::collective
