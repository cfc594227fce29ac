// Ports that are hundreds of times slower than the cards behind them, as in a testbed, between virtual machines or on
// shaped links, whose interfaces name no speed. The port knows no classes: control stands in the data's queue.
//
// With a floor of a thousandth of the NIC's rate, three flows into one port of 200 Mbit/s could not go below half as
// much again: a third of their packets was dropped, round after round.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "sim/collective_hosts.h"
#include "sim/simulator.h"
#include "support/small_tables.h"

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;

constexpr std::uint16_t kHosts = 4;
constexpr double kPortRate = 25e6;       // 200 Mbit/s
constexpr double kAssumedRate = 12.5e9;  // what an interface without a speed is taken for

sim::Topology star(std::uint64_t port_bytes, double loss) {
  sim::Fabric fabric;
  fabric.host_link.rate_bytes_per_second = kAssumedRate;
  fabric.host_link.propagation_ns = 5 * kMicrosecond;
  fabric.port = sim::uniform_port({}, port_bytes, sim::kUnlimited);
  fabric.port.queue_of.fill(1);
  sim::Topology made = sim::star(kHosts, fabric);
  for (std::uint16_t host = 0; host < kHosts; ++host) {
    sim::Link& down = made.edges[made.edge(kHosts, host)].link;
    down.rate_bytes_per_second = kPortRate;
    down.data.drop = down.control.drop = loss;
  }
  return made;
}

sim::SimulatorConfig config(std::uint64_t seed) {
  sim::SimulatorConfig made;
  made.seed = seed;
  made.window_bytes = 2U << 20;
  made.host.wake_up_ns = 20 * kMicrosecond;
  made.host.pauses_between_batches = true;
  made.host.endpoint = test::small_tables(made.host.endpoint);
  made.host.endpoint.early_segments = 512;
  made.host.endpoint.timely.line_rate_bytes_per_second = kAssumedRate;
  return made;
}

sim::QueueCounters counters_to(sim::Simulator& simulator, std::uint16_t host) {
  return simulator.network().port(simulator.network().topology().edge(kHosts, host)).counters(1);
}
std::uint64_t dropped(const sim::QueueCounters& queue) { return queue.dropped[0] + queue.dropped[1]; }

// Threads that lose their core for up to `longest_ns`, every two milliseconds in the mean.
void disturb(sim::Simulator& simulator, base::Prng& prng, std::uint16_t host, base::DurationNs longest_ns) {
  simulator.at(simulator.now() + static_cast<base::DurationNs>(prng.below(4 * kMillisecond)), [&simulator, &prng, host,
                                                                                               longest_ns] {
    simulator.pause(host, static_cast<base::DurationNs>(prng.below(static_cast<std::uint64_t>(longest_ns))));
    disturb(simulator, prng, host, longest_ns);
  });
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

// All hosts send to host 0, within a fifth of a millisecond; how long it takes, in ms.
double incast_round(sim::Simulator& simulator, base::Prng& prng, std::uint64_t round,
                    std::vector<std::vector<std::byte>>& tensors) {
  int received = 0;
  simulator.on_completion = [&](std::uint16_t, const core::Completion& completion) {
    if (core::is_failure(completion.status)) simulator.fail("a transfer failed");
    if (completion.kind == core::CompletionKind::kReceive) ++received;
  };
  const base::TimeNs start = simulator.now();
  for (std::uint16_t rank = 1; rank < kHosts; ++rank) {
    core::ReceiveRequest receive;
    receive.operation = round * kHosts + rank;
    receive.tag = round;
    receive.peer = rank;
    receive.data = tensors[rank];
    core::SendRequest send;
    send.operation = round * kHosts + rank;
    send.tag = round;
    send.peer = 0;
    send.data = tensors[0];
    REQUIRE(simulator.receive(0, receive) == core::PostStatus::kPosted);
    simulator.at(start + static_cast<base::DurationNs>(prng.below(200 * kMicrosecond)), [&simulator, rank, send] {
      if (simulator.send(rank, send) != core::PostStatus::kPosted) simulator.fail("a send was refused");
    });
  }
  REQUIRE(simulator.run_until([&] { return received == kHosts - 1; }, 5 * kSecond));
  REQUIRE(simulator.fault() == "");
  return static_cast<double>(simulator.now() - start) * 1e-6;
}

struct Ring {
  std::size_t bytes = 1U << 20;
  double loss = 0;
  base::DurationNs pauses_ns = 0;
  double loss_bound = 0;
  std::uint64_t rounds = 1'000;
};

// Times of all-reduces back to back, in ms; the first five, in which the rate is found, left out.
std::vector<double> ring_rounds(const Ring& ring) {
  sim::Simulator simulator(config(2), star(256U << 10, ring.loss));
  sim::CollectiveHosts hosts(simulator);
  base::Prng prng(7);
  simulator.connect_all();
  simulator.run_for(kMillisecond);
  for (std::uint16_t host = 0; ring.pauses_ns > 0 && host < kHosts; ++host) {
    disturb(simulator, prng, host, ring.pauses_ns);
  }
  std::vector<std::vector<float>> data(kHosts, std::vector<float>(ring.bytes / sizeof(float)));
  std::vector<double> times;
  for (std::uint64_t round = 1; round <= ring.rounds + 5; ++round) {
    const base::TimeNs start = simulator.now();
    for (std::uint16_t rank = 0; rank < kHosts; ++rank) {
      collective::CollectiveRequest request;
      request.operation = round;
      request.output = std::as_writable_bytes(std::span(data[rank]));
      request.ranks = {0, 1, 2, 3};
      request.loss_bound = ring.loss_bound;
      hosts.start(rank, request);
    }
    const auto over = [&] {
      for (std::uint16_t rank = 0; rank < kHosts; ++rank) {
        if (hosts.done(rank).size() < round) return false;
      }
      return true;
    };
    REQUIRE(simulator.run_until(over, 5 * kSecond));
    if (round > 5) times.push_back(static_cast<double>(simulator.now() - start) * 1e-6);
  }
  return times;
}

}  // namespace

TEST_CASE("slow_ports__an_incast_into_a_shallow_buffer_loses_little_once_the_rate_is_found") {
  for (const std::uint64_t buffer : {64U << 10, 256U << 10}) {
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      sim::Simulator simulator(config(seed), star(buffer, 0));
      base::Prng prng(seed);
      simulator.connect_all();
      simulator.run_for(kMillisecond);
      std::vector<std::vector<std::byte>> tensors(kHosts, std::vector<std::byte>(1U << 20));
      const double first = incast_round(simulator, prng, 0, tensors);
      const sim::QueueCounters found = counters_to(simulator, 0);
      std::vector<double> times;
      for (std::uint64_t round = 1; round <= 30; ++round)
        times.push_back(incast_round(simulator, prng, round, tensors));
      const sim::QueueCounters end = counters_to(simulator, 0);
      const double offered = static_cast<double>(end.offered[0] + end.offered[1] - found.offered[0] - found.offered[1]);
      const double lost = static_cast<double>(dropped(end) - dropped(found)) / offered;
      MESSAGE("buffer of " << buffer / 1024 << " KiB, seed " << seed << ": first round " << first << " ms, "
                           << dropped(found) << " dropped; then p50 " << percentile(times, 0.5) << " ms, worst "
                           << percentile(times, 1) << " ms, dropped " << lost * 100 << " %");
      CHECK(lost < 0.06);
      // The rate is still that of the NIC: rounds that are repeated at once would lose three times as much.
      CHECK(dropped(found) < 12'000);
      // The payload alone takes 126 ms, headers and acknowledgements 5 % more.
      CHECK(first < 200);
      CHECK(percentile(times, 0.5) < 142);
      CHECK(percentile(times, 1) < 155);
    }
  }
}

// A thread that waits for its core comes late, and must make up for it.
TEST_CASE("slow_ports__an_incast_of_hosts_that_are_often_late_fills_the_port") {
  sim::Simulator simulator(config(1), star(64U << 10, 0));
  base::Prng prng(1);
  simulator.connect_all();
  simulator.run_for(kMillisecond);
  for (std::uint16_t host = 0; host < kHosts; ++host) disturb(simulator, prng, host, 2 * kMillisecond);
  std::vector<std::vector<std::byte>> tensors(kHosts, std::vector<std::byte>(1U << 20));
  incast_round(simulator, prng, 0, tensors);
  std::vector<double> times;
  for (std::uint64_t round = 1; round <= 30; ++round) times.push_back(incast_round(simulator, prng, round, tensors));
  MESSAGE("late hosts: p50 " << percentile(times, 0.5) << " ms, worst " << percentile(times, 1) << " ms");
  CHECK(percentile(times, 0.5) < 150);
  CHECK(percentile(times, 1) < 170);
}

TEST_CASE("slow_ports__a_ring_keeps_every_link_busy" * doctest::test_suite("long")) {
  // The most that p50 and p99 may be of the payload's time on the wire; headers and acknowledgements are 8.4 % of it.
  struct Case {
    Ring ring;
    double most_p50, most_p99;
  };
  const Case cases[] = {
      {{1U << 20, 0, 0}, 1.12, 1.15},
      {{1U << 20, 0.01, 0}, 1.18, 1.16},
      {{1U << 20, 0.01, 600 * kMicrosecond}, 1.26, 1.25},
      {{64U << 10, 0, 0}, 1.2, 1.25},
      {{64U << 10, 0.001, 0}, 1.2, 1.3},
      {{64U << 10, 0.001, 0, 0.1}, 1.2, 1.3},
      {{64U << 10, 0.01, 0}, 1.3, 1.45},
      {{64U << 10, 0.01, 0, 0.1}, 1.3, 1.4},
  };
  for (const Case& one : cases) {
    const std::vector<double> times = ring_rounds(one.ring);
    const double wire_ms = 1.5 * static_cast<double>(one.ring.bytes) / kPortRate * 1e3;
    MESSAGE("ring of " << one.ring.bytes / 1024 << " KiB, loss " << one.ring.loss << ", pauses up to "
                       << one.ring.pauses_ns / 1'000 << " us, p " << one.ring.loss_bound << ": p50 "
                       << percentile(times, 0.5) / wire_ms << ", p99 " << percentile(times, 0.99) / wire_ms
                       << " of the payload's " << wire_ms << " ms on the wire");
    CHECK(percentile(times, 0.5) < one.most_p50 * wire_ms);
    CHECK(percentile(times, 0.99) < one.most_p99 * wire_ms);
  }
}
