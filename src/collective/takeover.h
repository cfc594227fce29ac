// What a service needs to repeat the round that a service that is gone was summing: each worker's report of a
// partition, and what follows from all of them.
//
// Absent on purpose: the worker's half (takeover_record.h) and the sums (partition_sums.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace mlt::collective {

// The round after the smallest number of results that a worker has had whole.
struct Repetition {
  // Per cell the worker whose result of it is taken, or -1 where none has it and it is summed; empty if no worker has
  // any of it, and the round is an ordinary one.
  std::vector<int> sources;
  std::vector<bool> ahead;  // workers that have its result whole
};

class Takeover {
  struct Report {
    std::uint64_t rounds = 0;
    std::vector<std::byte> cells;
    bool has(std::size_t cell) const {
      return !cells.empty() && ((static_cast<unsigned>(cells[cell / 8]) >> (cell % 8)) & 1U) != 0;
    }
    bool has_any() const;
  };

 public:
  Takeover() = default;
  explicit Takeover(std::uint16_t workers) : reports_(workers) {}

  // Memory of the reports and of what follows from them.
  static std::uint64_t cost_bytes(std::uint64_t cells, std::uint16_t workers) {
    return std::uint64_t{workers} * (2 * sizeof(Report) + cells / 8) + cells * sizeof(int);
  }
  bool is_waiting() const { return !reports_.empty(); }  // for reports
  // How many results of the partition the worker has had whole, and which segments of the next: a bit for each.
  void report(std::uint16_t worker, std::uint64_t rounds, const std::vector<std::byte>& cells) {
    reports_[worker] = Report{rounds, cells};
  }
  bool has_report(std::uint16_t worker) const { return reports_[worker].has_value(); }

  struct Outcome {
    std::uint64_t rounds = 0, newest = 0;  // the smallest number of results, and the largest
    std::uint16_t slowest = 0, fastest = 0;
    // A worker that has segments of a newer result than others have had whole no longer has its own terms for it.
    bool has_newer = false;
    Repetition repetition;
  };
  // Empty until every worker that is not gone has reported; then ends the wait.
  std::optional<Outcome> finish(const std::vector<bool>& gone, std::size_t cells);

 private:
  std::vector<std::optional<Report>> reports_;  // per worker
};

}  // namespace mlt::collective
