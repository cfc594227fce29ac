#include "collective/edge_cover.h"

#include <algorithm>

namespace mlt::collective {

EdgeCover::EdgeCover(const Job& job, std::span<const Edge> edges, Ranks dead)
    : job_(job), dead_(std::move(dead)), touching_(job.size), named_(job.size, SIZE_MAX) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;  // the two ranks, and the place
  for (std::uint32_t i = 0; i < edges.size(); ++i) {
    const auto [low, high] = std::minmax(edges[i].reporter, edges[i].peer);
    order.emplace_back((std::uint32_t{low} << 16) | high, i);
  }
  std::ranges::sort(order);
  const auto repeated = std::ranges::unique(order, {}, &std::pair<std::uint32_t, std::uint32_t>::first);
  order.erase(repeated.begin(), repeated.end());
  std::ranges::sort(order, {}, &std::pair<std::uint32_t, std::uint32_t>::second);
  for (const auto& [ranks, place] : order) {
    const Edge& edge = edges[place];
    const auto index = static_cast<std::uint32_t>(pairs_.size());
    pairs_.push_back({edge.peer, edge.reporter, edge.is_due});
    for (const std::uint16_t rank : {edge.peer, edge.reporter}) {
      touching_[rank].push_back(index);
      if (edge.is_due) named_[rank] = std::min(named_[rank], 2 * place + (rank == edge.peer ? std::size_t{0} : 1U));
    }
  }
  steps_ += edges.size();
}

// What is not covered yet, by rank.
struct EdgeCover::Cover {
  explicit Cover(const EdgeCover& owner)
      : lost(owner.job_.size), due(lost), due_of_services(lost), chosen(lost.size()) {}

  std::vector<std::size_t> lost, due, due_of_services;  // connections; of them due; of them between services
  std::vector<bool> chosen;
  Ranks ranks;
  std::size_t workers = 0, services = 0;  // chosen
};

// PROTOCOL 14.2.6: Of the two ends it SHOULD take the one that most others have lost; of equals one that the limits
//     permit, then the one that the first report named. It SHOULD exclude ranks of one kind only where the limits
//     permit that and nothing else.
std::optional<EdgeCover::Ranks> EdgeCover::cover(Allowed allowed, bool with_services, bool may_exceed) {
  Cover state(*this);
  for (const Pair& pair : pairs_) {
    const bool is_of_services = is_between_services(pair);
    if (is_of_services && !with_services) continue;
    for (const std::uint16_t rank : {pair.a, pair.b}) {
      ++state.lost[rank];
      if (pair.is_due) ++state.due[rank];
      if (pair.is_due && is_of_services) ++state.due_of_services[rank];
    }
  }
  steps_ += pairs_.size();
  const auto choose = [&](std::uint16_t rank) {
    state.chosen[rank] = true;
    state.ranks.push_back(rank);
    ++(is_service(rank) ? state.services : state.workers);
    for (const std::uint32_t index : touching_[rank]) {
      const Pair& pair = pairs_[index];
      const bool is_of_services = is_between_services(pair);
      if (state.chosen[pair.a == rank ? pair.b : pair.a] || (is_of_services && !with_services)) continue;
      for (const std::uint16_t end : {pair.a, pair.b}) {
        --state.lost[end];
        if (pair.is_due) --state.due[end];
        if (pair.is_due && is_of_services) --state.due_of_services[end];
      }
    }
    steps_ += touching_[rank].size();
  };
  const auto is_permitted = [&](std::uint16_t rank) {
    return is_service(rank) ? state.services < job_.spare_services : state.workers < job_.spare_workers;
  };
  const auto may_be = [&](std::uint16_t rank) {
    if (state.due[rank] == 0) return false;
    // For a connection between services none is excluded beyond the limits.
    if (state.due[rank] == state.due_of_services[rank] && !is_permitted(rank)) return false;
    if (allowed == Allowed::kOthers) return rank != job_.self;
    return is_service(rank) == (allowed == Allowed::kServices);
  };
  const auto is_better = [&](std::uint16_t rank, std::uint16_t best) {
    if (state.lost[rank] != state.lost[best]) return state.lost[rank] > state.lost[best];
    if (is_permitted(rank) != is_permitted(best)) return is_permitted(rank);
    return named_[rank] < named_[best];
  };
  for (const std::uint16_t rank : dead_) choose(rank);
  for (;;) {
    if (!may_exceed && (state.workers > job_.spare_workers || state.services > job_.spare_services)) {
      return std::nullopt;
    }
    int best = -1;
    for (std::uint16_t rank = 0; rank < job_.size; ++rank) {
      if (may_be(rank) && (best < 0 || is_better(rank, static_cast<std::uint16_t>(best)))) best = rank;
    }
    steps_ += job_.size;
    if (best < 0) return state.ranks;
    choose(static_cast<std::uint16_t>(best));
  }
}

EdgeCover::Ranks EdgeCover::choose() {
  if (std::ranges::none_of(pairs_, &Pair::is_due)) return dead_;
  // Those between services last: the others matter to the sums.
  for (const bool with_services : {true, false}) {
    for (const Allowed allowed : {Allowed::kOthers, Allowed::kServices, Allowed::kWorkers}) {
      if (auto chosen = cover(allowed, with_services, false)) return *std::move(chosen);
    }
  }
  return *cover(Allowed::kOthers, false, true);
}

}  // namespace mlt::collective
