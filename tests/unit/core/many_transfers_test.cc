// Thousands of transfers at once: no order of posting stops them, no peer holds up another, none probes without
// measure.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

TEST_CASE("many__posted_in_opposite_orders_all_complete") {
  for (const std::uint32_t early : {4U, 256U}) {
    CAPTURE(early);
    SimulationConfig config;
    config.endpoint.early_transfers = early;
    Simulation network(config);
    Transfers transfers = transfers_of(network, 4'096, 64);
    for (auto& transfer : transfers) REQUIRE(transfer->post_receive() == core::PostStatus::kPosted);
    const auto posted_ns = network.now();
    for (auto at = transfers.rbegin(); at != transfers.rend(); ++at) {
      REQUIRE((*at)->post_send() == core::PostStatus::kPosted);
    }
    REQUIRE(network.run_until_completed(0, transfers.size(), 10 * kSecond));
    CHECK(network.now() - posted_ns < 200 * kMillisecond);
    for (auto& transfer : transfers) CHECK(transfer->fault() == "");
  }
}

TEST_CASE("many__to_a_rank_that_posts_nothing_hold_up_no_other") {
  SimulationConfig config;
  config.hosts = 3;
  config.endpoint.max_sends = 8'192;
  Simulation network(config);
  Transfers silent = transfers_of(network, 5'000, 64);
  for (auto& transfer : silent) REQUIRE(transfer->post_send() == core::PostStatus::kPosted);
  TransferOptions to_another;
  to_another.to = 2;
  Transfer other(network, 100'000, to_another.numbered(100'001));
  other.post();
  const auto posted_ns = network.now();
  REQUIRE(other.run());
  CHECK(other.fault() == "");
  CHECK(network.now() - posted_ns < kMillisecond);
  // 20,000 probes in a second together, whatever their number; and all learn of their receives once these are posted.
  network.run_for(kSecond);
  const auto probes = network.counter(0, Counter::k_probes_sent);
  network.run_for(kSecond);
  CHECK(network.counter(0, Counter::k_probes_sent) - probes < 21'000);
  for (auto& transfer : silent) REQUIRE(transfer->post_receive() == core::PostStatus::kPosted);
  const auto awake_ns = network.now();
  REQUIRE(network.run_until_completed(1, silent.size(), 10 * kSecond));
  CHECK(network.now() - awake_ns < kSecond);
  for (auto& transfer : silent) CHECK(transfer->fault() == "");
}

TEST_CASE("many__of_one_tag_are_matched_in_order") {
  SimulationConfig config;
  config.link.data = {.drop = 0.05, .duplicate = 0.05, .reorder = 0.2, .corrupt = 0};
  Simulation network(config);
  std::vector<std::unique_ptr<Transfer>> uses;
  for (std::size_t i = 0; i < 3'000; ++i) {
    TransferOptions options;
    options.operation = 10'000 + i;
    uses.push_back(std::make_unique<Transfer>(network, 64 + 8 * (i % 3), options));
    REQUIRE(uses.back()->post_send() == core::PostStatus::kPosted);
  }
  for (auto& use : uses) REQUIRE(use->post_receive() == core::PostStatus::kPosted);
  REQUIRE(network.run_until_completed(0, uses.size(), 20 * kSecond));
  for (auto& use : uses) CHECK(use->fault() == "");
}

// Neither datagrams nor the control connection bring an answer: the peer may be as slow as one that never speaks.
TEST_CASE("many__to_a_peer_that_does_not_reply_take_turns_to_repeat_their_probes") {
  for (const std::size_t count : {32U, 1'000U}) {
    CAPTURE(count);
    SimulationConfig config;
    Simulation network(config);
    Transfers transfers = transfers_of(network, count, 64);
    for (auto& transfer : transfers) REQUIRE(transfer->post_receive() == core::PostStatus::kPosted);
    network.every_link([](Link& link) { link.data.drop = link.control.drop = 1; });
    network.control_connections_stalled = true;
    for (auto& transfer : transfers) REQUIRE(transfer->post_send() == core::PostStatus::kPosted);
    network.run_for(kSecond);
    const auto sent = [&](Counter counter) { return network.counter(0, counter); };
    const auto probes = sent(Counter::k_probes_sent);
    const auto fallbacks = sent(Counter::k_tcp_fallback_packets_sent);
    network.run_for(kSecond);
    // Each of few every 50 ms, and 64 of many: a probe, a trailing one, and the copy over TCP.
    const std::size_t most = 21 * std::min<std::size_t>(count, 64);
    CHECK(sent(Counter::k_probes_sent) - probes <= 3 * most);
    // TCP carries them all, though the sixth of each is far.
    CHECK(sent(Counter::k_tcp_fallback_packets_sent) - fallbacks <= most);
    CHECK(sent(Counter::k_tcp_fallback_packets_sent) - fallbacks >= most * 3 / 4);
    network.every_link([](Link& link) { link.data.drop = link.control.drop = 0; });
    network.control_connections_stalled = false;
    const auto healed_ns = network.now();
    REQUIRE(network.run_until_completed(0, count, 10 * kSecond));
    CHECK(network.now() - healed_ns < 1'100 * kMillisecond);
    for (auto& transfer : transfers) CHECK(transfer->fault() == "");
  }
}
