#include "collective/survivors.h"

#include <algorithm>
#include <utility>

namespace mlt::collective {

Survivors::Survivors(const Config& config, Verbs& verbs)
    : config_(config),
      verbs_(verbs),
      size_(static_cast<std::uint16_t>(config.workers + config.services)),
      members_(size_) {}

// PROTOCOL 14.2.1: A rank MUST take for its decider the lowest service that is not excluded and whose connection
//     with it is not lost: a service perhaps itself.
int Survivors::decider() const {
  for (std::uint16_t rank = config_.workers; rank < size_; ++rank) {
    if (!members_[rank].is_excluded && !members_[rank].is_lost) return rank;
  }
  return -1;
}

void Survivors::on_lost(TimeNs now, std::uint16_t peer) {
  if (peer >= size_ || members_[peer].is_lost) return;
  members_[peer].is_lost = true;
  if (is_out() || (!is_service(peer) && !is_service(config_.rank))) return;
  if (config_.services == 1) {  // it alone decides, and whoever loses it has no other
    exclude(peer);
    return;
  }
  // PROTOCOL 14.2.10: A rank that ended its connections with goodbye (3.7.2) has said so to all: a rank MUST take
  //     it for excluded without a decision, name it in lost as excluded, and leave it out of the ranks that a quorum
  //     counts.
  if (verbs_.has_left(peer)) {
    members_[peer].has_left = true;
    exclude(peer);
    set_timer(now);
    return;
  }
  note_edge(now, config_.rank, peer);
  report(now);
}

// PROTOCOL 14.2.2: A rank that loses a connection with a service, or a service that loses one with any rank, MUST
//     send lost to its decider, and again when its decider changes or it learns of an exclusion.
void Survivors::report(TimeNs now) {
  if (is_out()) return;
  const int to = decider();
  if (to == config_.rank) {
    decide(now);
  } else if (to >= 0) {
    Lost lost{agreed_, excluded_, {}, max_dead_services_};
    for (std::uint16_t rank = 0; rank < size_; ++rank) {
      const bool is_listed = std::ranges::find(excluded_, rank) != excluded_.end();
      if (members_[rank].has_left && !is_listed) lost.excluded.push_back(rank);
      if (members_[rank].is_lost) lost.lost.push_back(rank);
    }
    encode(lost, scratch_);
    verbs_.send_message(static_cast<std::uint16_t>(to), scratch_);
  }
  set_timer(now);
}

void Survivors::note_edge(TimeNs now, std::uint16_t reporter, std::uint16_t peer) {
  if (members_[reporter].is_excluded || members_[peer].is_excluded) return;
  edges_.push_back({reporter, peer, now});
}

void Survivors::on_message(TimeNs now, std::uint16_t from, const Lost& lost) {
  if (from >= size_ || is_out() || !is_service(config_.rank) || config_.services == 1) return;
  Member& member = members_[from];
  // PROTOCOL 14.2.7: A service that receives lost from a rank that it knows as excluded MUST send it excluded.
  if (member.is_excluded) return send_view(from);
  // A service whose keys no worker has registered yet does not know it.
  max_dead_services_ = std::max(max_dead_services_, lost.max_dead_services);
  const bool has_news = join(lost.excluded, lost.agreed);
  if (is_out()) return;
  member.has_reported = true;
  std::vector<bool> now_lost(size_);
  for (const std::uint32_t rank : lost.lost) {
    if (rank >= size_ || rank == from) continue;
    now_lost[rank] = true;
    if (!is_service(static_cast<std::uint16_t>(rank)) && !is_service(from)) continue;
    if (member.lost.empty() || !member.lost[rank]) note_edge(now, from, static_cast<std::uint16_t>(rank));
  }
  member.lost = std::move(now_lost);
  member.knows.assign(size_, false);
  for (const std::uint32_t rank : lost.excluded) {
    if (rank < size_) member.knows[rank] = true;
  }
  if (decider() == config_.rank) {
    if (has_news) {
      broadcast();
    } else if (!has_acknowledged(from)) {
      send_view(from);
    }
    decide(now);
  } else if (has_news) {
    report(now);
  }
  set_timer(now);
}

void Survivors::on_message(TimeNs now, std::uint16_t from, const Excluded& excluded) {
  if (from >= size_ || is_out() || config_.services == 1) return;
  // PROTOCOL 14.2.5: A rank that receives excluded MUST join it with what it knows, act on it, send lost to its
  //     decider as the acknowledgement, and send excluded to the ranks that are excluded by it, as far as it reaches
  //     them.
  if (join(excluded.ranks, excluded.agreed) && !is_out()) report(now);
  set_timer(now);
}

bool Survivors::join(const std::vector<std::uint32_t>& ranks, std::uint64_t agreed) {
  if (std::ranges::any_of(ranks, [&](std::uint32_t rank) { return rank >= size_; }) || agreed > ranks.size()) {
    return false;
  }
  const std::size_t before = excluded_.size();
  for (const std::uint32_t rank : ranks) exclude(static_cast<std::uint16_t>(rank));
  if (agreed > agreed_) {
    std::vector<std::uint32_t> order(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(agreed));
    for (const std::uint32_t rank : excluded_) {
      if (std::ranges::find(order, rank) == order.end()) order.push_back(rank);
    }
    excluded_ = std::move(order);
    agreed_ = agreed;
  }
  if (excluded_.size() == before) return false;
  for (const std::uint32_t rank : ranks) {
    if (rank != config_.rank && !members_[rank].is_lost) send_view(static_cast<std::uint16_t>(rank));
  }
  return true;
}

void Survivors::exclude(std::uint16_t rank) {
  if (members_[rank].is_excluded) return;
  members_[rank].is_excluded = true;
  if (!members_[rank].has_left) excluded_.push_back(rank);
  if (rank != config_.rank) {
    unpolled_.push_back(rank);
    std::erase_if(edges_, [&](const Edge& edge) { return edge.reporter == rank || edge.peer == rank; });
    return;
  }
  leave(
      "rank " + std::to_string(rank) +
      " takes no further part in push-pulls: the others go on without it, because connections with it broke or it was "
      "late");
}

void Survivors::leave(const std::string& text) {
  if (is_out()) return;
  out_text_ = text;
  edges_.clear();
  unpolled_.push_back(config_.rank);
}

void Survivors::send_view(std::uint16_t to) {
  encode(Excluded{agreed_, excluded_}, scratch_);
  verbs_.send_message(to, scratch_);
}

void Survivors::inform(std::uint16_t rank) {
  if (config_.services > 1 && !excluded_.empty()) send_view(rank);
}

void Survivors::broadcast() {
  for (std::uint16_t rank = 0; rank < size_; ++rank) {
    if (rank != config_.rank && !members_[rank].is_lost) send_view(rank);
  }
}

bool Survivors::supports(std::uint16_t rank) const {
  if (rank == config_.rank) return true;
  if (members_[rank].is_lost) return false;
  if (members_[rank].has_reported) return true;
  for (std::uint16_t lower = config_.workers; lower < config_.rank; ++lower) {
    if (!members_[lower].is_excluded) return false;
  }
  return true;
}

// PROTOCOL 14.2.4: A quorum is more than half of the ranks that the newest acknowledged view leaves, or half of
//     them and the lowest service that it leaves. A view is acknowledged when a quorum of the one before has sent lost
//     with it: the decider MUST then send excluded again.
template <typename IsIn>
bool Survivors::is_quorum(IsIn is_in) const {
  std::vector<bool> is_base(size_, true);
  for (std::size_t i = 0; i < agreed_; ++i) is_base[excluded_[i]] = false;
  for (std::uint16_t rank = 0; rank < size_; ++rank) is_base[rank] = is_base[rank] && !members_[rank].has_left;
  std::size_t base = 0, in = 0;
  bool has_lowest = false, is_lowest = true;
  for (std::uint16_t rank = 0; rank < size_; ++rank) {
    if (!is_base[rank]) continue;
    const bool is_member = !members_[rank].is_excluded && is_in(rank);
    ++base;
    in += is_member ? 1U : 0U;
    if (is_service(rank) && std::exchange(is_lowest, false)) has_lowest = is_member;
  }
  return 2 * in > base || (2 * in == base && has_lowest);
}

bool Survivors::has_acknowledged(std::uint16_t rank) const {
  const Member& member = members_[rank];
  return rank == config_.rank || (supports(rank) && std::ranges::all_of(excluded_, [&](std::uint32_t one) {
                                    return !member.knows.empty() && member.knows[one];
                                  }));
}

void Survivors::agree() {
  if (agreed_ == excluded_.size()) return;
  if (!is_quorum([&](std::uint16_t rank) { return has_acknowledged(rank); })) return;
  agreed_ = excluded_.size();
  broadcast();
}

// PROTOCOL 14.2.3: A decider MUST exclude a rank at once when all that are connected with it have lost it, and one
//     end of every other lost connection 750 ms after it learned of it, if those that are left and report to it are a
//     quorum, and send excluded to every rank.
void Survivors::decide(TimeNs now) {
  if (is_out() || decider() != config_.rank) return;
  agree();
  // PROTOCOL 14.2.11: A decider that knows more ranks as excluded than the limits permit SHOULD decide nothing
  //     more: no sum is possible any longer.
  if (!is_within_limits({})) return;
  const Ranks chosen = choose(now);
  if (chosen.empty()) return;
  const auto stays = [&](std::uint16_t rank) {
    return supports(rank) && std::ranges::find(chosen, rank) == chosen.end();
  };
  if (!is_quorum(stays)) return;
  for (const std::uint16_t rank : chosen) exclude(rank);
  broadcast();
  if (!is_out()) agree();
}

bool Survivors::is_lost_by_all(std::uint16_t rank) const {
  for (std::uint16_t other = 0; other < size_; ++other) {
    const Member& member = members_[other];
    if (other == rank || member.is_excluded || (!is_service(other) && !is_service(rank))) continue;
    if (other != config_.rank && member.is_lost) continue;  // it can't report
    const bool has_lost = other == config_.rank ? members_[rank].is_lost : !member.lost.empty() && member.lost[rank];
    if (!has_lost) return false;
  }
  return true;
}

// PROTOCOL 14.2.6: Of the two ends it SHOULD take the one that most others have lost; of equals one that the
//     limits permit, then the one that the first report named. It SHOULD exclude ranks of one kind only where the
//     limits permit that and nothing else.
Survivors::Ranks Survivors::choose(TimeNs now) const {
  Ranks chosen;
  for (const Edge& edge : edges_) {
    for (const std::uint16_t end : {edge.peer, edge.reporter}) {
      const bool is_new = std::ranges::find(chosen, end) == chosen.end();
      if (end != config_.rank && is_new && is_lost_by_all(end)) chosen.push_back(end);
    }
  }
  std::vector<Edge> due;
  for (const Edge& edge : edges_) {
    const bool is_covered =
        std::ranges::any_of(chosen, [&](std::uint16_t rank) { return rank == edge.reporter || rank == edge.peer; });
    if (!is_covered && base::after(edge.noted_ns, kDecisionWaitNs) <= now) due.push_back(edge);
  }
  if (due.empty()) return chosen;
  // This rank itself only where nothing else is permitted.
  const Ranks others = cover(due, chosen, [&](std::uint16_t rank) { return rank != config_.rank; });
  if (is_within_limits(others)) return others;
  for (const bool services : {true, false}) {
    const Ranks one_kind = cover(due, chosen, [&](std::uint16_t rank) { return is_service(rank) == services; });
    if (is_within_limits(one_kind)) return one_kind;
  }
  return others;
}

template <typename MayBe>
Survivors::Ranks Survivors::cover(std::vector<Edge> edges, Ranks chosen, MayBe may_be) const {
  while (!edges.empty()) {
    std::vector<std::size_t> times(size_);
    for (const Edge& edge : edges_) {
      const bool is_both = std::ranges::any_of(edges_, [&](const Edge& other) {
        return other.reporter == edge.peer && other.peer == edge.reporter && &other < &edge;
      });
      if (is_both) continue;
      const auto is_chosen = [&](std::uint16_t rank) { return std::ranges::find(chosen, rank) != chosen.end(); };
      if (is_chosen(edge.reporter) || is_chosen(edge.peer)) continue;
      ++times[edge.reporter];
      ++times[edge.peer];
    }
    int best = -1;
    const auto is_better = [&](std::uint16_t rank) {
      if (best < 0 || times[rank] != times[static_cast<std::size_t>(best)]) {
        return best < 0 || times[rank] > times[static_cast<std::size_t>(best)];
      }
      Ranks with = chosen, with_best = chosen;
      with.push_back(rank);
      with_best.push_back(static_cast<std::uint16_t>(best));
      return is_within_limits(with) && !is_within_limits(with_best);
    };
    for (const Edge& edge : edges) {
      for (const std::uint16_t end : {edge.peer, edge.reporter}) {
        if (may_be(end) && is_better(end)) best = end;
      }
    }
    if (best < 0) best = edges.front().peer == config_.rank ? edges.front().reporter : edges.front().peer;
    chosen.push_back(static_cast<std::uint16_t>(best));
    std::erase_if(edges, [&](const Edge& edge) { return edge.reporter == best || edge.peer == best; });
  }
  return chosen;
}

bool Survivors::is_within_limits(const Ranks& chosen) const {
  std::size_t workers = 0, services = 0;
  for (std::uint16_t rank = 0; rank < size_; ++rank) {
    const bool is_dead = members_[rank].is_excluded || std::ranges::find(chosen, rank) != chosen.end();
    if (is_dead) ++(is_service(rank) ? services : workers);
  }
  return workers <= max_dead_workers_ && workers < config_.workers && services <= max_dead_services_ &&
         services < config_.services;
}

std::optional<std::uint16_t> Survivors::poll_excluded() {
  if (unpolled_.empty()) return std::nullopt;
  const std::uint16_t rank = unpolled_.front();
  unpolled_.pop_front();
  return rank;
}

void Survivors::set_timer(TimeNs now) {
  timeout_ns_ = base::kNever;
  if (is_out()) return;
  const bool is_decider = decider() == config_.rank;
  const bool is_stuck = std::ranges::any_of(edges_, [&](const Edge& edge) { return edge.reporter == config_.rank; }) ||
                        (is_decider && agreed_ < excluded_.size());
  if (!is_stuck) stuck_since_ns_ = base::kNever;
  if (is_stuck && stuck_since_ns_ == base::kNever) stuck_since_ns_ = now;
  if (is_stuck) timeout_ns_ = base::after(stuck_since_ns_, config_.max_undecided_ns);
  for (const Edge& edge : edges_) {
    const TimeNs due = base::after(edge.noted_ns, kDecisionWaitNs);
    if (is_decider && due > now) timeout_ns_ = std::min(timeout_ns_, due);
  }
}

void Survivors::on_timeout(TimeNs now) {
  if (now < timeout_ns_) return;
  decide(now);
  set_timer(now);
  if (is_out() || stuck_since_ns_ == base::kNever || now < base::after(stuck_since_ns_, config_.max_undecided_ns)) {
    return;
  }
  // PROTOCOL 14.2.8: A rank whose lost connection stays undecided, or a decider whose view stays unacknowledged,
  //     for the silence limit and the suspension limit together MUST take no further part: it is not among most.
  leave("rank " + std::to_string(config_.rank) +
        " takes no further part in push-pulls: it lost connections, and reaches too few ranks of the job to know which "
        "of "
        "them go on");
  set_timer(now);
}

}  // namespace mlt::collective
