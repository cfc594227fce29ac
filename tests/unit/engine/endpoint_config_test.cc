// Settings of the core's endpoint from the options and the datapath.
#include "engine/endpoint_config.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "unit/engine/scripted_network.h"
#include "wire/packet.h"

using namespace mlt;

TEST_CASE("dscp_map__repeats_the_last_class_beyond_the_configured_ones") {
  Options options;
  options.control_dscp = 48;
  CHECK(engine::dscp_map(options).data == core::DscpMap{}.data);
  CHECK(engine::dscp_map(options).control == 48);
  options.data_dscp = {10, 12, 14};
  const core::DscpMap map = engine::dscp_map(options);
  CHECK(map.data_classes == 3);
  CHECK(map.data[0] == 10);
  CHECK(map.data[2] == 14);
  CHECK(map.data[7] == 14);
}

TEST_CASE("endpoint_config__leaves_room_for_operations_of_collectives_and_takes_paths_from_the_datapath") {
  const io::SocketAddress address = *io::SocketAddress::from_host("127.0.0.1", 5'000);
  auto network = std::make_unique<engine_test::ScriptedNetwork>(std::vector{address, address});
  network->capabilities_.max_run_bytes = 60'000;
  network->capabilities_.max_datagram_bytes = 1'472;
  engine::OpenedDatapath datapath;
  datapath.network = network.get();
  datapath.outer = std::move(network);
  Options options;
  options.rank = 2;
  options.ranks = 5;
  options.max_operations = 100;
  options.max_tags = 99;
  options.erasure_correction = true;
  options.line_rate_bits_per_second = 8e9;
  const core::EndpointConfig config = engine::endpoint_config(options, datapath);
  CHECK(config.rank == 2);
  CHECK(config.peers == 5);
  CHECK(config.paths == 2);
  CHECK(config.max_sends == 100 + engine::kSpareOperations);
  CHECK(config.max_receives == 100 + engine::kSpareOperations);
  CHECK(config.max_tags == 99);
  CHECK(config.erasure_correction);
  CHECK(config.timely.line_rate_bytes_per_second == doctest::Approx(1e9));
  CHECK(config.timely.packet_bytes == (1'472 - MLT_DATA_HEADER_BYTES) / 8 * 8 + MLT_DATA_HEADER_BYTES);
  CHECK(config.timely.run_bytes == 60'000);
  CHECK(config.timely.low_offset_ns == core::TimelyConfig{}.low_offset_ns + 50 * base::kMicrosecond);
  CHECK(config.max_segment_bytes == core::EndpointConfig{}.max_segment_bytes);  // no shared memory
  CHECK(config.pairs);
  options.shares_by_rate = true;
  CHECK_FALSE(engine::endpoint_config(options, datapath).pairs);
}
