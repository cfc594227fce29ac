#include "sim/route_table.h"

#include <doctest/doctest.h>

using namespace mlt;
using sim::RouteTable;
using sim::Topology;

namespace {

// Two leaves with one host each (0 and 1; leaves 2 and 3) under two spines (4 and 5).
Topology two_spines() { return sim::leaf_spine(2, 2, 1, {}); }

std::vector<std::uint32_t> by_spine(const Topology& topology, std::uint32_t spine) {
  return {topology.edge(0, 2), topology.edge(2, spine), topology.edge(spine, 3), topology.edge(3, 1)};
}

}  // namespace

TEST_CASE("first__path_p_takes_the_way_p_modulo_their_number") {
  Topology topology = two_spines();
  topology.planned.push_back({0, 1, {by_spine(topology, 4), by_spine(topology, 5)}});
  const RouteTable table(topology);
  for (std::uint8_t path = 0; path < 5; ++path) {
    const std::vector<std::uint32_t> expected = by_spine(topology, path % 2 == 0 ? 4 : 5);
    for (std::uint32_t hop = 0; hop < expected.size(); ++hop) {
      CHECK(table.edge(table.first(0, 1, path) + hop) == expected[hop]);
    }
  }
}

TEST_CASE("first__is_no_way_where_none_is_planned") {
  Topology topology = two_spines();
  CHECK(RouteTable(topology).first(0, 1, 0) == sim::kNoRoute);
  topology.planned.push_back({0, 1, {by_spine(topology, 5)}});
  CHECK(RouteTable(topology).first(1, 0, 0) == sim::kNoRoute);
}
