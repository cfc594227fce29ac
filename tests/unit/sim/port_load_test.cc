// A load through one port, against arithmetic: bursts that do not overlap lose what does not fit, nothing else.
#include "sim/port_load.h"

#include <doctest/doctest.h>

#include <stdexcept>

using namespace mlt;
using sim::LoadClass;
using sim::PortLoad;

namespace {

constexpr std::uint64_t kPacket = 1'500;

// Bursts of 100 packets, so far apart that they do not meet, from cards that are done before the port sent one packet.
PortLoad bursts(const LoadClass& entry) {
  PortLoad load;
  load.classes = {entry};
  load.packets = 100'000;
  load.burst_packets = 100;
  load.senders = 4;
  load.packet_bytes = kPacket;
  load.nic_bytes_per_second = 1'000 * load.port_bytes_per_second;
  return load;
}

}  // namespace

TEST_CASE("run_port_load__a_full_queue_takes_its_limit_and_the_packet_in_service") {
  const auto found =
      sim::run_port_load(bursts({.limit_bytes = 40 * kPacket, .load = 0.001, .small_ratio = 0.0})).front();
  CHECK(found.offered[1] == 100'000);
  // A few bursts meet all the same.
  CHECK(static_cast<double>(found.dropped[1]) / 100'000 == doctest::Approx(0.59).epsilon(0.02));
  CHECK(found.dropped[1] >= 59'000);
}

TEST_CASE("run_port_load__above_the_threshold_small_gradients_go_and_large_are_marked") {
  const LoadClass entry{
      .threshold_bytes = 20 * kPacket, .limit_bytes = 100 * kPacket, .load = 0.001, .small_ratio = 1.0};
  const auto small = sim::run_port_load(bursts(entry)).front();
  CHECK(static_cast<double>(small.dropped[0]) / 100'000 == doctest::Approx(0.78).epsilon(0.02));
  LoadClass ect = entry;
  ect.small_ratio = 0;
  const auto large = sim::run_port_load(bursts(ect)).front();
  CHECK(static_cast<double>(large.marked) / 100'000 == doctest::Approx(0.78).epsilon(0.02));
  CHECK(large.dropped[1] < 200);
}

TEST_CASE("run_port_load__the_upper_class_loses_nothing_while_the_lower_does_and_runs_repeat") {
  PortLoad load = bursts({.limit_bytes = 200 * kPacket, .load = 0.5, .small_ratio = 0.5});
  load.classes.push_back({.limit_bytes = 200 * kPacket, .load = 1.0, .small_ratio = 0.5});
  load.burst_packets = 4;
  const auto found = sim::run_port_load(load);
  CHECK(found[0].dropped[0] + found[0].dropped[1] == 0);
  // Half of the port is left for what would fill it.
  const auto lost = static_cast<double>(found[1].dropped[0] + found[1].dropped[1]);
  CHECK(lost / static_cast<double>(found[1].offered[0] + found[1].offered[1]) == doctest::Approx(0.5).epsilon(0.1));
  const auto again = sim::run_port_load(load);
  CHECK(again[1].dropped == found[1].dropped);
  CHECK(again[0].offered == found[0].offered);
}

TEST_CASE("run_port_load__refuses_by_name") {
  const auto refused = [](auto change) {
    PortLoad load = bursts({.load = 1});
    change(load);
    CHECK_THROWS_AS(sim::run_port_load(load), std::invalid_argument);
  };
  refused([](PortLoad& load) { load.classes.clear(); });
  refused([](PortLoad& load) { load.classes.resize(9, {.load = 1}); });
  refused([](PortLoad& load) { load.classes[0].load = 0; });
  refused([](PortLoad& load) { load.classes[0].small_ratio = 2; });
  refused([](PortLoad& load) { load.burst_packets = 0; });
  refused([](PortLoad& load) { load.senders = 0; });
  refused([](PortLoad& load) { load.packet_bytes = 66; });
  refused([](PortLoad& load) { load.nic_bytes_per_second = 0; });
}
