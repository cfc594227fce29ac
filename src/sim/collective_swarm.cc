#include "sim/collective_swarm.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sim/accidents.h"
#include "sim/collective_hosts.h"
#include "sim/scenario_collectives.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMillisecond;
using base::kSecond;
using core::CompletionStatus;

// Longer than the longest accident, and what a call may take over the slowest network.
constexpr DurationNs kCallTimeoutNs = 30 * kSecond;
constexpr std::uint16_t kMinSlots = 40;

class CollectiveRun {
 public:
  explicit CollectiveRun(const Scenario& scenario)
      : scenario_(scenario),
        plan_(scenario.collectives),
        simulator_(configured(scenario), scenario.topology()),
        hosts_(simulator_, false, plan_.checksums),
        accidents_(simulator_, scenario, false),
        groups_(plan_.groups.begin(), plan_.groups.end()),
        plans_(plan_.calls.begin(), plan_.calls.end()) {
    hosts_.on_done = [this](std::uint16_t rank, const collective::CollectiveDone& done) { on_done(rank, done); };
  }

  Verdict go(const std::function<void(const TraceRecord&)>& trace) {
    simulator_.trace = trace;
    const base::TimeNs start = simulator_.now();
    simulator_.connect_all(scenario_.faultless ? 0 : 200 * base::kMicrosecond);
    simulator_.run_for(kMillisecond);
    const base::TimeNs first = simulator_.now();
    for (const Accident& accident : scenario_.accidents) schedule(first, accident);
    for (const Accident& death : plan_.deaths) schedule(first, death);
    simulator_.at(first + scenario_.quiet_ns, [this] { accidents_.heal(); });
    for (std::size_t i = 0; i < plan_.calls.size(); ++i) {
      const CallPlan& call = plan_.calls[i];
      add_call(i);
      for (std::size_t member = 0; member < call.at_ns.size(); ++member) {
        simulator_.at(first + call.at_ns[member], [this, i, member] { start_call(i, member); });
      }
      planned_ += call.at_ns.size();
    }
    run_to_the_end();
    simulator_.run_for(kSecond + (simulator_.now() < first + scenario_.quiet_ns ? scenario_.quiet_ns : 0));
    call_again();
    run_to_the_end();
    simulator_.run_for(kSecond);  // late packets
    check_memory();
    Verdict verdict;
    verdict.fault = simulator_.fault();
    verdict.events = simulator_.events();
    verdict.hops = simulator_.network().hops();
    verdict.operations = planned_;
    verdict.completions = ended_;
    verdict.dropped = simulator_.network().ledger().dropped(true).packets;
    verdict.digest = simulator_.digest();
    verdict.virtual_ns = simulator_.now() - start;
    return verdict;
  }

 private:
  // A call at its members.
  struct Call {
    std::unique_ptr<CollectiveCall> contents;
    std::vector<std::uint32_t> ends;  // by member
    bool must_succeed = false;        // everywhere
  };

  static SimulatorConfig configured(const Scenario& scenario) {
    SimulatorConfig config = scenario.configured();
    core::EndpointConfig& endpoint = config.host.endpoint;
    endpoint.operation_timeout_ns = kCallTimeoutNs;
    // Without the limits that transfers must run into: a collective waits for slots, but fails without tags, and of a
    // transfer whose end the receiver has forgotten.
    endpoint.finished_log = endpoint.reply_queue = 512;
    endpoint.max_tags = 512;
    endpoint.bitmap_words = 1U << 14;
    endpoint.max_sends = std::max<decltype(endpoint.max_sends)>(endpoint.max_sends, kMinSlots);
    endpoint.max_receives = std::max<decltype(endpoint.max_receives)>(endpoint.max_receives, kMinSlots);
    config.overrunning_host = 0xFFFF;
    config.overrun_factor = 1;
    return config;
  }

  // A process that dies does not come back, a connection that breaks neither, and a path's limit fails what it
  // concerns: their ends are drawn as deaths.
  static bool is_of_network(const Accident& accident) {
    using Kind = Accident::Kind;
    return accident.kind != Kind::kCrash && accident.kind != Kind::kLeave && accident.kind != Kind::kDisconnect &&
           accident.kind != Kind::kPathLimit && accident.kind != Kind::kShortLink;
  }

  void schedule(base::TimeNs first, const Accident& accident) {
    const bool is_death = accident.kind == Accident::Kind::kCrash || accident.kind == Accident::Kind::kLeave;
    const bool is_planned = std::ranges::any_of(plan_.deaths, [&](const Accident& one) { return &one == &accident; });
    if (is_death != is_planned || (!is_death && !is_of_network(accident))) return;
    simulator_.at(first + accident.start_ns, [this, &accident, is_death] {
      if (is_death) dead_.insert(static_cast<std::uint16_t>(accident.a));
      accidents_.begin(accident);
    });
    if (is_death) return;
    simulator_.at(first + accident.start_ns + accident.length_ns, [this, &accident] { accidents_.end(accident); });
  }

  void add_call(std::size_t index) {
    const CallPlan& plan = plans_[index];
    const GroupPlan& group = groups_[plan.group];
    calls_.push_back({std::make_unique<CollectiveCall>(plan, group), std::vector<std::uint32_t>(group.ranks.size())});
  }

  void start_call(std::size_t index, std::size_t member) {
    const CallPlan& plan = plans_[index];
    const std::uint16_t rank = groups_[plan.group].ranks[member];
    ++started_;
    if (hosts_.has_crashed(rank)) {
      ++ended_;
      return;
    }
    const core::OperationId operation = ++operations_;
    open_[operation] = {index, member};
    Call& call = calls_[index];
    const bool is_culprit = plan.fault != CallPlan::Fault::kNone && plan.culprit == member;
    collective::CollectiveRequest request = call.contents->request(member, operation);
    if (is_culprit) {
      disturb(plan.group, index);
      if (plan.fault == CallPlan::Fault::kDiffers) request = call.contents->other_request(operation);
      if (plan.fault == CallPlan::Fault::kNotCorrect) request.fault = "rank " + std::to_string(rank) + " has a NaN";
    }
    if (const std::string problem = check_request(request, rank); !problem.empty()) {
      return fail(index, member, "was drawn, and is rejected: " + problem);
    }
    if (is_culprit && plan.fault == CallPlan::Fault::kCancels) {
      simulator_.at(simulator_.now() + plan.fault_at_ns, [this, rank, operation] {
        if (!hosts_.has_crashed(rank)) hosts_.cancel(rank, operation);
      });
    }
    hosts_.start(rank, request);
  }

  // Calls of the group from this one on may fail.
  void disturb(std::uint32_t group, std::size_t index) {
    const auto [found, is_new] = disturbed_.try_emplace(group, index);
    if (!is_new) found->second = std::min(found->second, index);
  }

  void on_done(std::uint16_t rank, const collective::CollectiveDone& done) {
    const auto found = open_.find(done.operation);
    if (found == open_.end()) {
      return simulator_.fail("rule 17: rank " + std::to_string(rank) + ": a call ended that was not open");
    }
    const auto [index, member] = found->second;
    open_.erase(found);
    ++ended_;
    Call& call = calls_[index];
    const CallPlan& plan = plans_[index];
    if (++call.ends[member] > 1) return fail(index, member, "ended twice");
    // A member that calls something else completes that, or all others fail.
    const bool is_other = plan.fault == CallPlan::Fault::kDiffers && plan.culprit == member;
    if (!done.error.empty()) {
      call.contents->give_up(member);
      if (const std::string problem = check_failure(index, done); !problem.empty()) fail(index, member, problem);
      return;
    }
    if (is_other) return call.contents->give_up(member);
    const std::string problem = call.contents->take_result(member, done.missing_bytes);
    if (!problem.empty()) fail(index, member, "has a wrong result: " + problem);
  }

  // Why the call must not have failed so; empty if it may.
  std::string check_failure(std::size_t index, const collective::CollectiveDone& done) const {
    const CallPlan& plan = plans_[index];
    const std::vector<std::uint16_t>& ranks = groups_[plan.group].ranks;
    const std::string text = "failed: " + done.error;
    if (calls_[index].must_succeed) return text;
    const auto is_member = [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); };
    if (done.status == CompletionStatus::kPeerFailed) {
      const bool is_dead = done.failed_peer >= 0 && dead_.contains(static_cast<std::uint16_t>(done.failed_peer));
      return is_dead && is_member(done.failed_peer) ? "" : text + " (rank " + std::to_string(done.failed_peer) + ")";
    }
    const auto disturbed = disturbed_.find(plan.group);
    if (disturbed == disturbed_.end() || index < disturbed->second) return text;
    // One of the group's calls up to this one has such a culprit.
    for (std::size_t i = disturbed->second; i <= index; ++i) {
      if (plans_[i].group != plan.group || plans_[i].fault == CallPlan::Fault::kNone) continue;
      const bool differs = plans_[i].fault == CallPlan::Fault::kDiffers;
      const int culprit = ranks[plans_[i].culprit];
      if (done.status != (differs ? CompletionStatus::kSizeMismatch : CompletionStatus::kCancelled)) continue;
      const bool names = differs ? done.error.find("rank " + std::to_string(culprit) + " called") != std::string::npos
                                 : done.failed_peer == culprit;
      if (names) return "";
    }
    return text;
  }

  // Until every call has ended at every member that lives.
  void run_to_the_end() {
    const auto is_over = [this] {
      if (started_ < planned_) return false;
      return std::ranges::all_of(open_, [this](const auto& entry) {
        const auto& [index, member] = entry.second;
        return hosts_.has_crashed(groups_[plans_[index].group].ranks[member]);
      });
    };
    if (simulator_.fault().empty() && simulator_.run_until(is_over, scenario_.limit_ns + 2 * kCallTimeoutNs)) return;
    if (!simulator_.fault().empty()) return;
    std::string open;
    for (const auto& [operation, where] : open_) open += " " + describe(where.first, where.second) + ";";
    simulator_.fail("rule 17: calls did not end:" + open);
  }

  // The survivors as a group of their own, and each group whose members all live.
  void call_again() {
    if (!simulator_.fault().empty()) return;
    for (const Accident& death : plan_.deaths) {
      if (!hosts_.has_crashed(static_cast<std::uint16_t>(death.a))) return;  // the run ended before it
    }
    base::Prng prng(scenario_.seed * 77 + 1);
    GroupPlan survivors;
    survivors.stream = 7;
    for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
      if (!dead_.contains(rank)) survivors.ranks.push_back(rank);
    }
    groups_.push_back(survivors);
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      const std::vector<std::uint16_t>& ranks = groups_[group].ranks;
      if (std::ranges::any_of(ranks, [this](std::uint16_t rank) { return dead_.contains(rank); })) continue;
      plans_.push_back(draw_call(prng, groups_[group], group, 20'000));
    }
    const std::size_t before = calls_.size();
    for (std::size_t i = before; i < plans_.size(); ++i) {
      add_call(i);
      calls_.back().must_succeed = true;
      planned_ += groups_[plans_[i].group].ranks.size();
    }
    for (std::size_t i = before; i < plans_.size(); ++i) {
      for (std::size_t member = 0; member < groups_[plans_[i].group].ranks.size(); ++member) start_call(i, member);
    }
  }

  void check_memory() {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      for (std::size_t member = 0; member < calls_[i].ends.size(); ++member) {
        if (calls_[i].contents->was_touched(member)) fail(i, member, "was written to after its end");
      }
    }
  }

  std::string describe(std::size_t index, std::size_t member) const {
    return "call " + std::to_string(index) + " at rank " + std::to_string(groups_[plans_[index].group].ranks[member]) +
           " (" + calls_[index].contents->text() + ")";
  }
  void fail(std::size_t index, std::size_t member, const std::string& problem) {
    simulator_.fail("rule 17: " + describe(index, member) + " " + problem);
  }

  const Scenario& scenario_;
  const CollectivesPlan& plan_;
  Simulator simulator_;
  CollectiveHosts hosts_;
  Accidents accidents_;
  // Calls refer to their plans and groups.
  std::deque<GroupPlan> groups_;
  std::deque<CallPlan> plans_;
  std::vector<Call> calls_;
  std::map<core::OperationId, std::pair<std::size_t, std::size_t>> open_;  // a call and a member
  std::map<std::uint32_t, std::size_t>
      disturbed_;  // a group, and its first call of which a member makes something else
  std::set<std::uint16_t> dead_;
  std::uint64_t planned_ = 0, started_ = 0, ended_ = 0;  // calls at members
  core::OperationId operations_ = 0;
};

}  // namespace

Verdict run_collectives(const Scenario& scenario, const std::function<void(const TraceRecord&)>& trace) {
  return CollectiveRun(scenario).go(trace);
}

}  // namespace mlt::sim
