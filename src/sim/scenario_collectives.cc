#include "sim/scenario_collectives.h"

#include <algorithm>
#include <iterator>

#include "sim/log_uniform.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::Prng;
using collective::CollectiveAlgorithm;
using collective::CollectiveKind;

// Larger jobs would cost most of the swarm's time.
constexpr std::uint16_t kMaxMembers = 8;

GroupPlan draw_group(Prng& prng, std::uint16_t hosts) {
  GroupPlan group;
  for (std::uint16_t rank = 0; rank < hosts; ++rank) group.ranks.push_back(rank);
  for (std::size_t i = group.ranks.size(); i > 1; --i) std::swap(group.ranks[i - 1], group.ranks[prng.below(i)]);
  const std::size_t size = prng.chance(0.5) ? group.ranks.size() : 2 + prng.below(group.ranks.size() - 1);
  group.ranks.resize(std::min<std::size_t>(size, kMaxMembers));
  group.stream = static_cast<std::uint32_t>(prng.below(2));
  return group;
}

// Of which a group of so many has two hosts or more, with two members or more; 0 if there is none.
std::uint16_t draw_members_per_host(Prng& prng, std::size_t members) {
  std::vector<std::uint16_t> possible;
  for (std::uint16_t each = 2; each < members; ++each) {
    if (members % each == 0) possible.push_back(each);
  }
  return possible.empty() ? std::uint16_t{0} : possible[prng.below(possible.size())];
}

CollectiveAlgorithm draw_carrier(Prng& prng, const CallPlan& call) {
  constexpr CollectiveAlgorithm kSums[] = {CollectiveAlgorithm::kAutomatic, CollectiveAlgorithm::kDirect,
                                           CollectiveAlgorithm::kCentral, CollectiveAlgorithm::kRing,
                                           CollectiveAlgorithm::kHalving};
  constexpr CollectiveAlgorithm kRooted[] = {CollectiveAlgorithm::kAutomatic, CollectiveAlgorithm::kDirect,
                                             CollectiveAlgorithm::kChain};
  if (call.ranks_per_host > 0 && prng.chance(0.5)) return CollectiveAlgorithm::kTwoLevel;
  if (call.kind == CollectiveKind::kAllReduce) return kSums[prng.below(std::size(kSums))];
  return kRooted[prng.below(has_root(call.kind) ? std::size(kRooted) : 2)];
}

void draw_loss(Prng& prng, CallPlan& call) {
  const bool may_lose = call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kAllToAll ||
                        call.kind == CollectiveKind::kGather || call.kind == CollectiveKind::kAllGather;
  if (!may_lose || !prng.chance(0.4)) return;
  call.element = wire::ElementType::kFloat32;
  call.reduction = collective::Reduction::kSum;
  call.loss_bound = 0.02 + 0.3 * prng.uniform();
  call.lossy_results = call.kind == CollectiveKind::kAllReduce && prng.chance(0.3);
}

// A member calls a group's collectives one after another, others in the meantime.
void draw_times(Prng& prng, CollectivesPlan& plan) {
  std::vector<std::vector<DurationNs>> last(plan.groups.size());
  for (std::size_t i = 0; i < last.size(); ++i) last[i].assign(plan.groups[i].ranks.size(), 0);
  for (CallPlan& call : plan.calls) {
    const bool are_together = prng.chance(0.5);
    const auto spread = static_cast<std::uint64_t>(log_uniform(prng, 1e3, 1e7));
    for (DurationNs& at : last[call.group]) {
      at += are_together ? 1 : static_cast<DurationNs>(1 + prng.below(spread));
      call.at_ns.push_back(at);
    }
  }
}

// Those of the network and pauses stay; a process that dies does not come back here.
void draw_deaths(Prng& prng, Scenario& scenario) {
  if (scenario.faultless || !prng.chance(0.4)) return;
  const std::uint64_t deaths = prng.chance(0.8) || scenario.hosts < 4 ? 1 : 2;
  for (std::uint64_t i = 0; i < deaths; ++i) {
    Accident death;
    death.kind = prng.chance(0.5) ? Accident::Kind::kCrash : Accident::Kind::kLeave;
    death.a = static_cast<std::uint32_t>(prng.below(scenario.hosts));
    death.start_ns = static_cast<DurationNs>(prng.below(15 * kMillisecond));
    death.length_ns = static_cast<DurationNs>(log_uniform(prng, 1e4, 1e7));
    scenario.collectives.deaths.push_back(death);
  }
}

void draw_faults(Prng& prng, CollectivesPlan& plan) {
  for (CallPlan& call : plan.calls) {
    if (!prng.chance(0.12)) continue;
    call.fault = static_cast<CallPlan::Fault>(1 + prng.below(3));
    call.culprit = static_cast<std::uint32_t>(prng.below(plan.groups[call.group].ranks.size()));
    call.fault_at_ns = static_cast<DurationNs>(log_uniform(prng, 1e3, 5e6));
  }
}

}  // namespace

std::string CollectivesPlan::text() const {
  std::string text;
  for (const CallPlan& call : calls) {
    text +=
        "call " + std::to_string(&call - calls.data()) + ": " + CollectiveCall(call, groups[call.group]).text() + "\n";
  }
  for (const Accident& death : deaths) {
    text += "rank " + std::to_string(death.a) +
            (death.kind == Accident::Kind::kCrash ? " dies after " : " leaves after ") +
            std::to_string(death.start_ns) + " ns\n";
  }
  return text + (checksums ? "collectives with checksums\n" : "");
}

CallPlan draw_call(Prng& prng, const GroupPlan& group, std::uint32_t number, double max_bytes) {
  const std::size_t members = group.ranks.size();
  CallPlan call;
  call.group = number;
  call.seed = prng.next();
  call.kind = static_cast<CollectiveKind>(1 + prng.below(9));
  do {
    call.element = static_cast<wire::ElementType>(prng.below(wire::kElementTypeCount));
    call.reduction = static_cast<collective::Reduction>(prng.below(collective::kReductionCount));
  } while (collective::kernel_of(call.element, call.reduction) == nullptr);
  if (!has_reduction(call.kind)) call.reduction = collective::Reduction::kSum;
  draw_loss(prng, call);
  const double most = max_bytes / static_cast<double>(members) / wire::element_bytes(call.element);
  call.elements =
      prng.chance(0.25) ? prng.below(4) : static_cast<std::size_t>(log_uniform(prng, 1, std::max(2.0, most)));
  call.root = static_cast<std::uint32_t>(prng.below(members));
  if (!has_algorithm(call.kind)) return call;
  call.ranks_per_host = draw_members_per_host(prng, members);
  call.algorithm = draw_carrier(prng, call);
  CollectiveCall made(call, group);
  // Not all of them take what may lose.
  if (!check_request(made.request(0, 1), group.ranks[0]).empty()) {
    call.algorithm = CollectiveAlgorithm::kAutomatic;
  }
  return call;
}

void draw_collectives(Scenario& scenario) {
  Prng prng(Prng(scenario.seed ^ 0xC0117EC7ULL).next());
  // Where only the control connections work, a call takes as long as its timeouts.
  if (!prng.chance(0.25) || scenario.hosts > 16 || scenario.control_datagrams_lost) return;
  CollectivesPlan& plan = scenario.collectives;
  plan.checksums = prng.chance(0.3);
  for (std::uint64_t groups = 1 + prng.below(3); groups > 0; --groups) {
    const GroupPlan group = draw_group(prng, scenario.hosts);
    const bool is_new = std::ranges::none_of(plan.groups, [&](const GroupPlan& other) {
      return other.ranks == group.ranks && other.stream == group.stream;
    });
    if (is_new) plan.groups.push_back(group);
  }
  const std::uint64_t calls = 1 + prng.below(6);
  const double slowest =
      std::min(scenario.fabric.host_link.rate_bytes_per_second, scenario.fabric.core_link.rate_bytes_per_second);
  const double max_bytes = std::min(120'000.0, slowest * 0.02);
  for (std::uint64_t i = 0; i < calls; ++i) {
    const auto group = static_cast<std::uint32_t>(prng.below(plan.groups.size()));
    plan.calls.push_back(draw_call(prng, plan.groups[group], group, max_bytes));
  }
  draw_times(prng, plan);
  draw_deaths(prng, scenario);
  if (!scenario.faultless) draw_faults(prng, plan);
}

}  // namespace mlt::sim
