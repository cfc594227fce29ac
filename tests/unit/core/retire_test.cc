// Tags that are not in use are forgotten (PROTOCOL 5.2): whatever the network delays and repeats, and whichever side
// aborts, the k-th send of a tag meets the k-th receive, and nothing old is taken for new.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

struct Use {
  std::unique_ptr<Transfer> transfer;
  bool aborted = false;  // by either side, or a deadline was set
};

// Transfers of a few tags, again and again, one way between two hosts. Sends and receives of a tag are posted in the
// same order, but each side in its own time: either may run ahead.
struct RetireModel {
  RetireModel(std::uint64_t seed, SimulationConfig config) : prng(seed), network(config) {}

  // One step: a post at one side or the other, or an abort.
  void step() {
    network.run_for(static_cast<base::DurationNs>(prng.below(static_cast<std::uint64_t>(pause_ns))));
    const std::uint64_t tag = 1 + prng.below(tags);
    const bool send = prng.chance(0.5);
    std::vector<Use>& uses = by_tag[tag];
    std::size_t& next = send ? sent[tag] : received[tag];
    const std::size_t other = send ? received[tag] : sent[tag];
    if (next > other + ahead) return;
    while (uses.size() <= next) uses.push_back(make(tag));
    Use& use = uses[next++];
    REQUIRE((send ? use.transfer->post_send() : use.transfer->post_receive()) == PostStatus::kPosted);
    if (prng.chance(abort_chance)) {
      use.aborted = true;
      if (prng.chance(0.5)) network.run_for(static_cast<base::DurationNs>(prng.below(kMillisecond)));
      network.cancel(send ? 0 : 1, use.transfer->options().operation,
                     send ? core::CompletionKind::kSend : core::CompletionKind::kReceive);
    }
  }

  Use make(std::uint64_t tag) {
    TransferOptions options;
    options.tag = tag;
    options.operation = ++operations;
    options.loss_bound = prng.chance(0.3) ? 0.2 : 0.0;
    const bool hurries = prng.chance(abort_chance);
    if (hurries) options.deadline_ns = static_cast<base::DurationNs>(1 + prng.below(5 * kMillisecond));
    // Sizes differ: to meet another's use of the tag is an error of its own, beside the contents.
    return {std::make_unique<Transfer>(network, 8 * (1 + prng.below(600)), options), hurries};
  }

  // The other side of everything that was posted.
  void post_the_rest() {
    for (auto& [tag, uses] : by_tag) {
      for (std::size_t i = sent[tag]; i < uses.size(); ++i)
        REQUIRE(uses[i].transfer->post_send() == PostStatus::kPosted);
      for (std::size_t i = received[tag]; i < uses.size(); ++i) {
        REQUIRE(uses[i].transfer->post_receive() == PostStatus::kPosted);
      }
      sent[tag] = received[tag] = uses.size();
    }
  }

  void check_ends() {
    for (auto& [tag, uses] : by_tag) {
      for (std::size_t k = 0; k < uses.size(); ++k) {
        CAPTURE(tag);
        CAPTURE(k);
        const Transfer& transfer = *uses[k].transfer;
        REQUIRE(transfer.sent() != nullptr);
        REQUIRE(transfer.received() != nullptr);
        for (const Completed* end : {transfer.sent(), transfer.received()}) {
          REQUIRE(end->status != CompletionStatus::kSizeMismatch);
          REQUIRE(end->status != CompletionStatus::kTimedOut);
          // Only an aborted transfer ends without success: its own use, never another of the tag.
          if (!uses[k].aborted) REQUIRE_FALSE(core::is_failure(end->status));
        }
        if (!core::is_failure(transfer.received()->status)) REQUIRE(transfer.fault() == "");
        ++checked;
      }
    }
    // What came late of forgotten tags takes no room: it would stay for ever.
    CHECK(network.endpoint(1).usage().early_segments.used == 0);
    CHECK_FALSE(network.endpoint(1).has_early());
    CHECK(network.endpoint(0).usage().sends.used == 0);
  }

  base::Prng prng;
  Simulation network;
  std::uint64_t tags = 6;
  std::size_t ahead = 3;  // posts by which one side may lead
  double abort_chance = 0.1;
  base::DurationNs pause_ns = 2 * kMillisecond;
  std::map<std::uint64_t, std::vector<Use>> by_tag;
  std::map<std::uint64_t, std::size_t> sent, received;
  core::OperationId operations = 0;
  std::size_t checked = 0;
};

SimulationConfig eager(std::uint64_t seed, std::uint32_t retire_after) {
  SimulationConfig config;
  config.seed = seed;
  config.endpoint.retire_after = retire_after;
  config.endpoint.operation_timeout_ns = 100 * kSecond;
  return config;
}

}  // namespace

// Packets and answers are repeated, and come late by much more than it takes to forget a tag and use it again.
TEST_CASE("retire__nothing_old_is_taken_for_new_and_the_kth_send_matches_the_kth_receive" *
          doctest::test_suite("long")) {
  std::uint64_t retirements = 0;
  std::uint64_t stale = 0;
  std::size_t checked = 0;
  for (std::uint64_t seed = 1; seed <= 160; ++seed) {
    CAPTURE(seed);
    base::Prng prng(seed * 77);
    SimulationConfig config = eager(seed, 1U + static_cast<std::uint32_t>(prng.below(3)));
    config.endpoint.paths = static_cast<std::uint8_t>(1 + prng.below(3));
    config.endpoint.unknown_tags = 1U + static_cast<std::uint32_t>(prng.below(8));
    config.endpoint.early_transfers = 1U + static_cast<std::uint32_t>(prng.below(8));
    config.link.data = {
        .drop = 0.1 * prng.uniform(), .duplicate = 0.5 * prng.uniform(), .reorder = 0.5 * prng.uniform(), .corrupt = 0};
    config.link.control = config.link.data;
    config.link.reorder_ns = prng.chance(0.5) ? 300 * kMillisecond : 5 * kMillisecond;
    config.control_delay_ns = prng.chance(0.3) ? 20 * kMillisecond : 100 * kMicrosecond;
    RetireModel model(seed, config);
    model.tags = 1 + prng.below(60);
    model.ahead = prng.below(6);
    model.abort_chance = prng.chance(0.5) ? 0.15 : 0.0;
    for (int step = 0; step < 1'000; ++step) model.step();
    model.post_the_rest();
    model.network.run_for(60 * kSecond);
    model.check_ends();
    retirements += model.network.counter(1, Counter::k_retirements_received);
    stale += model.network.counter(1, Counter::k_stale_packets);
    checked += model.checked;
  }
  CHECK(checked > 32'000);
  CHECK(retirements > 3'200);
  CHECK(stale > 4'000);
}

// A tag per message: the tables stay as small as what is in use.
TEST_CASE("retire__a_tag_for_every_message_never_fills_the_table") {
  SimulationConfig config = eager(1, 16'384);
  config.endpoint.max_tags = 64;
  Simulation network(config);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    Transfer transfer(network, 64, TransferOptions{}.numbered(i + 1));
    REQUIRE(transfer.post_send() == PostStatus::kPosted);
    REQUIRE(transfer.post_receive() == PostStatus::kPosted);
    REQUIRE(transfer.run(kSecond));
    REQUIRE(transfer.fault() == "");
  }
  CHECK(network.counter(0, Counter::k_retirements_sent) > 500);
}

// A tag that was used so often that the gap alone would not reach beyond it.
TEST_CASE("retire__the_floor_lies_beyond_every_generation_that_is_forgotten") {
  Simulation network(eager(1, 3));
  std::vector<std::uint32_t> floors;
  network.on_delivery = [&](std::uint16_t to, const Flight& flight) {
    wire::Prefix prefix;
    wire::Retire retire;
    if (to != 1 || wire::decode_prefix(flight.bytes, prefix) != wire::DropReason::kNone) return;
    if (prefix.type != wire::PacketType::kRetire) return;
    REQUIRE(wire::decode_retire(flight.bytes, prefix, retire) == wire::DropReason::kNone);
    floors.push_back(retire.floor);
  };
  const auto use = [&](std::uint64_t tag, int times) {
    for (int i = 0; i < times; ++i) {
      TransferOptions options;
      options.tag = tag;
      options.operation = network.endpoint(0).counters().value(Counter::k_sends_completed) + 1;
      Transfer transfer(network, 64, options);
      transfer.post();
      REQUIRE(transfer.run(kSecond));
      REQUIRE(transfer.fault() == "");
    }
  };
  use(1, 1'000);
  for (const std::uint64_t tag : {2U, 3U, 4U}) use(tag, 1);
  REQUIRE(floors.size() == 1);
  CHECK(floors[0] == 1'000 + core::kGenerationGap);
  use(1, 10);
  for (const std::uint64_t tag : {2U, 3U, 4U}) use(tag, 1);
  REQUIRE(floors.size() >= 2);
  CHECK(floors.back() >= floors[0] + 10 + core::kGenerationGap);
}

// Sends whose receives are never posted stay in use: their tags are kept, however many retirements pass by.
TEST_CASE("retire__keeps_what_is_in_use") {
  Simulation network(eager(1, 2));
  const Transfers waiting = transfers_of(network, 10, 5'000);
  for (const auto& transfer : waiting) REQUIRE(transfer->post_send() == PostStatus::kPosted);
  for (std::uint64_t i = 0; i < 500; ++i) {
    Transfer transfer(network, 64, TransferOptions{}.numbered(1'000 + i));
    transfer.post();
    REQUIRE(transfer.run(kSecond));
    REQUIRE(transfer.fault() == "");
  }
  CHECK(network.counter(0, Counter::k_retirements_sent) > 20);
  for (auto& transfer : waiting) REQUIRE(transfer->post_receive() == PostStatus::kPosted);
  for (auto& transfer : waiting) {
    REQUIRE(transfer->run(kSecond));
    CHECK(transfer->fault() == "");
  }
}

// The receive was cancelled before anything of its send came, and the tag forgotten: the next send must not meet the
// cancelled receive.
TEST_CASE("retire__counts_a_receive_that_ended_unseen_with_its_own_send") {
  Simulation network(eager(1, 1));
  Transfer first(network, 64, TransferOptions{}.numbered(7));
  network.every_link([](Link& link) { link.data.drop = link.control.drop = 1; });
  REQUIRE(first.post_send() == PostStatus::kPosted);
  REQUIRE(first.post_receive() == PostStatus::kPosted);
  network.every_link([](Link& link) { link.control.drop = 0; });
  network.cancel(1, 7, core::CompletionKind::kReceive);
  network.run_for(10 * kMillisecond);
  REQUIRE(first.sent() != nullptr);
  network.every_link([](Link& link) { link.data.drop = 0; });
  for (std::uint64_t i = 0; i < 10; ++i) {  // tag 7 is forgotten
    Transfer transfer(network, 64, TransferOptions{}.numbered(100 + i));
    transfer.post();
    REQUIRE(transfer.run(kSecond));
  }
  TransferOptions options;
  options.tag = 7;
  options.operation = 8;
  Transfer second(network, 128, options);
  second.post();
  REQUIRE(second.run(kSecond));
  CHECK(second.fault() == "");
}
