// Paths that carry shorter packets than their interfaces: found by our own probes, named, avoided where there is
// another path, and never seen where losses, pauses or dead classes are to blame.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

// Datagrams longer than `bytes` from host 0 on `path` (all: 0xFF) vanish.
void limit(Simulation& network, std::uint32_t bytes, std::uint8_t path = 0xFF) {
  network.drop_if = [bytes, path](const Flight& flight) {
    if (flight.by_control_connection || flight.from != 0 || (path != 0xFF && flight.path != path)) return false;
    return flight.bytes.size() > bytes;
  };
}

// Slow enough for seconds of it to take little of ours.
SimulationConfig slow_network() {
  SimulationConfig config;
  config.link.rate_bytes_per_second = 2e7;
  return config;
}

std::unique_ptr<Transfer> transfer(Simulation& network, core::OperationId operation, std::size_t bytes,
                                   double loss_bound = 0) {
  TransferOptions options;
  options.loss_bound = loss_bound;
  return std::make_unique<Transfer>(network, bytes, options.numbered(operation));
}

// Keeps sending for `duration`; every transfer must complete. Returns how many did.
int stream(Simulation& network, DurationNs duration, std::size_t bytes = 400'000) {
  const base::TimeNs end = network.now() + duration;
  int done = 0;
  for (; network.now() < end; ++done) {
    const auto one = transfer(network, static_cast<core::OperationId>(network.now()), bytes);
    one->post();
    REQUIRE(one->run(100 * kSecond));
    REQUIRE(one->sent()->status == CompletionStatus::kComplete);
    REQUIRE(one->fault() == "");
  }
  return done;
}

}  // namespace

TEST_CASE("black_hole__is_found_within_a_second_and_ends_longer_sends_only") {
  struct Case {
    std::uint32_t segment, carries;
  };
  for (const Case c :
       {Case{1'432, 1'372}, {1'432, 1'471}, {1'432, 572}, {8'960, 1'472}, {8'960, 8'952}, {1'432, 300}}) {
    CAPTURE(c.segment);
    CAPTURE(c.carries);
    SimulationConfig config;
    config.segment_bytes = c.segment;
    Simulation network(config);
    limit(network, c.carries);
    const auto large = transfer(network, 1, 300'000);
    const auto small = transfer(network, 2, 200);
    large->post();
    small->post();
    REQUIRE(large->run(kSecond));
    CHECK(large->sent()->status == CompletionStatus::kPeerFailed);
    CHECK(large->received()->status == CompletionStatus::kCancelled);
    CHECK(large->received()->aborted.cause == wire::AbortCause::kPathTooSmall);
    CHECK(large->received()->aborted.path_bytes == network.endpoint(0).path_limit_bytes(1) - MLT_DATA_HEADER_BYTES);
    REQUIRE(small->run(kSecond));
    CHECK(small->sent()->status == CompletionStatus::kComplete);
    const std::uint32_t found = network.endpoint(0).path_limit_bytes(1);
    CHECK(network.counter(0, Counter::k_mtu_limits_found) == 1);
    if (c.carries < core::MtuSearch::kAlwaysCarriedBytes) {
      CHECK(found == core::MtuSearch::kAlwaysCarriedBytes);
      continue;
    }
    CHECK(found <= c.carries);
    CHECK(found + core::MtuSearch::kStepBytes > c.carries);
    // Segments that fit are sent as before.
    const auto fitting = transfer(network, 3, found - MLT_DATA_HEADER_BYTES);
    fitting->post();
    REQUIRE(fitting->run(kSecond));
    CHECK(fitting->fault() == "");
    CHECK(fitting->sent()->status == CompletionStatus::kComplete);
  }
}

TEST_CASE("black_hole__is_found_where_random_loss_hides_it" * doctest::test_suite("long")) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    SimulationConfig config;
    config.seed = seed;
    config.link.data.drop = config.link.control.drop = 0.1;
    Simulation network(config);
    limit(network, 1'372);
    const auto large = transfer(network, 1, 300'000);
    large->post();
    REQUIRE(large->run(2 * kSecond));
    CHECK(large->sent()->status == CompletionStatus::kPeerFailed);
    CHECK(network.endpoint(0).path_limit_bytes(1) <= 1'372);
  }
}

TEST_CASE("black_hole__that_opens_while_data_flows_is_found_and_one_that_closes_is_forgotten") {
  SimulationConfig config = slow_network();
  Simulation network(config);
  stream(network, 300 * kMillisecond);
  CHECK(network.counter(0, Counter::k_mtu_probes_sent) == 0);  // nothing was lost: nothing to check
  limit(network, 1'372);
  const auto large = transfer(network, 1, 300'000);
  large->post();
  REQUIRE(large->run(kSecond));
  CHECK(large->sent()->status == CompletionStatus::kPeerFailed);
  CHECK(network.endpoint(0).path_limit_bytes(1) == 1'368);
  network.run_for(3 * kSecond);
  // Still there: the next send finds out for itself.
  const auto next = transfer(network, 2, 300'000);
  next->post();
  REQUIRE(next->run(kSecond));
  CHECK(next->sent()->status == CompletionStatus::kPeerFailed);
  network.drop_if = nullptr;
  CHECK(stream(network, 300 * kMillisecond) > 0);
  CHECK(network.endpoint(0).path_limit_bytes(1) == 0);
  CHECK(network.counter(0, Counter::k_mtu_limits_gone) == 1);
}

TEST_CASE("black_hole__of_one_path_is_avoided_and_the_path_taken_again_when_it_is_gone") {
  SimulationConfig config = slow_network();
  config.endpoint.paths = 3;
  Simulation network(config);
  limit(network, 1'372, 1);
  stream(network, 2 * kSecond);
  CHECK(network.counter(0, Counter::k_mtu_limits_found) >= 1);
  CHECK(network.counter(0, Counter::k_operations_failed) == 0);
  CHECK(network.endpoint(0).path_limit_bytes(1) == 0);
  CHECK(network.endpoint(0).path_view(1, 1).narrow);
  const std::uint64_t before = network.endpoint(0).path_view(1, 1).packets_sent;
  stream(network, 400 * kMillisecond);
  // Trailing probes at most, no data.
  CHECK(network.endpoint(0).path_view(1, 1).packets_sent - before < 10);
  network.drop_if = nullptr;
  stream(network, 5 * kSecond);
  CHECK_FALSE(network.endpoint(0).path_view(1, 1).narrow);
  CHECK(network.endpoint(0).path_view(1, 1).packets_sent - before > 100);
}

TEST_CASE("black_hole__of_every_path_ends_sends_by_the_widest") {
  SimulationConfig config = slow_network();
  config.endpoint.paths = 2;
  Simulation network(config);
  network.drop_if = [](const Flight& flight) {
    if (flight.by_control_connection || flight.from != 0) return false;
    return flight.bytes.size() > (flight.path == 0 ? 1'372U : 1'200U);
  };
  const auto large = transfer(network, 1, 300'000);
  large->post();
  REQUIRE(large->run(2 * kSecond));
  CHECK(large->sent()->status == CompletionStatus::kPeerFailed);
  CHECK(network.endpoint(0).path_limit_bytes(1) == 1'368);
}

TEST_CASE("no_limit__is_seen_in_losses_however_many" * doctest::test_suite("long")) {
  for (const double drop : {0.01, 0.1, 0.3, 0.5}) {
    CAPTURE(drop);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      SimulationConfig config = slow_network();
      config.seed = seed;
      config.endpoint.paths = seed % 2 == 0 ? 1 : 3;
      config.link.data.drop = config.link.control.drop = drop;
      Simulation network(config);
      stream(network, 2 * kSecond, 100'000);
      CHECK(network.counter(0, Counter::k_mtu_probes_sent) > 0);
      CHECK(network.counter(0, Counter::k_mtu_limits_found) == 0);
      CHECK(network.counter(0, Counter::k_operations_failed) == 0);
    }
  }
}

TEST_CASE("no_limit__is_seen_where_a_network_or_a_host_stops_for_seconds") {
  for (const bool host : {false, true}) {
    CAPTURE(host);
    SimulationConfig config = slow_network();
    config.link.data.drop = config.link.control.drop = 0.05;  // so that checks run
    Simulation network(config);
    for (int i = 1; i <= 6; ++i) {
      const base::TimeNs at = network.now() + i * 700 * kMillisecond;
      if (host) {
        network.at(at, [&network, at, i] { network.pause(i % 2 == 0 ? 0 : 1, at + 600 * kMillisecond); });
      } else {
        network.at(at, [&network] { network.every_link([](Link& link) { link.propagation_ns = 3 * kSecond; }); });
        network.at(at + 5 * kMillisecond,
                   [&network] { network.every_link([](Link& link) { link.propagation_ns = 10 * kMicrosecond; }); });
      }
    }
    stream(network, 6 * kSecond, 100'000);
    CHECK(network.counter(0, Counter::k_mtu_limits_found) == 0);
    CHECK(network.counter(0, Counter::k_operations_failed) == 0);
  }
}

TEST_CASE("no_limit__is_seen_where_one_class_of_datagrams_is_dropped_for_seconds") {
  for (const bool data : {true, false}) {
    CAPTURE(data);
    SimulationConfig config = slow_network();
    Simulation network(config);
    const auto set = [&network, data](double drop) {
      network.every_link([&](Link& link) { (data ? link.data : link.control).drop = drop; });
    };
    network.at(network.now() + 100 * kMillisecond, [=] { set(1.0); });
    network.at(network.now() + 5 * kSecond, [=] { set(0.0); });
    stream(network, 6 * kSecond);
    CHECK(network.counter(0, Counter::k_mtu_limits_found) == 0);
    CHECK(network.counter(0, Counter::k_operations_failed) == 0);
  }
}

TEST_CASE("no_limit__is_seen_where_a_queue_takes_short_packets_and_not_long_ones") {
  // A slow port that is full most of the time, before probes as before data: what is long finds room least.
  SimulationConfig config = slow_network();
  config.link.rate_bytes_per_second = 2e6;
  config.queue_bytes = 20'000;
  Simulation network(config);
  stream(network, 5 * kSecond, 200'000);
  CHECK(network.counter(0, Counter::k_mtu_limits_found) == 0);
}

TEST_CASE("no_limit__is_seen_where_only_long_probes_are_dropped_and_data_arrives") {
  SimulationConfig config = slow_network();
  config.link.data.drop = 0.05;
  Simulation network(config);
  network.drop_if = [](const Flight& flight) {
    return flight.type == wire::PacketType::kMtuProbe && flight.bytes.size() > 100;
  };
  stream(network, 3 * kSecond);
  CHECK(network.counter(0, Counter::k_mtu_probes_sent) > 20);
  CHECK(network.counter(0, Counter::k_mtu_limits_found) == 0);
}

TEST_CASE("mtu_probe__gets_a_reply_that_repeats_it") {
  SimulationConfig config = slow_network();
  Simulation network(config);
  wire::MtuProbe probe;
  probe.prefix.type = wire::PacketType::kMtuProbe;
  probe.prefix.cookie = network.cookie(0, 1);
  probe.timestamp_ns = 77;
  probe.bytes = 1'000;
  std::vector<std::byte> bytes(probe.bytes);
  wire::encode_mtu_probe(probe, bytes.data());
  std::vector<wire::MtuReply> replies;
  network.on_delivery = [&](std::uint16_t to, const Flight& flight) {
    if (to != 0 || flight.type != wire::PacketType::kMtuReply) return;
    wire::Prefix prefix;
    REQUIRE(wire::decode_prefix(flight.bytes, prefix) == wire::DropReason::kNone);
    REQUIRE(wire::decode_mtu_reply(flight.bytes, prefix, replies.emplace_back()) == wire::DropReason::kNone);
  };
  network.inject(1, bytes);
  network.run_for(kMillisecond);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].timestamp_ns == 77);
  CHECK(replies[0].bytes == 1'000);
  CHECK(network.counter(1, Counter::k_mtu_probes_received) == 1);
  CHECK(network.counter(0, Counter::k_stale_control) == 1);  // it was never asked for
  // Damaged padding, a length that is not its own, the control connection.
  bytes[500] = std::byte{1};
  network.inject(1, bytes);
  CHECK(network.counter(1, Counter::k_drop_bad_cookie) == 1);
  bytes[500] = std::byte{0};
  network.inject(1, std::span(bytes).first(999));
  CHECK(network.counter(1, Counter::k_drop_bad_length) == 1);
  network.message(1, 0, bytes);
  CHECK(network.counter(1, Counter::k_drop_unknown_type) == 1);
}
