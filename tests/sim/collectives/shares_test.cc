// Shares by rate: all-reduces around a ring of which one host's link is slow, with them and without.
#include <doctest/doctest.h>

#include "sim/collectives/all_reduce_times.h"
#include "support/seeds.h"

namespace base = mlt::base;
namespace collective = mlt::collective;
namespace sim = mlt::sim;
using namespace mlt::test;

namespace {

// Links of 200 Mbit/s; the hosts learn that when packets queue, if they believe in a faster line.
AllReduces ring_of(std::uint16_t ranks, double line, double slowness) {
  AllReduces what;
  what.ranks = ranks;
  what.bytes = 1U << 20;
  what.algorithm = mlt::collective::CollectiveAlgorithm::kRing;
  what.loss = 0;
  what.rate = 25e6;
  what.line_rate = line * what.rate;
  what.slowness = slowness;
  what.warm_up = 9 * ranks;
  what.operations = 8;
  return what;
}

}  // namespace

// The tensor crosses the slow host's links once, and all others twice: a host of half the rate then costs 1 / (1 - 1/n)
// of equal chunks on equal links, a third with 4 hosts and a seventh with 8, where equal chunks cost twice the time.
TEST_CASE("shares_by_rate__make_a_slow_host_cost_what_it_must_and_nothing_where_links_are_equal" *
          doctest::test_suite("long")) {
  for (const auto& [ranks, line] :
       {std::pair{std::uint16_t{4}, 1.0}, {std::uint16_t{4}, 10.0}, {std::uint16_t{8}, 10.0}}) {
    CAPTURE(ranks);
    CAPTURE(line);
    AllReduces even = ring_of(ranks, line, 1);
    AllReduces slow = ring_of(ranks, line, 2);
    const double even_ns = time_all_reduces(even).mean(), slow_ns = time_all_reduces(slow).mean();
    CHECK(slow_ns > 1.9 * even_ns);
    even.shares_by_rate = slow.shares_by_rate = true;
    CHECK(time_all_reduces(even).mean() == even_ns);
    const double must = static_cast<double>(ranks) / (ranks - 1);
    const double shared_ns = time_all_reduces(slow).mean();
    CHECK(shared_ns < 1.1 * must * even_ns);
    CHECK(shared_ns < 0.7 * slow_ns);
    slow.slowness = 4;
    CHECK(time_all_reduces(slow).mean() < 1.1 * 2 * must * even_ns);
  }
}

// Links whose rates change all the time, packets that are lost, calls one after another and several at once: every call
// ends with the exact sum at every rank, so that all have cut it alike.
TEST_CASE("shares_by_rate__of_links_that_change_lose_nothing_and_agree") {
  std::size_t cut_calls = 0;
  for (std::uint64_t seed = 1; seed <= 12; seed += seed_stride()) {
    CAPTURE(seed);
    base::Prng prng(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + prng.below(4));
    sim::Topology topology = sim::star(ranks, fabric(2.5e7, 1'000'000));
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      topology.edges[topology.edge(rank, ranks)].link.data.drop = prng.chance(0.5) ? 0.01 : 0.0;
    }
    sim::SimulatorConfig config = configured(prng.chance(0.5) ? 2.5e7 : 2.5e8);
    config.seed = seed;
    sim::Simulator simulator(config, topology);
    sim::CollectiveHosts hosts(simulator, true);
    simulator.connect_all();
    simulator.run_for(10 * base::kMillisecond);
    collective::CollectiveRequest request;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) request.ranks.push_back(rank);
    request.reduction = collective::Reduction::kSum;
    request.algorithm = collective::CollectiveAlgorithm::kRing;
    std::size_t calls = 0;
    for (int round = 0; round < 40; ++round) {
      const auto slow = static_cast<std::uint32_t>(prng.below(ranks));
      const double rate = 2.5e7 / static_cast<double>(1 + prng.below(6));
      simulator.network().link(topology.edge(slow, ranks)).rate_bytes_per_second = rate;
      if (prng.chance(0.5)) simulator.network().link(topology.edge(ranks, slow)).rate_bytes_per_second = rate;
      const std::size_t at_once = 1 + prng.below(6);
      std::vector<std::vector<std::vector<float>>> tensors(at_once);
      for (auto& tensor : tensors) {
        const std::size_t elements = 1 + prng.below(30'000);
        request.operation = ++calls;
        for (std::uint16_t rank = 0; rank < ranks; ++rank) tensor.emplace_back(elements, static_cast<float>(rank));
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          request.output = std::as_writable_bytes(std::span(tensor[rank]));
          hosts.start(rank, request);
        }
      }
      const auto over = [&] {
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          if (hosts.done(rank).size() < calls) return false;
        }
        return true;
      };
      REQUIRE(simulator.run_until(over, 60 * base::kSecond));
      REQUIRE(simulator.fault().empty());
      for (const auto& tensor : tensors) {
        for (const auto& one : tensor) {
          const auto sum = static_cast<float>(ranks * (ranks - 1) / 2);
          REQUIRE(std::ranges::all_of(one, [sum](float value) { return value == sum; }));
        }
      }
    }
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      for (const collective::CollectiveDone& done : hosts.done(rank)) REQUIRE(done.error == "");
      CHECK(hosts.rings_cut_by_rate(rank) == hosts.rings_cut_by_rate(0));
    }
    cut_calls += hosts.rings_cut_by_rate(0);
  }
  CHECK(cut_calls > 200 / seed_stride());
}
