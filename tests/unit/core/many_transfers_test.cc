// Thousands of transfers at once: no order of posting stops them, no peer holds up another, none probes without
// measure.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;
using base::kMillisecond;
using base::kSecond;
using core::CompletionStatus;
using core::Counter;

namespace {

using Transfers = std::vector<std::unique_ptr<Transfer>>;

Transfers transfers_of(VirtualNetwork& network, std::size_t count, std::uint16_t to, std::size_t bytes,
                       core::OperationId first = 1) {
  Transfers transfers;
  for (std::size_t i = 0; i < count; ++i) {
    TransferOptions options;
    options.to = to;
    options.tag = options.operation = first + i;
    transfers.push_back(std::make_unique<Transfer>(network, bytes, options));
  }
  return transfers;
}

}  // namespace

TEST_CASE("many__posted_in_opposite_orders_all_complete") {
  for (const std::uint32_t early : {4U, 256U}) {
    CAPTURE(early);
    NetworkConfig config;
    config.endpoint.early_transfers = early;
    VirtualNetwork network(config);
    Transfers transfers = transfers_of(network, 4'096, 1, 64);
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
  NetworkConfig config;
  config.hosts = 3;
  VirtualNetwork network(config);
  Transfers silent = transfers_of(network, 5'000, 1, 64);
  for (auto& transfer : silent) REQUIRE(transfer->post_send() == core::PostStatus::kPosted);
  Transfers other = transfers_of(network, 1, 2, 100'000, 100'001);
  other.front()->post();
  const auto posted_ns = network.now();
  REQUIRE(other.front()->run());
  CHECK(other.front()->fault() == "");
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
  NetworkConfig config;
  config.link.data = {.drop = 0.05, .duplicate = 0.05, .reorder = 0.2, .corrupt = 0};
  VirtualNetwork network(config);
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
