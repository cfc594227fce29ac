// Counters of all parts of a rank, which outlive the parts.
#include "engine/counter_snapshot.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/control_opening.h"
#include "engine/hello_negotiation.h"
#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"
#include "unit/engine/still_loop.h"

using namespace mlt;
using engine_test::StillLoop;

namespace {

std::map<std::string, std::uint64_t> by_name(const std::vector<CounterValue>& values) {
  std::map<std::string, std::uint64_t> found;
  for (const CounterValue& value : values) CHECK(found.emplace(value.name, value.value).second);
  return found;
}

}  // namespace

TEST_CASE("take__keeps_the_values_of_all_sources_after_they_are_gone") {
  engine::CounterSnapshot snapshot;
  CHECK(snapshot.values().empty());
  {
    Options options;
    options.ranks = 3;
    const engine::HelloNegotiation hello(0, 3, 1'432, 1U << 20);
    const core::EndpointConfig config = engine_test::small_config();
    core::Endpoint endpoint(config);
    engine::OpenedDatapath datapath;
    auto network =
        std::make_unique<engine_test::ScriptedNetwork>(std::vector{*io::SocketAddress::from_host("127.0.0.1", 5'000)});
    datapath.network = network.get();
    datapath.outer = std::move(network);
    const auto channel = engine::open_control_channel(options, config, hello, {{.address = {}, .port = 5'000}});
    StillLoop still;
    engine::Driving driving(still, 0);
    const std::byte garbage[40]{};
    endpoint.on_datagram(1, garbage, base::Ecn::kNotEct);
    snapshot.take({endpoint, datapath, *channel, driving, 5, 6, 0, {}, 0, std::nullopt});
    CHECK(by_name(snapshot.values()).count("summation_rounds") == 0);
    snapshot.take({endpoint, datapath, *channel, driving, 7, 8, 9, {11, 12, 13}, 14, {{10, 15}}});
  }
  const auto values = by_name(snapshot.values());
  CHECK(values.at("engine_send_failures") == 7);
  CHECK(values.at("engine_loops") == 8);
  CHECK(values.at("rings_cut_by_rate") == 9);
  CHECK(values.at("checksums_compared") == 11);
  CHECK(values.at("checksums_incomplete") == 12);
  CHECK(values.at("checksums_different") == 13);
  CHECK(values.at("push_pull_workers_gone") == 14);
  CHECK(values.at("summation_rounds") == 10);
  CHECK(values.at("summation_late_pushes") == 15);
  CHECK(values.at("engine_wakes") == 0);
  std::uint64_t drops = 0;
  for (const auto& [name, value] : values) drops += name.starts_with("drop_") ? value : 0;
  CHECK(drops == 1);
}
