// The choice by itself; survivors_test.cc has the decisions.
#include "collective/edge_cover.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace {

using namespace mlt::collective;
using Ranks = EdgeCover::Ranks;
using Edges = std::vector<EdgeCover::Edge>;

// Of three workers and three services; rank 3 decides.
Ranks chosen(const Edges& edges, std::size_t spare_workers, std::size_t spare_services, Ranks dead = {}) {
  return EdgeCover({6, 3, 3, spare_workers, spare_services}, edges, std::move(dead)).choose();
}

}  // namespace

TEST_CASE("edge_cover__takes_the_rank_that_lost_most_and_of_equals_the_permitted_then_the_first_named") {
  CHECK(chosen({{0, 4, true}, {1, 4, true}}, 2, 1) == Ranks{4});
  CHECK(chosen({{0, 4, true}}, 1, 1) == Ranks{4});
  CHECK(chosen({{4, 0, true}}, 1, 1) == Ranks{0});
  CHECK(chosen({{0, 4, true}, {4, 0, true}, {0, 5, true}}, 1, 1) == Ranks{0});  // both ends of one report it
  CHECK(chosen({{0, 4, true}}, 1, 0) == Ranks{0});
  CHECK(chosen({{0, 3, true}}, 0, 1) == Ranks{3});  // itself, where nothing else is permitted
  CHECK(chosen({{0, 3, true}}, 1, 1) == Ranks{0});
  CHECK(chosen({{0, 4, true}, {1, 5, true}}, 1, 1) == Ranks{4, 1});
}

TEST_CASE("edge_cover__counts_those_that_are_not_due_and_leaves_them") {
  CHECK(chosen({{0, 4, true}, {0, 5, false}}, 1, 1) == Ranks{0});
  CHECK(chosen({{0, 4, false}}, 1, 1) == Ranks{});
  CHECK(chosen({{0, 4, true}}, 1, 1, {4}) == Ranks{4});
}

TEST_CASE("edge_cover__exceeds_the_limits_for_a_worker_s_connection_only") {
  CHECK(chosen({{0, 4, true}}, 0, 0).size() == 1);
  CHECK(chosen({{4, 5, true}}, 0, 0) == Ranks{});
  CHECK(chosen({{4, 5, true}}, 2, 0) == Ranks{});
  CHECK(chosen({{4, 5, true}}, 0, 1) == Ranks{5});
  CHECK(chosen({{4, 5, true}}, 0, 1, {3}) == Ranks{3});
  CHECK(chosen({{4, 5, true}, {4, 3, true}, {0, 5, true}}, 0, 1) == Ranks{5});
  const Edges two{{3, 4, true}, {5, 6, true}};
  CHECK(EdgeCover({7, 3, 3, 0, 1}, two, {}).choose() == Ranks{4});
}

// 64 workers and 64 services in two halves: 6,144 reports, of which it is called for each.
TEST_CASE("edge_cover__costs_little_more_than_reading_the_connections") {
  Edges edges;
  const auto side = [](std::uint16_t rank) { return rank % 2; };
  for (std::uint16_t a = 0; a < 128; ++a) {
    for (std::uint16_t b = 0; b < 128; ++b) {
      if (side(a) != side(b) && (a >= 64 || b >= 64)) edges.push_back({a, b, true});
    }
  }
  REQUIRE(edges.size() == 6'144);
  for (const std::size_t spare : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{63}}) {
    CAPTURE(spare);
    EdgeCover cover({128, 64, 64, spare, spare}, edges, {});
    CHECK(!cover.choose().empty());
    CHECK(cover.steps() < 120'000);
  }
}
