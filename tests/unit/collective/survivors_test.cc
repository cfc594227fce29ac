// SurvivorHosts of a job over messages that take their time and connections that end: at some moment for each end, for
// single pairs or all of a rank.
#include "collective/survivors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"

namespace {

using namespace mlt::collective;
using mlt::base::kMillisecond;
using mlt::base::Prng;

class SurvivorHosts {
 public:
  SurvivorHosts(std::uint16_t workers, std::uint16_t services, std::uint16_t dead_workers, std::uint16_t dead_services,
                std::uint64_t seed = 1)
      : workers_(workers), prng_(seed) {
    for (std::uint16_t rank = 0; rank < workers + services; ++rank) {
      hosts_.push_back(std::make_unique<Host>(*this, rank, services));
      hosts_.back()->survivors.set_limits(dead_workers, dead_services);
    }
  }

  std::uint16_t size() const { return static_cast<std::uint16_t>(hosts_.size()); }
  Survivors& at(std::uint16_t rank) { return hosts_[rank]->survivors; }
  bool is_out(std::uint16_t rank) { return !at(rank).out_text().empty(); }
  bool is_dead(std::uint16_t rank) const { return dead_.contains(rank); }
  bool has_left(std::uint16_t rank) const { return leavers_.contains(rank); }
  std::set<std::uint16_t> excluded(std::uint16_t rank) const { return hosts_[rank]->excluded; }
  TimeNs now() const { return now_; }

  // One connection ends: what is on the way may be lost, and each end notices it by itself.
  void cut(std::uint16_t a, std::uint16_t b, TimeNs spread_ns = 0) {
    if (!cut_.insert(pair(a, b)).second) return;
    for (const auto& [at, other] : {std::pair{a, b}, std::pair{b, a}}) {
      schedule(spread_ns > 0 ? static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(spread_ns))) : 0,
               [this, at = at, other = other] {
                 if (!dead_.contains(at)) at_lost(at, other);
               });
    }
  }
  void kill(std::uint16_t rank, TimeNs spread_ns = 0) {
    dead_.insert(rank);
    for (std::uint16_t other = 0; other < size(); ++other) {
      if (other != rank) cut(rank, other, spread_ns);
    }
  }
  // Their connection is being set up until then, unless one of the two dies: nothing can be sent.
  void connect_after(std::uint16_t a, std::uint16_t b, TimeNs after_ns) {
    connecting_.insert(pair(a, b));
    schedule(after_ns, [this, a, b] {
      connecting_.erase(pair(a, b));
      for (const auto& [at, other] : {std::pair{a, b}, std::pair{b, a}}) {
        if (dead_.contains(at) || lost_.contains({at, other})) continue;
        at_or_later(at, [this, at = at, other = other] {
          hosts_[at]->survivors.on_peer_up(now_, other);
          poll(*hosts_[at]);
        });
      }
    });
  }
  // With a goodbye, which those in `blind` do not get.
  void leave(std::uint16_t rank, const std::set<std::uint16_t>& blind = {}) {
    for (std::uint16_t other = 0; other < size(); ++other) {
      if (!blind.contains(other)) left_.insert({other, rank});
    }
    leavers_.insert(rank);
    kill(rank, kMillisecond);
  }
  // Its process takes no part in push-pulls yet: it sends nothing, and takes what it got in begin().
  void hold(std::uint16_t rank) { held_.emplace(rank, std::vector<std::function<void()>>()); }
  void begin(std::uint16_t rank) {
    const auto held = held_.extract(rank);
    for (const auto& event : held.mapped()) event();
    register_at_services(rank);
  }
  void run_for(TimeNs duration) {
    const TimeNs until = now_ + duration;
    for (std::uint16_t worker = 0; worker < workers_ && !has_run_; ++worker) register_at_services(worker);
    has_run_ = true;
    for (;;) {
      TimeNs next = mlt::base::kNever;
      for (const auto& host : hosts_) {
        if (!dead_.contains(host->rank)) next = std::min(next, host->survivors.next_timeout());
      }
      if (!events_.empty()) next = std::min(next, events_.begin()->first);
      if (next > until) break;
      now_ = std::max(now_, next);
      while (!events_.empty() && events_.begin()->first <= now_) {
        const auto event = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        event();
      }
      for (const auto& host : hosts_) {
        if (dead_.contains(host->rank)) continue;
        if (host->survivors.next_timeout() <= now_) host->survivors.on_timeout(now_);
        poll(*host);
      }
    }
    now_ = until;
  }

 private:
  struct Host final : Verbs {
    Host(SurvivorHosts& owner, std::uint16_t own, std::uint16_t services)
        : members(owner), rank(own), survivors({own, owner.workers_, services, 10 * mlt::base::kSecond}, *this) {}
    bool has_left(std::uint16_t peer) const override { return members.left_.contains({rank, peer}); }
    mlt::core::PostStatus post_send(TimeNs, const mlt::core::SendRequest&) override { return {}; }
    mlt::core::PostStatus post_recv(TimeNs, const mlt::core::ReceiveRequest&) override { return {}; }
    void cancel(TimeNs, OperationId, mlt::core::CompletionKind) override {}
    bool send_message(std::uint16_t to, std::span<const std::byte> bytes) override {
      REQUIRE(to != rank);
      if (members.connecting_.contains(pair(rank, to))) return false;
      members.send(rank, to, decode(bytes).value());
      return true;
    }
    std::uint32_t segment_bytes(std::uint16_t) const override { return 8; }

    SurvivorHosts& members;
    std::uint16_t rank;
    std::set<std::uint16_t> excluded;
    Survivors survivors;
  };

  static std::pair<std::uint16_t, std::uint16_t> pair(std::uint16_t a, std::uint16_t b) {
    return {std::min(a, b), std::max(a, b)};
  }
  void schedule(TimeNs after, std::function<void()> event) { events_.emplace(now_ + after, std::move(event)); }
  void poll(Host& host) {
    while (const auto rank = host.survivors.poll_excluded()) {
      CHECK(host.excluded.insert(*rank).second);
    }
  }
  void register_at_services(std::uint16_t worker) {
    if (held_.contains(worker)) return;
    for (std::uint16_t service = workers_; service < size(); ++service) {
      if (!lost_.contains({service, worker}) && !dead_.contains(service)) at(service).inform(now_, worker);
    }
  }
  void at_lost(std::uint16_t at, std::uint16_t other) {
    lost_.insert({at, other});
    at_or_later(at, [this, at, other] {
      hosts_[at]->survivors.on_lost(now_, other);
      poll(*hosts_[at]);
    });
  }
  void at_or_later(std::uint16_t rank, std::function<void()> event) {
    if (const auto found = held_.find(rank); found != held_.end()) return found->second.push_back(std::move(event));
    event();
  }
  // In order for each pair, until the receiver has lost the connection.
  void send(std::uint16_t from, std::uint16_t to, const Message& message) {
    if (lost_.contains({from, to})) return;
    TimeNs& last = last_[{from, to}];
    last = std::max(last + 1, now_ + static_cast<TimeNs>(prng_.below(5 * kMillisecond)));
    schedule(last - now_, [this, from, to, message] {
      if (dead_.contains(to) || lost_.contains({to, from}) || (cut_.contains(pair(from, to)) && prng_.chance(0.5))) {
        return;
      }
      at_or_later(to, [this, from, to, message] {
        Survivors& survivors = hosts_[to]->survivors;
        if (const auto* lost = std::get_if<Lost>(&message)) survivors.on_message(now_, from, *lost);
        if (const auto* excluded = std::get_if<Excluded>(&message)) survivors.on_message(now_, from, *excluded);
        poll(*hosts_[to]);
      });
    });
  }

  std::uint16_t workers_;
  Prng prng_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::multimap<TimeNs, std::function<void()>> events_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, TimeNs> last_;
  std::set<std::pair<std::uint16_t, std::uint16_t>> cut_, lost_;  // pairs; pairs in order, at the first of them
  std::set<std::pair<std::uint16_t, std::uint16_t>> connecting_;  // pairs
  std::set<std::pair<std::uint16_t, std::uint16_t>> left_;        // a rank, and one whose goodbye it got
  std::map<std::uint16_t, std::vector<std::function<void()>>> held_;
  std::set<std::uint16_t> dead_, leavers_;
  TimeNs now_ = mlt::base::kSecond;
  bool has_run_ = false;
};

using RankSet = std::set<std::uint16_t>;

}  // namespace

TEST_CASE("survivors__a_rank_that_all_have_lost_is_excluded_at_once") {
  for (const std::uint16_t victim : {std::uint16_t{0}, std::uint16_t{2}, std::uint16_t{3}, std::uint16_t{4}}) {
    CAPTURE(victim);  // a worker, the decider, another service
    SurvivorHosts members(3, 2, 1, 1);
    members.kill(victim);
    members.run_for(30 * kMillisecond);
    for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
      if (rank != victim) CHECK(members.excluded(rank) == RankSet{victim});
    }
  }
}

TEST_CASE("survivors__of_a_broken_connection_the_end_that_the_limits_permit_is_excluded_and_learns_it") {
  struct Case {
    std::uint16_t service, dead_workers, dead_services, expected;
  };
  // Worker 1 loses the decider (3), or the other service (4).
  for (const Case& one : {Case{3, 1, 0, 1}, Case{3, 0, 1, 3}, Case{4, 1, 0, 1}, Case{4, 0, 1, 4}, Case{3, 1, 1, 1}}) {
    CAPTURE(one.service);
    CAPTURE(one.dead_services);
    SurvivorHosts members(3, 2, one.dead_workers, one.dead_services);
    members.cut(1, one.service);
    members.run_for(Survivors::kDecisionWaitNs - kMillisecond);
    CHECK(members.excluded(0).empty());
    members.run_for(50 * kMillisecond);
    for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
      CAPTURE(rank);
      CHECK(members.excluded(rank) == RankSet{one.expected});
      CHECK(members.is_out(rank) == (rank == one.expected));
    }
  }
}

TEST_CASE("survivors__of_several_broken_connections_the_limits_permit_an_end_of_each") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {  // whose reports come first
    CAPTURE(seed);
    SurvivorHosts members(3, 3, 1, 1, seed);
    members.cut(0, 4);
    members.cut(1, 5);
    members.run_for(2 * mlt::base::kSecond);
    const RankSet view = members.excluded(2);
    CHECK(view.size() == 2);
    CHECK(std::ranges::count_if(view, [](std::uint16_t rank) { return rank < 3; }) == 1);
  }
}

// Three workers have lost service 6, in a job that lets four workers and a service go.
TEST_CASE("survivors__the_end_that_most_have_lost_is_excluded") {
  SurvivorHosts members(5, 2, 4, 1);
  for (std::uint16_t worker = 0; worker < 3; ++worker) members.cut(worker, 6, 100 * kMillisecond);
  members.run_for(mlt::base::kSecond);
  for (std::uint16_t rank = 0; rank < members.size(); ++rank) CHECK(members.excluded(rank) == RankSet{6});
}

TEST_CASE("survivors__of_two_halves_the_one_with_the_lowest_service_goes_on") {
  SurvivorHosts members(2, 2, 1, 1);
  for (const std::uint16_t a : {std::uint16_t{0}, std::uint16_t{2}}) {
    for (const std::uint16_t b : {std::uint16_t{1}, std::uint16_t{3}}) members.cut(a, b);
  }
  members.run_for(20 * mlt::base::kSecond);
  for (const std::uint16_t a : {std::uint16_t{0}, std::uint16_t{2}}) {
    CHECK(members.excluded(a) == RankSet{1, 3});
    CHECK(!members.is_out(a));
  }
  for (const std::uint16_t b : {std::uint16_t{1}, std::uint16_t{3}}) {
    CHECK(members.is_out(b));
    CHECK(members.at(b).out_text().find("reaches too few ranks") != std::string::npos);
  }
}

// Half of four are left after two deaths, one by one: they are most of those that were left by the first.
TEST_CASE("survivors__each_exclusion_counts_for_the_quorum_of_the_next") {
  for (const bool at_once : {false, true}) {
    SurvivorHosts members(2, 2, 1, 1);
    members.kill(0);
    if (!at_once) members.run_for(100 * kMillisecond);
    members.kill(2);
    members.run_for(20 * mlt::base::kSecond);
    for (const std::uint16_t rank : {std::uint16_t{1}, std::uint16_t{3}}) {
      CHECK(members.is_out(rank) == at_once);
      if (!at_once) CHECK(members.excluded(rank) == RankSet{0, 2});
    }
  }
}

// At the end of a job most workers leave at once; the others are no minority by that.
TEST_CASE("survivors__ranks_that_leave_are_out_at_once_and_no_quorum_misses_them") {
  SurvivorHosts members(8, 2, 8, 1);
  for (std::uint16_t worker = 2; worker < 8; ++worker) members.leave(worker);
  members.run_for(20 * mlt::base::kSecond);
  for (const std::uint16_t service : {std::uint16_t{8}, std::uint16_t{9}}) {
    CHECK(members.excluded(service) == RankSet{2, 3, 4, 5, 6, 7});
    CHECK(!members.is_out(service));
  }
  members.kill(8);
  members.run_for(20 * mlt::base::kSecond);
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{9}}) {
    CHECK(!members.is_out(rank));
    CHECK(members.excluded(rank).contains(8));
  }
}

TEST_CASE("survivors__a_single_service_decides_alone_and_workers_do_not_care_for_each_other") {
  SurvivorHosts members(3, 1, 1, 0);
  members.cut(0, 1);
  members.run_for(mlt::base::kSecond);
  for (std::uint16_t rank = 0; rank < 4; ++rank) CHECK(members.excluded(rank).empty());
  members.cut(2, 3);
  members.run_for(kMillisecond);
  CHECK(members.excluded(3) == RankSet{2});
  CHECK(members.excluded(2) == RankSet{3});
  CHECK(members.excluded(0).empty());
}

TEST_CASE("survivors__a_rank_that_begins_later_gets_the_view_and_hostile_messages_are_ignored") {
  SurvivorHosts members(3, 2, 1, 1);
  members.at(0).on_message(members.now(), 3, Excluded{0, {9}});
  members.at(0).on_message(members.now(), 3, Excluded{5, {1}});
  members.at(0).on_message(members.now(), 9, Excluded{0, {1}});
  members.at(3).on_message(members.now(), 0, Lost{0, {70'000}, {70'000, 0}, 0});
  members.run_for(2 * mlt::base::kSecond);
  for (std::uint16_t rank = 0; rank < members.size(); ++rank) CHECK(members.excluded(rank).empty());
  members.kill(1);
  members.run_for(mlt::base::kSecond);
  members.at(3).inform(members.now(), 0);
  members.run_for(mlt::base::kSecond);
  CHECK(members.excluded(0) == RankSet{1});
}

TEST_CASE("survivors__a_broken_connection_between_services_hurts_nobody_where_no_service_may_die") {
  for (const std::uint16_t dead_workers : {std::uint16_t{0}, std::uint16_t{1}}) {
    for (const std::uint16_t services : {std::uint16_t{2}, std::uint16_t{3}}) {
      CAPTURE(dead_workers);
      CAPTURE(services);
      SurvivorHosts members(3, services, dead_workers, 0);
      members.cut(3, 4, 100 * kMillisecond);
      members.run_for(30 * mlt::base::kSecond);
      for (std::uint16_t rank = 0; rank < members.size(); ++rank) CHECK(members.excluded(rank).empty());
      if (dead_workers == 0) continue;
      // Both learn what is decided later, although they do not reach each other.
      members.kill(0);
      members.run_for(30 * mlt::base::kSecond);
      for (std::uint16_t rank = 1; rank < members.size(); ++rank) CHECK(members.excluded(rank) == RankSet{0});
    }
  }
}

// Of three services one may die: one of two broken connections between them is decided, the other one does not matter.
TEST_CASE("survivors__a_service_is_excluded_for_a_connection_with_another_only_within_the_limits") {
  SurvivorHosts members(3, 5, 0, 1);
  members.cut(4, 5);
  members.cut(6, 7);
  members.run_for(30 * mlt::base::kSecond);
  const RankSet view = members.excluded(0);
  CHECK(view.size() == 1);
  for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
    CHECK(members.excluded(rank) == view);
    CHECK(members.is_out(rank) == view.contains(rank));
  }
  // A connection with a worker comes first: it matters to the sums.
  SurvivorHosts others(3, 5, 0, 1);
  others.cut(4, 5);
  others.cut(4, 6);
  others.cut(0, 7);
  others.run_for(30 * mlt::base::kSecond);
  for (std::uint16_t rank = 0; rank < others.size(); ++rank) CHECK(others.excluded(rank) == RankSet{7});
}

TEST_CASE("survivors__a_limit_that_is_known_later_decides_about_services_that_lost_each_other") {
  SurvivorHosts members(3, 2, 0, 0);
  members.cut(3, 4);
  members.run_for(20 * mlt::base::kSecond);
  members.at(3).raise_max_dead_services(members.now(), 1);
  members.run_for(mlt::base::kSecond);
  for (std::uint16_t rank = 0; rank < members.size(); ++rank) CHECK(members.excluded(rank) == RankSet{4});
}

TEST_CASE("survivors__a_decider_that_leaves_hands_open_reports_to_the_next") {
  SurvivorHosts members(3, 3, 1, 2);
  members.cut(0, 5);
  members.run_for(100 * kMillisecond);
  members.leave(3);
  members.run_for(2 * mlt::base::kSecond);
  const RankSet view = members.excluded(1);
  CHECK(view.contains(3));
  CHECK(view.contains(0) != view.contains(5));
  CHECK(view.size() == 2);
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{2}, std::uint16_t{4}, std::uint16_t{5}}) {
    CHECK(members.excluded(rank) == view);
    CHECK(members.is_out(rank) == view.contains(rank));
  }
  members.run_for(20 * mlt::base::kSecond);
  CHECK(!members.is_out(4));
}

TEST_CASE("survivors__a_decider_that_leaves_hands_an_exclusion_to_the_next_to_acknowledge") {
  for (TimeNs after = 0; after <= 16 * kMillisecond; after += kMillisecond) {
    CAPTURE(after);
    SurvivorHosts members(5, 3, 1, 1);
    members.kill(0);
    members.run_for(after);
    members.leave(5);
    members.run_for(30 * mlt::base::kSecond);
    for (std::uint16_t rank = 1; rank < members.size(); ++rank) {
      if (rank == 5) continue;
      CHECK(members.excluded(rank) == RankSet{0, 5});
      CHECK(!members.is_out(rank));
    }
  }
}

TEST_CASE("survivors__a_goodbye_that_some_did_not_get_costs_nobody_else") {
  for (const std::uint16_t leaver : {std::uint16_t{2}, std::uint16_t{3}, std::uint16_t{5}}) {  // 3 decides
    for (const RankSet& blind : std::vector<RankSet>{{0}, {3}, {4}, {0, 1}, {3, 4}, {0, 3, 4}, {0, 1, 3, 4, 5}}) {
      if (blind.contains(leaver) && blind.size() == 1) continue;
      CAPTURE(leaver);
      CAPTURE(blind.size());
      CAPTURE(*blind.begin());
      SurvivorHosts members(3, 3, 1, 1);
      members.leave(leaver, blind);
      members.run_for(20 * mlt::base::kSecond);
      for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
        if (rank == leaver) continue;
        CAPTURE(rank);
        CHECK(!members.is_out(rank));
        // Workers learn of each other only from a decision.
        const RankSet view = members.excluded(rank);
        CHECK((view == RankSet{leaver} || (view.empty() && rank < 3 && leaver < 3)));
      }
    }
  }
}

// Most got the goodbye of a worker that the decider then excludes: they acknowledge that, too.
TEST_CASE("survivors__a_decision_about_a_rank_that_had_left_is_acknowledged") {
  SurvivorHosts members(2, 5, 1, 1);
  members.leave(0, {2});
  members.run_for(20 * mlt::base::kSecond);
  for (std::uint16_t rank = 1; rank < members.size(); ++rank) {
    CHECK(members.excluded(rank) == RankSet{0});
    CHECK(!members.is_out(rank));
  }
}

// It knows no limit yet, so that it decides nothing: but there is no rank with which it could continue.
TEST_CASE("survivors__a_service_that_reaches_nobody_ends") {
  SurvivorHosts members(2, 3, 0, 0);
  members.cut(4, 2);
  members.cut(4, 3);
  members.run_for(20 * mlt::base::kSecond);
  CHECK(!members.is_out(4));
  for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{1}}) {
    members.at(4).on_gone(members.now(), worker);
  }
  members.run_for(20 * mlt::base::kSecond);
  CHECK(members.is_out(4));
}

// Where ranks connect on first use: reports, views and acknowledgements that nobody could be sent then follow later.
TEST_CASE("survivors__what_was_sent_to_a_rank_that_connects_is_sent_once_it_is_up") {
  // A worker and the decider, 3; the other service and the decider; a worker that learns the view.
  for (const auto& [a, b] : {std::pair{0, 3}, std::pair{4, 3}, std::pair{1, 3}}) {
    for (const std::uint16_t victim : {std::uint16_t{2}, std::uint16_t{5}}) {
      CAPTURE(a);
      CAPTURE(victim);
      SurvivorHosts members(3, 3, 1, 1);
      members.connect_after(static_cast<std::uint16_t>(a), static_cast<std::uint16_t>(b), 2 * mlt::base::kSecond);
      members.kill(victim);
      members.run_for(20 * mlt::base::kSecond);
      for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
        if (rank == victim) continue;
        CAPTURE(rank);
        CHECK(members.excluded(rank) == RankSet{victim});
        CHECK(!members.is_out(rank));
      }
    }
  }
}

TEST_CASE("survivors__deaths_while_connections_are_set_up_in_any_order") {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(3 + prng.below(3));
    const auto services = static_cast<std::uint16_t>(2 + prng.below(3));
    SurvivorHosts members(workers, services, 1, 1, seed);
    for (std::uint16_t service = workers; service < members.size(); ++service) {
      for (std::uint16_t other = 0; other < service; ++other) {
        if (!prng.chance(0.5)) continue;
        members.connect_after(other, service, static_cast<TimeNs>(prng.below(3 * mlt::base::kSecond)));
      }
    }
    RankSet dead{static_cast<std::uint16_t>(prng.below(workers))};
    if (prng.chance(0.5)) dead.insert(static_cast<std::uint16_t>(workers + prng.below(services)));
    if (prng.chance(0.5) && dead.size() > 1) dead.erase(dead.begin());
    for (const std::uint16_t rank : dead) {
      members.run_for(static_cast<TimeNs>(prng.below(mlt::base::kSecond)));
      members.kill(rank, 100 * kMillisecond);
    }
    members.run_for(30 * mlt::base::kSecond);
    for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
      if (dead.contains(rank)) continue;
      CAPTURE(rank);
      CHECK(members.excluded(rank) == dead);
      CHECK(!members.is_out(rank));
    }
  }
}

// While it loads its model a worker has no push-pull, and acknowledges nothing.
TEST_CASE("survivors__ranks_that_begin_later_cost_nobody_and_learn_the_view") {
  for (const RankSet& dead : std::vector<RankSet>{{0}, {3}, {4}, {0, 4}, {0, 3}}) {
    CAPTURE(*dead.begin());
    CAPTURE(dead.size());
    SurvivorHosts members(3, 2, 1, 1);
    for (std::uint16_t worker = 0; worker < 3; ++worker) members.hold(worker);
    for (const std::uint16_t rank : dead) members.kill(rank, kMillisecond);
    members.run_for(60 * mlt::base::kSecond);
    for (std::uint16_t worker = 0; worker < 3; ++worker) {
      if (!dead.contains(worker)) members.begin(worker);
    }
    members.run_for(20 * mlt::base::kSecond);
    for (std::uint16_t rank = 0; rank < members.size(); ++rank) {
      if (dead.contains(rank)) continue;
      CAPTURE(rank);
      CHECK(members.excluded(rank) == dead);
      CHECK(!members.is_out(rank));
    }
  }
}

TEST_CASE("survivors__lists_with_a_rank_twice_and_views_of_workers_are_ignored") {
  SurvivorHosts members(4, 2, 1, 1);
  const TimeNs now = members.now();
  members.at(0).on_message(now, 4, Excluded{0, {1, 1}});
  members.at(0).on_message(now, 4, Excluded{65'536, std::vector<std::uint32_t>(65'536, 1)});
  members.at(4).on_message(now, 0, Lost{0, {1, 1}, {}, 0});
  members.at(4).on_message(now, 0, Lost{0, {}, {5, 5}, 0});
  members.at(0).on_message(now, 1, Excluded{0, {2}});  // of a worker, about another one
  members.at(0).on_message(now, 1, Excluded{0, {4}});
  members.run_for(2 * mlt::base::kSecond);
  for (std::uint16_t rank = 0; rank < members.size(); ++rank) CHECK(members.excluded(rank).empty());
  CHECK(members.at(4).undecided() == 0);
  // Ranks that are excluded by a view learn it from workers, too.
  members.at(2).on_message(members.now(), 1, Excluded{0, {2}});
  CHECK(members.is_out(2));
}

TEST_CASE("survivors__a_limit_counts_only_from_a_message_that_is_taken") {
  SurvivorHosts members(3, 2, 1, 0);
  members.at(3).on_message(members.now(), 0, Lost{0, {9}, {}, 7});
  CHECK(members.at(3).max_dead_services() == 0);
  members.at(3).on_message(members.now(), 0, Lost{0, {}, {}, 7});
  CHECK(members.at(3).max_dead_services() == 7);
}

TEST_CASE("survivors__reports_that_alternate_add_no_lost_connection") {
  SurvivorHosts members(4, 2, 1, 1);
  for (int i = 0; i < 10'000; ++i) {
    members.at(4).on_message(members.now(), 0, i % 2 == 0 ? Lost{0, {}, {}, 0} : Lost{0, {}, {5}, 0});
  }
  CHECK(members.at(4).undecided() == 1);
}

// Four connections are broken: without an end of each no quorum is left. Then worker 2 dies.
TEST_CASE("survivors__what_all_have_lost_does_not_wait_for_a_decision_about_the_rest") {
  SurvivorHosts members(4, 3, 3, 2);
  Survivors& four = members.at(4);
  four.on_lost(members.now(), 0);
  four.on_lost(members.now(), 1);
  four.on_message(members.now(), 2, Lost{0, {}, {5}, 2});
  four.on_message(members.now(), 3, Lost{0, {}, {6}, 2});
  members.run_for(Survivors::kDecisionWaitNs + mlt::base::kSecond);
  CHECK(members.excluded(4).empty());
  four.on_lost(members.now(), 2);
  for (const std::uint16_t service : {std::uint16_t{5}, std::uint16_t{6}}) {
    four.on_message(members.now(), service, Lost{0, {}, {2}, 2});
  }
  members.run_for(100 * kMillisecond);
  CHECK(members.excluded(4).contains(2));
  CHECK(!members.is_out(4));
}

TEST_CASE("survivors__an_exclusion_restarts_the_wait_of_what_is_still_undecided") {
  // Worker 1 reports to 4 that 5 is lost; 4 alone is no quorum.
  SurvivorHosts members(3, 3, 2, 2);
  Survivors& four = members.at(4);
  four.on_lost(members.now(), 3);
  four.on_message(members.now(), 1, Lost{0, {}, {3}, 2});
  members.run_for(9 * mlt::base::kSecond);
  four.on_message(members.now(), 1, Lost{0, {0}, {3}, 2});
  members.run_for(5 * mlt::base::kSecond);
  CHECK(!members.is_out(4));
  members.run_for(6 * mlt::base::kSecond);
  CHECK(members.is_out(4));
}

// Whatever ends: those that continue have excluded the same ranks, all connections between them stand, and they are the
// only group. Where few connections ended in a job that has a majority, some do continue, and within a second agree.
TEST_CASE("survivors__drawn_deaths_and_broken_connections_leave_one_group_with_one_view") {
  std::size_t groups = 0, partitions = 0, excluded_alive = 0, none = 0;
  for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto workers = static_cast<std::uint16_t>(1 + prng.below(5));
    const auto services = static_cast<std::uint16_t>(2 + prng.below(3));
    const auto size = static_cast<std::uint16_t>(workers + services);
    const auto dead_workers = static_cast<std::uint16_t>(prng.below(workers + 1U));
    const auto dead_services = static_cast<std::uint16_t>(prng.below(services + 1U));
    SurvivorHosts members(workers, services, dead_workers, dead_services, seed);
    const bool is_partition = prng.chance(0.3);
    const TimeNs spread = prng.chance(0.5) ? 3 * kMillisecond : 1'500 * kMillisecond;
    const std::size_t faults = 1 + prng.below(4);
    for (std::size_t fault = 0; fault < faults; ++fault) {
      const auto a = static_cast<std::uint16_t>(prng.below(size)), b = static_cast<std::uint16_t>(prng.below(size));
      if (is_partition && fault == 0) {  // into two groups, all connections between them or most
        ++partitions;
        const std::uint64_t side = 1 + prng.below((1U << size) - 2);
        const double share = prng.chance(0.5) ? 1.0 : 0.7;
        for (std::uint16_t i = 0; i < size; ++i) {
          for (std::uint16_t j = 0; j < i; ++j) {
            if (((side >> i) & 1U) != ((side >> j) & 1U) && prng.chance(share)) members.cut(i, j, spread);
          }
        }
      } else if (prng.chance(0.4)) {
        if (!members.is_dead(a)) members.kill(a, spread);
      } else if (prng.chance(0.2)) {
        RankSet blind;
        for (std::uint16_t rank = 0; rank < size; ++rank) {
          if (prng.chance(0.2)) blind.insert(rank);
        }
        if (!members.is_dead(a)) members.leave(a, blind);
      } else if (a != b) {
        members.cut(a, b, spread);
      }
      members.run_for(static_cast<TimeNs>(prng.below(prng.chance(0.5) ? 5'000'000 : 2'000'000'000)));
    }
    members.run_for(60 * mlt::base::kSecond);
    const std::size_t max_workers = std::min<std::size_t>(dead_workers, workers - 1U);
    const std::size_t max_services = std::min<std::size_t>(dead_services, services - 1U);
    const auto excluded_services = [&](std::uint16_t rank) {
      const RankSet excluded = members.excluded(rank);
      return static_cast<std::size_t>(std::ranges::count_if(excluded, [&](auto one) { return one >= workers; }));
    };
    // Those that are left, and of them those that sums are possible for.
    RankSet left, living;
    for (std::uint16_t rank = 0; rank < size; ++rank) {
      if (members.is_dead(rank) || members.is_out(rank)) continue;
      left.insert(rank);
      const std::size_t gone = excluded_services(rank);
      if (gone <= max_services && members.excluded(rank).size() - gone <= max_workers) living.insert(rank);
    }
    // But for those that left by themselves, of the ranks below `end`.
    const auto view_of = [&](std::uint16_t rank, std::uint16_t end) {
      RankSet view = members.excluded(rank);
      std::erase_if(view, [&](std::uint16_t one) { return one < end && members.has_left(one); });
      return view;
    };
    for (const std::uint16_t rank : left) {
      for (const std::uint16_t other : left) {
        const bool matters = rank >= workers || other >= workers;
        CAPTURE(rank);
        CAPTURE(other);
        if (matters && !members.at(rank).is_lost(other) && !members.at(other).is_lost(rank)) {
          CHECK(view_of(rank, size) == view_of(other, size));
        }
      }
    }
    none += left.empty() ? 1U : 0U;
    groups += left.empty() ? 0U : 1U;
    if (living.empty()) continue;
    // Workers do not learn that a worker has left, or only if it had lost a connection before.
    const RankSet view = view_of(*living.begin(), workers);
    const std::size_t gone_services = excluded_services(*living.begin());
    for (const std::uint16_t rank : living) {
      CAPTURE(rank);
      CHECK(view_of(rank, workers) == view);
      for (const std::uint16_t other : living) {
        CHECK(!view.contains(other));
        // Connections between services matter while another service may be excluded.
        const bool is_of_services = rank >= workers && other >= workers;
        const bool matters = is_of_services ? gone_services < max_services : rank >= workers || other >= workers;
        if (matters) CHECK(!members.at(rank).is_lost(other));
      }
    }
    for (std::uint16_t rank = 0; rank < size; ++rank) {
      // Workers do not notice each other's end, services do; whoever is out and was not decided about is in no view.
      if (members.is_dead(rank) && !(rank < workers && members.has_left(rank))) {
        CHECK((view.contains(rank) || living.size() <= 1 || *living.rbegin() < workers));
      }
      if (view.contains(rank) && !members.is_dead(rank)) {
        ++excluded_alive;
        CHECK(members.is_out(rank));
      }
    }
  }
  CHECK(groups > 2'000);
  CHECK(partitions > 500);
  CHECK(excluded_alive > 300);
  CHECK(none > 10);
}
