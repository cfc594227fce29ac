// Basic transfers on a clean network: the promises that need no fault to be broken.
#include "support/transfer.h"

#include <doctest/doctest.h>

using namespace mlt;
using namespace mlt::test;

TEST_CASE("transfer__every_size_around_the_segment_grid") {
  for (const std::size_t bytes : {0UL, 4UL, 1'428UL, 1'432UL, 1'436UL, 2'864UL, 14'320UL, 100'000UL, 4'000'000UL}) {
    CAPTURE(bytes);
    Simulation network(SimulationConfig{});
    Transfer transfer(network, bytes);
    transfer.post();
    REQUIRE(transfer.run());
    CHECK(transfer.fault() == "");
    CHECK(transfer.received()->status == CompletionStatus::kComplete);
    CHECK(transfer.sent()->status == CompletionStatus::kComplete);
    CHECK(transfer.sent()->missing_bytes == 0);
    CHECK(network.counter(0, Counter::k_segments_repaired) == 0);
    CHECK(network.counter(0, Counter::k_data_packets_sent) == transfer.received()->segment_count);
  }
}

TEST_CASE("transfer__patient_loses_nothing_on_a_clean_network") {
  for (const std::uint8_t paths : {std::uint8_t{1}, std::uint8_t{4}, std::uint8_t{16}}) {
    for (const double bound : {0.01, 0.5, 0.99}) {
      for (const std::size_t bytes : {4'000UL, 64'000UL, 1'000'000UL}) {
        CAPTURE(int{paths});
        CAPTURE(bound);
        CAPTURE(bytes);
        SimulationConfig config;
        config.endpoint.paths = paths;
        Simulation network(config);
        TransferOptions options;
        options.loss_bound = bound;
        Transfer transfer(network, bytes, options);
        transfer.post();
        REQUIRE(transfer.run());
        CHECK(transfer.fault() == "");
        CHECK(transfer.received()->status == CompletionStatus::kComplete);
      }
    }
  }
}

TEST_CASE("transfer__an_empty_tensor_is_complete_even_if_its_packet_was_lost") {
  Simulation network(SimulationConfig{});
  network.link(0, 1).data.drop = 1.0;
  Transfer transfer(network, 0);
  transfer.post();
  REQUIRE(transfer.run());
  CHECK(transfer.received()->status == CompletionStatus::kComplete);
  CHECK(transfer.sent()->status == CompletionStatus::kComplete);
}
