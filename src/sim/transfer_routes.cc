#include "sim/transfer_routes.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "sim/refusal.h"

namespace mlt::sim {

namespace {

using Pair = std::pair<std::uint32_t, std::uint32_t>;
using EdgesBetween = std::map<Pair, std::vector<std::uint32_t>>;

EdgesBetween edges_between(const Topology& topology) {
  EdgesBetween found;
  for (std::uint32_t i = 0; i < topology.edges.size(); ++i) {
    found[{topology.edges[i].from, topology.edges[i].to}].push_back(i);
  }
  return found;
}

void check_pair(const TransferSchedule& schedule, std::size_t i) {
  const ScheduledWays& stated = schedule.ways[i];
  const std::string name = item("ways", i);
  const std::string host = "a host from 0 to " + std::to_string(schedule.hosts - 1);
  demand(stated.from < schedule.hosts, name + " from", stated.from, host);
  demand(stated.to < schedule.hosts, name + " to", stated.to, host);
  demand(stated.from != stated.to, name + " to", stated.to, "another host than it comes from");
  demand(!stated.ways.empty() && stated.ways.size() <= schedule.paths, "the number of ways in " + name,
         stated.ways.size(), "1 to " + std::to_string(schedule.paths) + ", as many as there are paths");
}

// The edges of route k, hop by hop.
std::vector<std::uint32_t> edges_of(const TransferSchedule& schedule, const EdgesBetween& between, std::size_t i,
                                    std::size_t k) {
  const ScheduledWays& stated = schedule.ways[i];
  const std::vector<std::uint32_t>& nodes = stated.ways[k];
  const std::string name = item("ways", i) + " " + item("way", k);
  demand(nodes.size() >= 2, "the number of nodes in " + name, nodes.size(), "2 at least: both hosts are listed");
  demand(nodes.front() == stated.from, name + " first node", nodes.front(), std::to_string(stated.from));
  demand(nodes.back() == stated.to, name + " last node", nodes.back(), std::to_string(stated.to));
  std::vector<std::uint32_t> edges;
  for (std::size_t hop = 0; hop + 1 < nodes.size(); ++hop) {
    const std::uint32_t here = nodes[hop];
    if (hop > 0)
      demand(here >= schedule.hosts, name + " " + item("node", hop), here, "a switch: hosts forward nothing");
    if (std::find(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(hop), here) !=
        nodes.begin() + static_cast<std::ptrdiff_t>(hop)) {
      refuse(name + ": it passes node " + std::to_string(here) + " twice; expected a way without circles");
    }
    const auto found = between.find({here, nodes[hop + 1]});
    if (found == between.end()) {
      refuse(name + ": no cable joins " + std::to_string(here) + " and " + std::to_string(nodes[hop + 1]) +
             "; expected one");
    }
    edges.push_back(found->second[k % found->second.size()]);
  }
  return edges;
}

// Cables are two consecutive edges, one per direction.
PlannedRoutes reversed(const PlannedRoutes& there) {
  PlannedRoutes back{there.to, there.from, there.ways};
  for (std::vector<std::uint32_t>& way : back.ways) {
    std::reverse(way.begin(), way.end());
    for (std::uint32_t& edge : way) edge ^= 1U;
  }
  return back;
}

}  // namespace

std::vector<PlannedRoutes> planned_routes(const TransferSchedule& schedule, const Topology& topology) {
  const EdgesBetween between = edges_between(topology);
  std::map<Pair, std::size_t> stated;
  std::vector<PlannedRoutes> planned;
  for (std::size_t i = 0; i < schedule.ways.size(); ++i) {
    check_pair(schedule, i);
    const ScheduledWays& ways = schedule.ways[i];
    const auto [first, is_new] = stated.try_emplace({ways.from, ways.to}, i);
    if (!is_new) {
      refuse(item("ways", i) + ": the ways from " + std::to_string(ways.from) + " to " + std::to_string(ways.to) +
             " are in " + item("ways", first->second) + " already; expected one entry for a pair");
    }
    PlannedRoutes& of_pair = planned.emplace_back();
    of_pair.from = static_cast<std::uint16_t>(ways.from);
    of_pair.to = static_cast<std::uint16_t>(ways.to);
    for (std::size_t k = 0; k < ways.ways.size(); ++k) of_pair.ways.push_back(edges_of(schedule, between, i, k));
  }
  for (std::size_t i = 0; i < schedule.ways.size(); ++i) {
    if (!stated.contains({planned[i].to, planned[i].from})) planned.push_back(reversed(planned[i]));
  }
  return planned;
}

}  // namespace mlt::sim
