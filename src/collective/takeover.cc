#include "collective/takeover.h"

#include <algorithm>
#include <utility>

namespace mlt::collective {

bool Takeover::Report::has_any() const {
  return std::ranges::any_of(cells, [](std::byte byte) { return byte != std::byte{}; });
}

// A segment of the interrupted round that some worker has the result of keeps it; of the others no worker has, so that
// all still have what they pushed.
std::optional<Takeover::Outcome> Takeover::finish(const std::vector<bool>& gone, std::size_t cells) {
  std::uint64_t first = ~std::uint64_t{0}, last = 0;
  Outcome outcome;
  for (std::uint16_t worker = 0; worker < reports_.size(); ++worker) {
    if (gone[worker]) continue;
    if (!reports_[worker]) return std::nullopt;
    if (reports_[worker]->rounds < first) outcome.slowest = worker;
    if (reports_[worker]->rounds > last) outcome.fastest = worker;
    first = std::min(first, reports_[worker]->rounds);
    last = std::max(last, reports_[worker]->rounds);
  }
  const std::vector<std::optional<Report>> reports = std::exchange(reports_, {});
  outcome.rounds = first;
  outcome.newest = last;
  outcome.has_newer = last - first > 1;
  for (std::uint16_t worker = 0; worker < reports.size(); ++worker) {
    if (gone[worker] || reports[worker]->rounds == first) continue;
    outcome.has_newer = outcome.has_newer || reports[worker]->has_any();
  }
  if (outcome.has_newer) return outcome;
  Repetition& repetition = outcome.repetition;
  repetition.ahead.assign(reports.size(), false);
  repetition.sources.assign(cells, -1);
  bool is_repeated = false;
  for (std::uint16_t worker = 0; worker < reports.size(); ++worker) {
    if (gone[worker]) continue;
    repetition.ahead[worker] = reports[worker]->rounds > first;
    for (std::size_t cell = 0; cell < cells; ++cell) {
      if (!repetition.ahead[worker] && !reports[worker]->has(cell)) continue;
      is_repeated = true;
      if (repetition.sources[cell] < 0) repetition.sources[cell] = worker;
    }
  }
  if (!is_repeated) repetition.sources.clear();
  return outcome;
}

}  // namespace mlt::collective
