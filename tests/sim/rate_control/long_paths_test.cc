// One large tensor over an empty path, from a rack to the other side of the world: its time against the ideal, which is
// its serialisation and half a round trip. The peer offers the window of a default socket buffer, 2.8 MB.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "sim/simulator.h"
#include "support/small_tables.h"

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;

constexpr std::uint32_t kSegment = 1'432;
constexpr std::uint32_t kOfferedWindow = 2'796'202;

struct Path {
  double rate = 0;  // bytes per second
  base::DurationNs rtt_ns = 0;
  double loss = 0;
  double loss_bound = 0;
  std::uint32_t early_segments = 0;  // 0: the default
  std::uint64_t seed = 1;
};

struct Shares {
  double cold = 0;  // the first tensor of a connection
  double warm = 0;  // the fourth
};

Shares shares(const Path& path, std::uint32_t bytes) {
  sim::Fabric fabric;
  fabric.host_link.rate_bytes_per_second = path.rate;
  fabric.host_link.propagation_ns = path.rtt_ns / 4;
  fabric.port = sim::uniform_port({}, sim::kUnlimited, sim::kUnlimited);
  sim::Topology topology = sim::star(2, fabric);
  topology.edges[topology.edge(2, 1)].link.data.drop = path.loss;
  sim::SimulatorConfig config;
  config.seed = path.seed;
  config.segment_bytes = kSegment;
  config.window_bytes = kOfferedWindow;
  config.host.socket_buffer_bytes = 3 * kOfferedWindow;
  config.host.endpoint = test::small_tables(config.host.endpoint);
  config.host.endpoint.timely.line_rate_bytes_per_second = path.rate;
  config.host.endpoint.timely.packet_bytes = kSegment + MLT_DATA_HEADER_BYTES + sim::kOverheadBytes;
  if (path.early_segments > 0) config.host.endpoint.early_segments = path.early_segments;
  sim::Simulator simulator(config, topology);
  base::TimeNs received_ns = 0;
  int ended = 0;
  simulator.on_completion = [&](std::uint16_t, const core::Completion& completion) {
    if (core::is_failure(completion.status)) simulator.fail("a transfer failed");
    if (completion.kind == core::CompletionKind::kReceive) received_ns = simulator.now();
    ++ended;
  };
  simulator.connect_all();
  simulator.run_for(kMillisecond);
  const std::uint64_t packets = (bytes + kSegment - 1) / kSegment;
  const double wire_bytes = static_cast<double>(bytes + packets * (MLT_DATA_HEADER_BYTES + sim::kOverheadBytes));
  const double ideal_ns = wire_bytes / path.rate * 1e9 + static_cast<double>(path.rtt_ns) / 2;
  std::vector<std::byte> from(bytes), to(bytes);
  Shares shares;
  for (core::OperationId i = 1; i <= 4; ++i) {
    core::ReceiveRequest receive;
    receive.operation = i;
    receive.peer = 0;
    receive.data = to;
    receive.element = wire::ElementType::kFloat32;
    receive.loss_bound = path.loss_bound;
    core::SendRequest send;
    send.operation = i;
    send.peer = 1;
    send.data = from;
    send.element = wire::ElementType::kFloat32;
    const base::TimeNs start = simulator.now();
    REQUIRE(simulator.receive(1, receive) == core::PostStatus::kPosted);
    REQUIRE(simulator.send(0, send) == core::PostStatus::kPosted);
    REQUIRE(simulator.run_until([&] { return ended == 2 * static_cast<int>(i); }, 60 * kSecond));
    REQUIRE(simulator.fault() == "");
    (i == 1 ? shares.cold : shares.warm) = ideal_ns / static_cast<double>(received_ns - start);
  }
  return shares;
}

constexpr double kGbit = 1.25e8;

void check(const Path& path, double cold, double warm) {
  const Shares measured = shares(path, 64U << 20);
  CAPTURE(path.rate / kGbit);
  CAPTURE(path.rtt_ns);
  CAPTURE(path.loss);
  CAPTURE(measured.cold);
  MESSAGE((path.rate / kGbit), " Gbit/s, ", (static_cast<double>(path.rtt_ns) * 1e-6), " ms, loss ", path.loss, ": ",
          measured.cold, " cold, ", measured.warm, " warm");
  CHECK(measured.cold >= cold);
  CHECK(measured.warm >= warm);
}

}  // namespace

TEST_CASE("long_paths__carry_64_mib_at_nearly_the_ideal") {
  check({kGbit, 100 * kMillisecond}, 0.7, 0.95);
  check({25 * kGbit, kMillisecond}, 0.95, 0.95);
  // A round trip is more than the default early segments, all of which the first packets of a transfer may use.
  check({25 * kGbit, 10 * kMillisecond}, 0.45, 0.9);
  check({25 * kGbit, 10 * kMillisecond, 0, 0, 65'536}, 0.45, 0.95);
}

TEST_CASE("long_paths__repair_what_is_missing_of_a_tensor_of_several_bitmap_chunks_in_a_round_trip") {
  check({25 * kGbit, 10 * kMillisecond, 0.001}, 0.4, 0.65);
}

TEST_CASE("long_paths__every_rate_and_round_trip" * doctest::test_suite("long")) {
  for (const double rate : {kGbit, 25 * kGbit}) {
    for (const base::DurationNs rtt : {100 * kMicrosecond, kMillisecond, 10 * kMillisecond, 100 * kMillisecond}) {
      for (const double loss : {0.0, 0.001, 0.01}) check({rate, rtt, loss, 0.1, 65'536}, 0.15, 0.95);
    }
  }
}
