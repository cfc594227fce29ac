#include "sim/route_table.h"

#include "base/check.h"

namespace mlt::sim {

RouteTable::RouteTable(const Topology& topology) : hosts_(topology.hosts) {
  if (topology.planned.empty()) return;
  pair_.assign(std::size_t{hosts_} * hosts_, kNoRoute);
  for (const PlannedRoutes& planned : topology.planned) {
    MLT_CHECK(planned.from < hosts_ && planned.to < hosts_ && planned.from != planned.to && !planned.ways.empty());
    std::uint32_t& pair = pair_[std::size_t{planned.from} * hosts_ + planned.to];
    MLT_CHECK(pair == kNoRoute);
    pair = static_cast<std::uint32_t>(starts_.size());
    starts_.push_back(static_cast<std::uint32_t>(planned.ways.size()));
    for (const std::vector<std::uint32_t>& way : planned.ways) {
      starts_.push_back(static_cast<std::uint32_t>(edges_.size()));
      std::uint32_t at = planned.from;
      for (const std::uint32_t edge : way) {
        MLT_CHECK(edge < topology.edges.size() && topology.edges[edge].from == at);
        MLT_CHECK(at >= hosts_ || at == planned.from);  // hosts forward nothing
        at = topology.edges[edge].to;
        edges_.push_back(edge);
      }
      MLT_CHECK(at == planned.to);
    }
  }
}

}  // namespace mlt::sim
