// State of the paths to a peer: addresses at any time, the rest from the endpoint and the datapath.
#include "engine/path_report.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "unit/engine/scripted_network.h"
#include "unit/engine/small_endpoint.h"

using namespace mlt;

TEST_CASE("path_report__addresses_outlive_the_datapath_and_fill_adds_the_counts_of_each_path") {
  core::EndpointConfig config = engine_test::small_config();
  config.paths = 2;
  core::Endpoint endpoint(config);
  auto network = std::make_unique<engine_test::ScriptedNetwork>(std::vector{
      *io::SocketAddress::from_host("127.0.0.1", 5'000), *io::SocketAddress::from_host("127.0.0.2", 6'000)});
  engine::OpenedDatapath datapath;
  datapath.network = network.get();
  datapath.outer = std::move(network);
  const engine::PathReport report(endpoint, datapath);
  endpoint.on_control(1, engine_test::peer_up(1));

  std::vector<PathStatus> up = report.addresses();
  report.fill(1, up);
  REQUIRE(up.size() == 2);
  CHECK(up[0].runs_sent == 10);
  CHECK(up[1].runs_sent == 11);
  CHECK(up[1].runs_failed == 1);
  CHECK(up[0].share == doctest::Approx(0.5));
  CHECK(up[1].share == doctest::Approx(0.5));

  datapath = {};
  const std::vector<PathStatus> alone = report.addresses();
  REQUIRE(alone.size() == 2);
  CHECK(alone[0].path == 0);
  CHECK(alone[1].path == 1);
  CHECK(alone[0].local == "127.0.0.1:5000");
  CHECK(alone[1].local == "127.0.0.2:6000");
  CHECK(alone[1].share == 0);
  CHECK(report.udp_port() == 5'000);
}
