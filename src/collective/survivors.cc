#include "collective/survivors.h"

#include <algorithm>
#include <utility>

#include "collective/edge_cover.h"

namespace mlt::collective {

Survivors::Survivors(const Config& config, Verbs& verbs)
    : config_(config),
      verbs_(verbs),
      size_(static_cast<std::uint16_t>(config.workers + config.services)),
      members_(size_) {
  // Services do nothing before. Workers may load a model first.
  for (std::uint16_t rank = config.workers; rank < size_; ++rank) members_[rank].has_begun = true;
}

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
  if (verbs_.has_left(peer)) return on_left(now, peer);
  note_edge(now, config_.rank, peer);
  report(now);
}

// PROTOCOL 14.2.14: Where a job connects on first use (3.10), a rank MUST send lost and excluded to a rank that it
//     still connects with once that connection is up, with what it knows then.
void Survivors::on_peer_up(TimeNs now, std::uint16_t peer) {
  if (peer >= size_ || !std::exchange(members_[peer].is_owed, false)) return;
  if (!view().empty()) send_view(peer);
  if (peer == decider()) report(now);
}

void Survivors::send(std::uint16_t to) {
  if (!verbs_.send_message(to, scratch_)) members_[to].is_owed = true;
}

void Survivors::on_gone(TimeNs now, std::uint16_t peer) {
  if (peer >= size_ || verbs_.has_left(peer)) return;
  members_[peer].is_lost = true;
  set_timer(now);
}

// PROTOCOL 14.2.10: A rank that ended its connections with goodbye (3.7.2) has said so to all: a rank MUST take it for
//     excluded without a decision, name it in lost and excluded, and leave it out of the ranks that a quorum counts.
//     Where it was a service, it MUST send lost to its decider.
void Survivors::on_left(TimeNs now, std::uint16_t peer) {
  const std::size_t undecided = edges_.size();
  members_[peer].has_left = true;
  exclude(peer);
  const bool is_decider = decider() == config_.rank;
  // Those that reported it did not get its goodbye.
  if (is_decider && edges_.size() < undecided) broadcast();
  // It may have been the decider, and the next one knows nothing. All workers leave at the end of a job: no reports
  // then.
  if (is_decider || is_service(peer)) report(now);
  set_timer(now);
}

void Survivors::raise_max_dead_services(TimeNs now, std::uint16_t limit) {
  if (limit <= max_dead_services_) return;
  max_dead_services_ = limit;
  if (!edges_.empty()) report(now);
}

// PROTOCOL 14.2.2: A rank that loses a connection with a service, or a service that loses one with any rank, MUST
//     send lost to its decider, and again when its decider changes or it learns of an exclusion.
void Survivors::report(TimeNs now) {
  if (is_out()) return;
  const int to = decider();
  if (to == config_.rank) {
    decide(now);
  } else if (to >= 0) {
    Lost lost{agreed_, view(), {}, max_dead_services_};
    for (std::uint16_t rank = 0; rank < size_; ++rank) {
      if (members_[rank].is_lost) lost.lost.push_back(rank);
    }
    encode(lost, scratch_);
    send(static_cast<std::uint16_t>(to));
  }
  set_timer(now);
}

void Survivors::note_edge(TimeNs now, std::uint16_t reporter, std::uint16_t peer) {
  if (members_[reporter].is_excluded || members_[peer].is_excluded) return;
  edges_.push_back({reporter, peer, now});
}

void Survivors::on_message(TimeNs now, std::uint16_t from, const Lost& lost) {
  if (from >= size_ || !is_service(config_.rank) || config_.services == 1) return;
  if (is_out() && !is_out_by_view()) return;
  if (!is_valid(lost.excluded) || !is_valid(lost.lost) || lost.agreed > lost.excluded.size()) return;
  Member& member = members_[from];
  // PROTOCOL 14.2.7: A service that receives lost from a rank that it knows as excluded, or that is excluded itself,
  //     MUST send it excluded.
  if (member.is_excluded || is_out()) return send_view(from);
  member.has_reported = member.has_begun = true;
  // A service whose keys no worker has registered yet does not know it.
  max_dead_services_ = std::max(max_dead_services_, lost.max_dead_services);
  const bool has_news = join(lost.excluded, lost.agreed, false);
  if (is_out()) return;
  // What a report lists stays lost, though the next one leaves it out.
  if (member.lost.empty()) member.lost.resize(size_);
  for (const std::uint32_t rank : lost.lost) {
    if (rank == from || member.lost[rank]) continue;
    member.lost[rank] = true;
    if (is_service(static_cast<std::uint16_t>(rank)) || is_service(from)) {
      note_edge(now, from, static_cast<std::uint16_t>(rank));
    }
  }
  member.knows.assign(size_, false);
  for (const std::uint32_t rank : lost.excluded) member.knows[rank] = true;
  const bool is_decider = decider() == config_.rank;
  if (is_decider && has_news) {
    broadcast();
  } else if (!knows_view(from)) {
    send_view(from);
  }
  if (is_decider || has_news) report(now);
  set_timer(now);
}

void Survivors::on_message(TimeNs now, std::uint16_t from, const Excluded& excluded) {
  if (from >= size_ || is_out() || config_.services == 1) return;
  members_[from].has_begun = true;
  // PROTOCOL 14.2.12: A rank MUST ignore lost and excluded with a list that names a rank twice, or one that the job
  //     does not have. A worker MUST ignore excluded from a worker unless it is among those excluded.
  if (!is_valid(excluded.ranks) || excluded.agreed > excluded.ranks.size()) return;
  if (!is_service(from) && !is_service(config_.rank) &&
      std::ranges::find(excluded.ranks, config_.rank) == excluded.ranks.end()) {
    return;
  }
  // PROTOCOL 14.2.5: A rank that receives excluded MUST join it with what it knows, act on it, and, where it learns of
  //     an exclusion or that others decided about a rank that had left, send lost to its decider as the
  //     acknowledgement, and excluded to the services and to the ranks that are excluded by it, as far as it reaches
  //     them.
  if (join(excluded.ranks, excluded.agreed, true) && !is_out()) report(now);
  set_timer(now);
}

bool Survivors::is_valid(const std::vector<std::uint32_t>& ranks) const {
  std::vector<bool> is_named(size_);
  for (const std::uint32_t rank : ranks) {
    if (rank >= size_ || is_named[rank]) return false;
    is_named[rank] = true;
  }
  return true;
}

bool Survivors::join(const std::vector<std::uint32_t>& ranks, std::uint64_t agreed, bool is_decided) {
  const std::size_t before = excluded_.size();
  const bool is_newer = agreed > agreed_;
  for (const std::uint32_t rank : ranks) {
    exclude(static_cast<std::uint16_t>(rank));
    if (is_decided) list(static_cast<std::uint16_t>(rank));
  }
  if (is_newer) {
    for (std::size_t i = 0; i < agreed; ++i) list(static_cast<std::uint16_t>(ranks[i]));
    std::vector<std::uint32_t> order(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(agreed));
    for (const std::uint32_t rank : excluded_) {
      if (std::ranges::find(order, rank) == order.end()) order.push_back(rank);
    }
    excluded_ = std::move(order);
    agreed_ = agreed;
  }
  const bool has_news = excluded_.size() > before;
  if (!has_news && !is_newer) return false;
  std::vector<bool> is_named(size_);
  for (const std::uint32_t rank : ranks) is_named[rank] = true;
  for (std::uint16_t rank = 0; rank < size_; ++rank) {
    // A service may have lost the decider, and still continue.
    if (rank == config_.rank || members_[rank].is_lost) continue;
    if ((has_news && is_named[rank]) || (is_service(rank) && is_decided)) send_view(rank);
  }
  return has_news;
}

void Survivors::list(std::uint16_t rank) {
  if (!std::exchange(members_[rank].is_listed, true)) excluded_.push_back(rank);
}

void Survivors::exclude(std::uint16_t rank) {
  if (members_[rank].is_excluded) return;
  members_[rank].is_excluded = true;
  if (!members_[rank].has_left) list(rank);
  stuck_since_ns_ = base::kNever;  // what is left may be decided now
  if (rank != config_.rank) {
    unpolled_.push_back(rank);
    std::erase_if(edges_, [&](const Edge& edge) { return edge.reporter == rank || edge.peer == rank; });
    return;
  }
  leave("rank " + std::to_string(rank) +
        " takes no further part in push-pulls: the others continue without it, because connections with it broke or it "
        "was "
        "late");
}

void Survivors::leave(const std::string& text) {
  if (is_out()) return;
  out_text_ = text;
  edges_.clear();
  unpolled_.push_back(config_.rank);
}

std::vector<std::uint32_t> Survivors::view() const {
  std::vector<std::uint32_t> ranks = excluded_;
  for (std::uint16_t rank = 0; rank < size_; ++rank) {
    if (members_[rank].has_left && !members_[rank].is_listed) ranks.push_back(rank);
  }
  return ranks;
}

void Survivors::send_view(std::uint16_t to) {
  encode(Excluded{agreed_, view()}, scratch_);
  send(to);
}

void Survivors::inform(TimeNs now, std::uint16_t rank) {
  if (config_.services == 1) return;
  if (!excluded_.empty()) send_view(rank);
  if (!std::exchange(members_[rank].has_begun, true)) set_timer(now);
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

bool Survivors::knows_view(std::uint16_t rank) const {
  const Member& member = members_[rank];
  const auto knows = [&](std::uint32_t one) { return !member.knows.empty() && member.knows[one]; };
  for (std::uint16_t one = 0; one < size_; ++one) {
    // It lost one that has left, and did not get its goodbye.
    const bool is_lost = !member.lost.empty() && member.lost[one] && members_[one].is_excluded;
    if ((is_lost || members_[one].is_listed) && !knows(one)) return false;
  }
  return true;
}

bool Survivors::has_acknowledged(std::uint16_t rank) const {
  return rank == config_.rank || (supports(rank) && knows_view(rank));
}

void Survivors::agree() {
  if (agreed_ == excluded_.size()) return;
  if (!is_quorum([&](std::uint16_t rank) { return has_acknowledged(rank); })) return;
  agreed_ = excluded_.size();
  broadcast();
}

std::optional<Survivors::Spare> Survivors::spare() const {
  std::size_t workers = 0, services = 0;
  for (std::uint16_t rank = 0; rank < size_; ++rank) {
    if (members_[rank].is_excluded) ++(is_service(rank) ? services : workers);
  }
  const std::size_t max_workers = std::min<std::size_t>(max_dead_workers_, config_.workers - 1U);
  const std::size_t max_services = std::min<std::size_t>(max_dead_services_, config_.services - 1U);
  if (workers > max_workers || services > max_services) return std::nullopt;
  return Spare{max_workers - workers, max_services - services};
}

// PROTOCOL 14.2.13: A lost connection between services MUST NOT be decided where the limits permit no further service
//     to be excluded: the sums do not need it, and both continue.
std::vector<Survivors::Edge> Survivors::open_edges() const {
  const auto left = spare();
  std::vector<Edge> open = edges_;
  if (left && left->services > 0) return open;
  std::erase_if(open, [&](const Edge& edge) { return is_service(edge.reporter) && is_service(edge.peer); });
  return open;
}

// PROTOCOL 14.2.3: A decider MUST exclude a rank at once when all that are connected with it have lost it, and one
//     end of every other lost connection 750 ms after it learned of it, if those that are left and report to it are a
//     quorum, and send excluded to every rank. Where they are none, it MUST exclude those alone that all have lost.
void Survivors::decide(TimeNs now) {
  while (decide_once(now)) {
  }
}

bool Survivors::decide_once(TimeNs now) {
  if (is_out() || decider() != config_.rank) return false;
  agree();
  // PROTOCOL 14.2.11: A decider that knows more ranks as excluded than the limits permit SHOULD decide nothing
  //     more: no sum is possible any longer.
  const auto left = spare();
  if (!left) return false;
  const std::vector<Edge> open = open_edges();
  const Ranks dead = lost_by_all(open);
  for (const Ranks& chosen : {choose(now, open, dead, *left), dead}) {
    const auto stays = [&](std::uint16_t rank) {
      return supports(rank) && std::ranges::find(chosen, rank) == chosen.end();
    };
    if (chosen.empty() || !is_quorum(stays)) continue;
    for (const std::uint16_t rank : chosen) exclude(rank);
    broadcast();
    return true;
  }
  return false;
}

Survivors::Ranks Survivors::lost_by_all(const std::vector<Edge>& edges) const {
  Ranks ranks;
  std::vector<bool> is_seen(size_);
  is_seen[config_.rank] = true;
  for (const Edge& edge : edges) {
    for (const std::uint16_t end : {edge.peer, edge.reporter}) {
      if (is_seen[end]) continue;
      is_seen[end] = true;
      if (is_lost_by_all(end)) ranks.push_back(end);
    }
  }
  return ranks;
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

Survivors::Ranks Survivors::choose(TimeNs now, const std::vector<Edge>& open, const Ranks& dead,
                                   const Spare& left) const {
  std::vector<EdgeCover::Edge> edges;
  for (const Edge& edge : open) {
    edges.push_back({edge.reporter, edge.peer, base::after(edge.noted_ns, kDecisionWaitNs) <= now});
  }
  if (std::ranges::none_of(edges, &EdgeCover::Edge::is_due)) return dead;
  return EdgeCover({size_, config_.workers, config_.rank, left.workers, left.services}, edges, dead).choose();
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
  const bool is_waiting = is_stuck();
  if (!is_waiting) stuck_since_ns_ = base::kNever;
  if (is_waiting && stuck_since_ns_ == base::kNever) stuck_since_ns_ = now;
  if (is_waiting) timeout_ns_ = base::after(stuck_since_ns_, config_.max_undecided_ns);
  if (decider() != config_.rank) return;
  for (const Edge& edge : edges_) {
    const TimeNs due = base::after(edge.noted_ns, kDecisionWaitNs);
    if (due > now) timeout_ns_ = std::min(timeout_ns_, due);
  }
}

bool Survivors::is_stuck() const {
  const auto is_own = [&](const Edge& edge) { return edge.reporter == config_.rank; };
  const auto reaches = [&](std::uint16_t rank) { return rank == config_.rank || !members_[rank].is_lost; };
  // PROTOCOL 14.2.13: ... 14.2.8 applies to it only at a service that reaches no quorum.
  const bool has_open =
      std::ranges::any_of(open_edges(), is_own) || (std::ranges::any_of(edges_, is_own) && !is_quorum(reaches));
  if (decider() != config_.rank) return has_open;
  // A process that takes no part in push-pulls yet neither reports nor acknowledges: it may, once it does.
  const auto may_begin = [&](std::uint16_t rank) { return !members_[rank].is_lost && !members_[rank].has_begun; };
  const auto has = [&](std::uint16_t rank) { return has_acknowledged(rank); };
  const auto may_have = [&](std::uint16_t rank) { return has_acknowledged(rank) || may_begin(rank); };
  const auto reports = [&](std::uint16_t rank) { return supports(rank); };
  const auto may_report = [&](std::uint16_t rank) { return supports(rank) || may_begin(rank); };
  if (agreed_ < excluded_.size() && !is_quorum(has) && !is_quorum(may_have)) return true;
  return has_open && (is_quorum(reports) || !is_quorum(may_report));
}

void Survivors::on_timeout(TimeNs now) {
  if (now < timeout_ns_) return;
  decide(now);
  set_timer(now);
  if (is_out() || stuck_since_ns_ == base::kNever || now < base::after(stuck_since_ns_, config_.max_undecided_ns)) {
    return;
  }
  // PROTOCOL 14.2.8: A rank whose lost connection stays undecided, or a decider whose view stays unacknowledged, for
  //     the silence limit and the suspension limit together, and without an exclusion meanwhile, MUST take no further
  //     part: it is not among most. A decider MUST NOT while the connected workers that have sent it neither lost nor
  //     excluded nor a registration, which may not take part in push-pulls yet, would complete the quorum.
  leave("rank " + std::to_string(config_.rank) +
        " takes no further part in push-pulls: it lost connections, and reaches too few ranks of the job to know which "
        "of them continue");
  set_timer(now);
}

}  // namespace mlt::collective
