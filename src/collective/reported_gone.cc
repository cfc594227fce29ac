#include "collective/reported_gone.h"

namespace mlt::collective {

void ReportedGone::on_message(std::uint16_t from, const Gone& gone) {
  // PROTOCOL 14.1.18: A worker MUST ignore gone from a rank that is none of its services, and of a rank that is no
  //     worker.
  if (!services_.is_worker(gone.rank) || !services_.contains(from)) return;
  const auto rank = static_cast<std::uint16_t>(gone.rank);
  if (!ranks_.insert(rank).second) return;
  const std::string error = verbs_.peer_error(rank);
  verbs_.notice((error.empty() ? "worker rank " + std::to_string(rank) + " failed or left the job" : error) +
                ": the services sum without it (" + std::to_string(ranks_.size()) + " of at most " +
                std::to_string(gone.max_dead_workers) + " workers gone)");
}

std::string ReportedGone::abort_text(std::uint64_t key, int failed_rank) const {
  const std::string text =
      "key " + std::to_string(key) + " cannot be summed without worker rank " + std::to_string(failed_rank);
  const std::string error = verbs_.peer_error(static_cast<std::uint16_t>(failed_rank));
  std::string others;
  for (const std::uint16_t rank : ranks_) {
    if (rank == failed_rank) continue;
    const std::string cause = verbs_.peer_error(rank);
    others += "; before it " + (cause.empty() ? "rank " + std::to_string(rank) + " failed or left the job" : cause);
  }
  return (error.empty() ? text + ", which failed or left the job" : error + " (" + text + ")") + others;
}

}  // namespace mlt::collective
