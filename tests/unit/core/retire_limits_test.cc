// What could go wrong for good when tags are forgotten (PROTOCOL 5.2.6 to 5.2.10): numbers that wrap, tables that fill,
// a peer that says what is not so.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "base/prng.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

SimulationConfig eager(std::uint32_t retire_after) {
  SimulationConfig config;
  config.endpoint.retire_after = retire_after;
  return config;
}

struct RetireLimitsWorld {
  explicit RetireLimitsWorld(const SimulationConfig& config) : network(config) {}

  Transfer& make(std::uint64_t tag, std::size_t bytes = 64, std::uint16_t to = 1) {
    TransferOptions options;
    options.tag = tag;
    options.to = to;
    options.operation = ++operations;
    options.send_timeout_ns = options.receive_timeout_ns = timeout_ns;
    transfers.push_back(std::make_unique<Transfer>(network, bytes, options));
    return *transfers.back();
  }
  // From its posts to its end.
  void use(std::uint64_t tag, std::uint16_t to = 1) {
    Transfer& transfer = make(tag, 64, to);
    transfer.post();
    REQUIRE(transfer.run(kSecond));
    REQUIRE(transfer.fault() == "");
    REQUIRE_FALSE(core::is_failure(transfer.sent()->status));
    transfers.pop_back();
  }
  // As host 0 would say it to host 1.
  void retire(std::uint32_t floor, const std::vector<std::uint64_t>& kept, bool last = true) {
    wire::Retire message;
    message.prefix.type = wire::PacketType::kRetire;
    message.prefix.flags = last ? MLT_RETIRE_FLAG_LAST : 0;
    message.prefix.cookie = network.cookie(0, 1);
    message.floor = floor;
    message.kept_count = static_cast<std::uint32_t>(kept.size());
    std::copy(kept.begin(), kept.end(), message.kept.begin());
    std::vector<std::byte> bytes(wire::kMaxControlBytes);
    bytes.resize(wire::encode_retire(message, bytes.data()));
    network.message(1, 0, bytes);
  }

  Simulation network;
  base::DurationNs timeout_ns = 0;
  core::OperationId operations = 0;
  std::vector<std::unique_ptr<Transfer>> transfers;
};

}  // namespace

// 2^32 generations are 16,384 retirements. A send may wait through all of them, and its tag be used again afterwards.
TEST_CASE("retire__a_tag_in_use_outlives_the_wrap_of_the_floor") {
  RetireLimitsWorld world(eager(1));
  world.timeout_ns = 100'000 * kSecond;
  Transfer& waiting = world.make(7, 5'000);
  REQUIRE(waiting.post_send() == PostStatus::kPosted);
  for (std::uint64_t i = 0; i < 18'000; ++i) {
    CAPTURE(i);
    world.use(1'000 + i);
  }
  CHECK(world.network.counter(1, Counter::k_retirements_received) > 16'384);
  CHECK(world.network.counter(1, Counter::k_stale_control) == 0);
  REQUIRE(waiting.post_receive() == PostStatus::kPosted);
  REQUIRE(waiting.run(10 * kSecond));
  CHECK(waiting.fault() == "");
  for (std::uint64_t i = 0; i < 20; ++i) {
    world.use(7);
    world.use(100'000 + i);
  }
}

// 8,192 retirements bring the floor so far from a tag that waited through them that its numbers seem to lie beyond the
// floor. Forgotten then, it would move the floor by more than half the circle, which the receiver takes for older.
TEST_CASE("retire__a_tag_that_waited_for_half_the_circle_is_kept") {
  RetireLimitsWorld world(eager(1));
  world.timeout_ns = 100'000 * kSecond;
  std::vector<Transfer*> waiting;
  for (std::uint64_t tag = 0; tag < 8; ++tag) {
    waiting.push_back(&world.make(tag));
    REQUIRE(waiting.back()->post_send() == PostStatus::kPosted);
  }
  std::uint64_t next = 1'000;
  while (world.network.counter(0, Counter::k_retirements_sent) < 8'188) world.use(next++);
  for (std::uint64_t tag = 0; tag < waiting.size(); ++tag) {
    CAPTURE(tag);
    REQUIRE(waiting[tag]->post_receive() == PostStatus::kPosted);
    REQUIRE(waiting[tag]->run(kSecond));
    CHECK(waiting[tag]->fault() == "");
    world.use(next++);
    world.use(tag);
  }
  CHECK(world.network.counter(0, Counter::k_retirements_sent) > 8'194);
  CHECK(world.network.counter(1, Counter::k_stale_control) == 0);
}

// A tag that is used so often between two retirements that no floor lies beyond it.
TEST_CASE("is_far__is_symmetric_and_false_for_generations_that_can_be_compared") {
  for (const std::uint32_t base : {0U, 5U, 0x8000'0000U, 0xFFFF'FFF0U}) {
    CHECK_FALSE(core::is_far(base, base));
    CHECK_FALSE(core::is_far(base + core::kFarGenerations - 1, base));
    CHECK_FALSE(core::is_far(base, base + core::kFarGenerations - 1));
    CHECK(core::is_far(base + core::kFarGenerations, base));
    CHECK(core::is_far(base, base + core::kFarGenerations));
    CHECK(core::is_far(base + 0x8000'0000U, base));
  }
}

// Batches of which more wait than may be listed when the table's share of new tags is reached: forgotten when they end.
TEST_CASE("retire__deferred_while_too_much_is_unknown_happens_when_that_ends") {
  SimulationConfig config = eager(16'384);
  config.endpoint.max_tags = 64;
  config.endpoint.unknown_tags = 4;
  RetireLimitsWorld world(config);
  for (std::uint64_t batch = 0; batch < 200; ++batch) {
    CAPTURE(batch);
    const std::uint64_t sends = 1 + batch * 7 % 32;
    std::vector<Transfer*> posted;
    for (std::uint64_t i = 0; i < sends; ++i) {
      posted.push_back(&world.make(1'000 * (batch + 1) + i));
      REQUIRE(posted.back()->post_send() == PostStatus::kPosted);
    }
    world.network.run_for(kMillisecond);
    for (Transfer* each : posted) REQUIRE(each->post_receive() == PostStatus::kPosted);
    for (Transfer* each : posted) {
      REQUIRE(each->run(kSecond));
      REQUIRE(each->fault() == "");
    }
    world.network.run_for(kMillisecond);
  }
  CHECK(world.network.counter(0, Counter::k_retirements_sent) > 20);
}

TEST_CASE("on_retire__of_a_floor_that_is_not_newer_changes_nothing") {
  RetireLimitsWorld world(eager(4));
  for (std::uint64_t tag = 1; tag <= 20; ++tag) world.use(tag);
  const std::uint64_t received = world.network.counter(1, Counter::k_retirements_received);
  REQUIRE(received > 2);
  const std::uint32_t now = static_cast<std::uint32_t>(received) * core::kGenerationGap;
  std::uint64_t stale = 0;
  for (const std::uint32_t floor : {0U, 1U, core::kGenerationGap, now - 5, now}) {
    world.retire(floor, {});
    world.retire(floor, {1, 2, 20}, false);
    CHECK(world.network.counter(1, Counter::k_stale_control) == (stale += 2));
  }
  for (std::uint64_t tag = 1; tag <= 40; ++tag) world.use(tag);
}

// Only its own transfers suffer; all of them end; others' continue; nothing is written where it should not be.
TEST_CASE("on_retire__of_a_peer_that_forgets_tags_in_use_affects_no_other_peer") {
  std::size_t failed = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    base::Prng prng(seed);
    SimulationConfig config = eager(1 + static_cast<std::uint32_t>(prng.below(4)));
    config.seed = seed;
    config.hosts = 3;
    config.endpoint.max_tags = 64;
    config.endpoint.unknown_tags = 3;
    config.link.data.duplicate = config.link.data.reorder = 0.3;
    RetireLimitsWorld world(config);
    world.timeout_ns = 2 * kSecond;
    std::vector<Transfer*> spoilt;
    for (int step = 0; step < 60; ++step) {
      Transfer& transfer = world.make(1 + prng.below(6), 8 + 8 * prng.below(900));
      if (prng.chance(0.5)) {
        REQUIRE(transfer.post_receive() == PostStatus::kPosted);
        (void)transfer.post_send();
      } else {
        (void)transfer.post_send();
        REQUIRE(transfer.post_receive() == PostStatus::kPosted);
      }
      spoilt.push_back(&transfer);
      world.network.run_for(static_cast<base::DurationNs>(prng.below(200'000)));
      std::vector<std::uint64_t> kept;
      for (std::uint64_t count = prng.below(9); count > 0; --count) kept.push_back(1 + prng.below(50));
      const auto floor = static_cast<std::uint32_t>(prng.chance(0.5) ? prng.below(8) : prng.next());
      if (prng.chance(0.7)) world.retire(floor, kept, prng.chance(0.7));
      if (step % 10 == 9) world.use(100 + prng.below(1'000), 2);
    }
    world.network.run_for(10 * kSecond);
    for (Transfer* each : spoilt) {
      REQUIRE(each->received() != nullptr);
      REQUIRE(each->buffer().intact());
      failed += core::is_failure(each->received()->status) ? 1U : 0U;
    }
    CHECK(world.network.endpoint(1).usage().receives.used == 0);
  }
  CHECK(failed > 100);
}

// STOP has come: what was sent early stands in the peer's buffer no longer, though ABORT is not answered yet (6.4.4).
TEST_CASE("on_stop__unseen_gives_the_early_share_back_at_once") {
  SimulationConfig config = eager(0);
  config.endpoint.early_transfers = config.endpoint.early_segments = 1;
  config.control_delay_ns = 100 * kMillisecond;
  RetireLimitsWorld world(config);
  Transfer& first = world.make(1);
  world.network.drop_if = [](const Flight& f) { return f.from == 0 && !f.by_control_connection; };
  REQUIRE(first.post_send() == PostStatus::kPosted);
  world.network.run_for(100 * base::kMicrosecond);
  REQUIRE(first.post_receive() == PostStatus::kPosted);
  world.network.cancel(1, first.options().operation, core::CompletionKind::kReceive);
  world.network.drop_if = nullptr;
  REQUIRE(world.network.run_until([&] { return first.sent() != nullptr; }, 10 * kMillisecond));
  Transfer& second = world.make(2);
  REQUIRE(second.post_send() == PostStatus::kPosted);
  world.network.run_for(5 * kMillisecond);
  CHECK(world.network.counter(1, Counter::k_early_segments_kept) == 1);
  REQUIRE(second.post_receive() == PostStatus::kPosted);
  REQUIRE(second.run(10 * kMillisecond));
  CHECK(second.fault() == "");
}

// Both sides begin anew with the connection.
TEST_CASE("retire__a_new_connection_counts_from_zero") {
  RetireLimitsWorld world(eager(2));
  for (int life = 0; life < 5; ++life) {
    CAPTURE(life);
    for (std::uint64_t tag = 1; tag <= 20; ++tag) world.use(tag % 7);
    Transfer& broken = world.make(3);
    REQUIRE(broken.post_send() == PostStatus::kPosted);
    world.network.disconnect(0, 1);
    world.network.run_for(kMillisecond);
    REQUIRE(broken.sent() != nullptr);
    world.network.connect(0, 1);
    world.network.run_for(kMillisecond);
  }
  for (std::uint64_t tag = 1; tag <= 20; ++tag) world.use(tag % 7);
}
