#include "sim/topology.h"

#include <doctest/doctest.h>

#include <set>

using namespace mlt;
using sim::Fabric;
using sim::Routes;
using sim::Topology;

namespace {

// Ways from host to host, counted by walking every choice; 0 if a walk gets stuck.
std::uint64_t ways(const Topology& topology, const Routes& routes, std::uint32_t from, std::uint16_t to) {
  if (from == to) return 1;
  std::uint64_t sum = 0;
  for (const std::uint32_t edge : routes.next_edges(from, to))
    sum += ways(topology, routes, topology.edges[edge].to, to);
  return sum;
}

}  // namespace

TEST_CASE("star__has_one_way_of_two_links") {
  const Topology topology = sim::star(5, Fabric{});
  const Routes routes(topology);
  CHECK(topology.edges.size() == 10);
  for (std::uint16_t a = 0; a < 5; ++a) {
    for (std::uint16_t b = 0; b < 5; ++b) {
      if (a == b) continue;
      CHECK(routes.hops(a, b) == 2);
      CHECK(ways(topology, routes, a, b) == 1);
    }
  }
}

TEST_CASE("leaf_spine__has_as_many_paths_between_leaves_as_spines") {
  const Topology topology = sim::leaf_spine(3, 4, 2, Fabric{});
  const Routes routes(topology);
  CHECK(topology.hosts == 6);
  CHECK(topology.nodes == 6 + 3 + 4);
  CHECK(routes.hops(0, 1) == 2);
  CHECK(ways(topology, routes, 0, 1) == 1);
  CHECK(routes.hops(0, 5) == 4);
  CHECK(ways(topology, routes, 0, 5) == 4);
}

TEST_CASE("fat_tree__has_the_sizes_of_the_paper") {
  const Topology topology = sim::fat_tree(4, Fabric{});
  const Routes routes(topology);
  CHECK(topology.hosts == 16);
  CHECK(topology.nodes == 16 + 8 + 8 + 4);
  CHECK(topology.edges.size() == 2 * 48);
  CHECK(routes.hops(0, 1) == 2);
  CHECK(routes.hops(0, 2) == 4);
  CHECK(ways(topology, routes, 0, 2) == 2);
  CHECK(routes.hops(0, 15) == 6);
  CHECK(ways(topology, routes, 0, 15) == 4);
}

TEST_CASE("dumbbell__crosses_one_cable") {
  const Topology topology = sim::dumbbell(2, 3, Fabric{});
  const Routes routes(topology);
  CHECK(routes.hops(0, 1) == 2);
  CHECK(routes.hops(0, 4) == 3);
}

TEST_CASE("routes__never_lead_through_a_host_and_know_when_there_is_none") {
  // Host 1 has two cards; host 3 has none that work.
  const std::pair<std::uint32_t, std::uint32_t> cables[] = {{0, 4}, {1, 4}, {1, 5}, {2, 5}};
  const Topology topology = sim::from_cables(4, 2, cables, Fabric{});
  const Routes routes(topology);
  CHECK(routes.hops(0, 1) == 2);
  CHECK(routes.hops(2, 1) == 2);
  CHECK(routes.next_edges(0, 2).empty());
  CHECK(routes.hops(0, 2) == 0);
  CHECK(routes.next_edges(0, 3).empty());
}
