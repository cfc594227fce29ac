// Which ranks to exclude so that of every lost connection one end is left out: the rule of 14.2.6 (PROTOCOL.md) as a
// pure function. Greedy: the rank with the most lost connections first.
//
// Absent on purpose: when, and whether those that are left are a quorum (survivors.h). Takes time for each connection,
// and for each rank that is chosen that of a pass over the ranks; both up to seven times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace mlt::collective {

class EdgeCover {
 public:
  using Ranks = std::vector<std::uint16_t>;
  // A lost connection; one that both ends report may be there twice.
  struct Edge {
    std::uint16_t reporter = 0, peer = 0;
    bool is_due = false;  // one end has to be chosen
  };
  struct Job {
    std::uint16_t size = 0, workers = 0;                // ranks, and the first that is a service
    std::uint16_t self = 0;                             // chosen only where nothing else is permitted
    std::size_t spare_workers = 0, spare_services = 0;  // so many more may be excluded
  };

  EdgeCover(const Job& job, std::span<const Edge> edges, Ranks dead);

  // `dead`, which are excluded anyway, and one end of every edge that is due. Beyond the limits where these permit no
  // choice, but never for a connection between services.
  Ranks choose();
  // Work that choose() did, for tests.
  std::uint64_t steps() const { return steps_; }

 private:
  enum class Allowed : std::uint8_t { kOthers, kServices, kWorkers };  // kOthers: all but `self`
  struct Pair {
    std::uint16_t a, b;
    bool is_due;
  };
  struct Cover;

  bool is_service(std::uint16_t rank) const { return rank >= job_.workers; }
  bool is_between_services(const Pair& pair) const { return is_service(pair.a) && is_service(pair.b); }
  // Empty if the limits do not permit it, unless `may_exceed`.
  std::optional<Ranks> cover(Allowed allowed, bool with_services, bool may_exceed);

  Job job_;
  Ranks dead_;
  std::vector<Pair> pairs_;                           // each once, in the order of the reports
  std::vector<std::vector<std::uint32_t>> touching_;  // by rank: its pairs
  std::vector<std::size_t> named_;                    // by rank: its place among those that are due
  std::uint64_t steps_ = 0;
};

}  // namespace mlt::collective
