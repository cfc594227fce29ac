// Times of tensors one after another between two simulated hosts, over a link that loses data.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/prng.h"
#include "sim/scenarios/stream.h"
#include "sim/scenarios/times.h"

namespace mlt::test {

struct Tensors {
  std::size_t bytes = 1U << 20;
  double loss_bound = 0;
  bool erasure_correction = false;
  double loss = 0.01;
  double reply_loss = 0;
  double rate = 1.25e8;
  base::DurationNs round_trip_ns = base::kMillisecond;
  base::DurationNs jitter_ns = 0;
  int warm_up = 10;  // tensors that are not timed: they open the window, and measure the loss
  int operations = 300;
  std::uint64_t seed = 1;
};

struct TensorTimes : Times {  // until the receive has completed
  double missing = 0;         // of all that was received
  double parity_share = 0;    // parity packets to data packets
  std::uint64_t parity_packets = 0;
  std::uint64_t segments_restored = 0;
  std::uint64_t data_packets = 0;
};

inline constexpr std::uint32_t kTensorSegmentBytes = 1'432;

// Serialisation of its packets, and half a round trip.
inline double ideal_ns(const Tensors& what) {
  const double packets = std::ceil(static_cast<double>(what.bytes) / kTensorSegmentBytes);
  const double bytes = static_cast<double>(what.bytes) + packets * (MLT_DATA_HEADER_BYTES + sim::kOverheadBytes);
  return bytes / what.rate * 1e9 + static_cast<double>(what.round_trip_ns) / 2;
}

inline TensorTimes time_tensors(const Tensors& what) {
  sim::Fabric network = fabric(what.rate, sim::kUnlimited);
  network.host_link.propagation_ns = what.round_trip_ns / 4;
  sim::Topology topology = sim::star(2, network);
  sim::Link& lossy = topology.edges[topology.edge(0, 2)].link;
  lossy.data.drop = what.loss;
  lossy.jitter_ns = what.jitter_ns;
  topology.edges[topology.edge(1, 2)].link.control.drop = what.reply_loss;
  sim::SimulatorConfig config = configured(what.rate);
  config.seed = what.seed;
  config.host.endpoint.erasure_correction = what.erasure_correction;
  sim::Simulator simulator(config, topology);
  base::TimeNs received_ns = 0;
  std::uint64_t missing = 0;
  int ended = 0;
  std::vector<std::byte> from(what.bytes), to(what.bytes);
  simulator.on_completion = [&](std::uint16_t, const core::Completion& completion) {
    MLT_CHECK(!core::is_failure(completion.status));
    ++ended;
    if (completion.kind != core::CompletionKind::kReceive) return;
    received_ns = simulator.now();
    missing += completion.missing_bytes;
  };
  simulator.connect_all();
  simulator.run_for(10 * base::kMillisecond + 2 * what.round_trip_ns);
  TensorTimes times;
  base::Prng prng(what.seed);
  for (int i = 1; i <= what.warm_up + what.operations; ++i) {
    for (std::size_t at = 0; at + 8 <= what.bytes; at += 512) base::store_le64(from.data() + at, prng.next());
    core::ReceiveRequest receive;
    receive.operation = static_cast<core::OperationId>(i);
    receive.data = to;
    receive.element = wire::ElementType::kFloat32;
    receive.loss_bound = what.loss_bound;
    core::SendRequest send;
    send.operation = receive.operation;
    send.peer = 1;
    send.data = from;
    send.element = wire::ElementType::kFloat32;
    send.may_have_parity = true;
    const base::TimeNs start = simulator.now();
    MLT_CHECK(simulator.receive(1, receive) == core::PostStatus::kPosted);
    MLT_CHECK(simulator.send(0, send) == core::PostStatus::kPosted);
    MLT_CHECK(simulator.run_until([&] { return ended == 2 * i; }, 60 * base::kSecond));
    if (i > what.warm_up) times.ns.push_back(static_cast<double>(received_ns - start));
    if (what.loss_bound == 0) MLT_CHECK(from == to);
    simulator.run_for(base::kMillisecond);
  }
  std::ranges::sort(times.ns);
  times.missing = static_cast<double>(missing) / static_cast<double>(what.bytes) / (what.warm_up + what.operations);
  const core::Counters& sent = simulator.endpoint(0).counters();
  times.parity_packets = sent.value(core::Counter::k_parity_packets_sent);
  times.data_packets = sent.value(core::Counter::k_data_packets_sent);
  times.parity_share = static_cast<double>(times.parity_packets) / static_cast<double>(times.data_packets);
  times.segments_restored = simulator.endpoint(1).counters().value(core::Counter::k_segments_restored);
  return times;
}

}  // namespace mlt::test
