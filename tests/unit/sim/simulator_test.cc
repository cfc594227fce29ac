// The virtual driver: repeatable to the event, times by arithmetic, paths, accidents, books.
#include "sim/simulator.h"

#include <doctest/doctest.h>

#include <map>

#include "sim/oracle.h"
#include "sim/swarm.h"

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using sim::Fate;
using sim::Oracle;
using sim::Plan;
using sim::Simulator;
using sim::SimulatorConfig;

namespace {

sim::Fabric fabric() {
  sim::Fabric made;
  made.port = sim::uniform_port({}, sim::kUnlimited, sim::kUnlimited);
  return made;
}

struct Pair {
  core::OperationId send = 0;
  core::OperationId receive = 0;
};

Pair post(Oracle& oracle, std::uint16_t from, std::uint16_t to, std::uint32_t bytes, std::uint64_t tag = 1) {
  Plan receive;
  receive.host = to;
  receive.peer = from;
  receive.tag = tag;
  receive.bytes = bytes;
  Plan send = receive;
  send.host = from;
  send.peer = to;
  Pair pair;
  pair.receive = oracle.post_receive(receive);
  pair.send = oracle.post_send(send);
  return pair;
}

}  // namespace

TEST_CASE("simulator__one_packet_takes_the_sum_of_its_links") {
  SimulatorConfig config;
  sim::Fabric made = fabric();
  made.host_link.rate_bytes_per_second = 1e9;
  made.host_link.propagation_ns = 3 * kMicrosecond;
  Simulator simulator(config, sim::star(2, made));
  simulator.connect_all();
  base::TimeNs sent = 0, delivered = 0;
  simulator.trace = [&](const sim::TraceRecord& record) {
    if (record.packet == nullptr || !record.packet->is_data()) return;
    (record.kind == sim::TraceKind::kSent ? sent : delivered) = record.at_ns;
  };
  Oracle oracle(simulator, true);
  simulator.run_for(kMillisecond);
  post(oracle, 0, 1, 934 - MLT_DATA_HEADER_BYTES + 2);  // 1,002 bytes on the wire: a multiple of four in the tensor
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, kSecond));
  CHECK(delivered - sent == 2 * (1'002 + 3'000));
  CHECK(simulator.network().hops() >= 4);  // the packet and its STOP, two links each
  simulator.run_for(kSecond);
  oracle.finish();
  CHECK(simulator.fault() == "");
}

TEST_CASE("digest__tells_runs_apart_that_differ_in_what_they_delivered_alone") {
  // What is missing becomes zero, or keeps what the buffer held: no event of the run depends on it.
  int differing = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    sim::Scenario zero = sim::draw_scenario(seed);
    sim::Scenario keep = zero;
    for (sim::Exchange& exchange : zero.exchanges) exchange.receive.fill = core::Fill::kZero;
    for (sim::Exchange& exchange : keep.exchanges) exchange.receive.fill = core::Fill::kKeep;
    const sim::Verdict first = sim::run_scenario(zero);
    const sim::Verdict second = sim::run_scenario(keep);
    CHECK(first.fault == "");
    CHECK(second.fault == "");
    CHECK(first.events == second.events);
    differing += first.digest != second.digest ? 1 : 0;
  }
  CHECK(differing >= 3);  // of them some lose something within a bound
}

TEST_CASE("simulator__the_same_seed_goes_the_same_way_and_another_one_does_not") {
  const auto digest = [](std::uint64_t seed) { return sim::run_scenario(sim::draw_scenario(seed)).digest; };
  for (const std::uint64_t seed : {3U, 44U, 91U}) CHECK(digest(seed) == digest(seed));
  CHECK(digest(3) != digest(44));
}

TEST_CASE("simulator__paths_of_one_pair_part_at_the_first_fan_out") {
  for (const std::uint32_t spines : {2U, 4U}) {
    SimulatorConfig config;
    config.host.endpoint.paths = 4;
    Simulator simulator(config, sim::leaf_spine(2, spines, 1, fabric()));
    simulator.connect_all();
    Oracle oracle(simulator, true);
    simulator.run_for(kMillisecond);
    post(oracle, 0, 1, 400'000);
    REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, kSecond));
    for (std::uint32_t spine = 0; spine < spines; ++spine) {
      const std::uint32_t up = simulator.network().topology().edge(2, 4 + spine);
      std::uint64_t packets = 0;
      for (std::uint32_t q = 1; q < sim::kQueues; ++q) packets += simulator.network().port(up).counters(q).sent_packets;
      CHECK(packets > 280 / spines / 2);
    }
  }
}

TEST_CASE("simulator__a_crash_fails_the_peers_operations_and_a_new_incarnation_works") {
  Simulator simulator(SimulatorConfig{}, sim::star(2, fabric()));
  simulator.connect_all();
  Oracle oracle(simulator, false);
  simulator.run_for(kMillisecond);
  const std::uint64_t before = simulator.connection(0, 1);
  std::map<core::OperationId, core::CompletionStatus> ended;
  const auto oracle_check = simulator.on_completion;
  simulator.on_completion = [&](std::uint16_t rank, const core::Completion& completion) {
    ended[completion.operation] = completion.status;
    oracle_check(rank, completion);
  };
  const Pair lost = post(oracle, 0, 1, 4'000'000);
  simulator.run_for(100 * kMicrosecond);
  simulator.crash(1, 10 * kMillisecond);
  simulator.run_for(20 * kMillisecond);
  CHECK(ended.at(lost.send) == core::CompletionStatus::kPeerFailed);
  CHECK(ended.count(lost.receive) == 0);
  simulator.restart(1);
  simulator.connect_all();
  CHECK(simulator.connection(0, 1) != before);
  simulator.run_for(kMillisecond);
  const Pair again = post(oracle, 0, 1, 100'000);
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, kSecond));
  CHECK(ended.at(again.receive) == core::CompletionStatus::kComplete);
  simulator.run_for(kSecond);
  oracle.finish();
  CHECK(simulator.fault() == "");
  CHECK(simulator.network().ledger().packets(Fate::k_dropped_host_down) > 0);
}

TEST_CASE("simulator__a_partition_is_survived_and_its_losses_are_in_the_books") {
  Simulator simulator(SimulatorConfig{}, sim::star(3, fabric()));
  simulator.connect_all();
  Oracle oracle(simulator, false);
  simulator.run_for(kMillisecond);
  post(oracle, 0, 1, 2'000'000);
  post(oracle, 2, 1, 2'000'000);
  simulator.network().block(0, 1, true);
  simulator.at(simulator.now() + 50 * kMillisecond, [&] { simulator.network().block(0, 1, false); });
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, 5 * kSecond));
  CHECK(simulator.network().ledger().packets(Fate::k_dropped_partition) > 0);
  simulator.run_for(kSecond);
  oracle.finish();
  CHECK(simulator.fault() == "");
}

TEST_CASE("simulator__a_paused_host_loses_only_what_its_socket_cannot_hold") {
  SimulatorConfig config;
  config.host.socket_buffer_bytes = 100'000;
  Simulator simulator(config, sim::star(2, fabric()));
  simulator.connect_all();
  Oracle oracle(simulator, false);
  simulator.run_for(kMillisecond);
  post(oracle, 0, 1, 1'000'000);
  simulator.pause(1, 20 * kMillisecond);
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, 5 * kSecond));
  CHECK(simulator.network().ledger().packets(Fate::k_dropped_socket_buffer) > 0);
  simulator.run_for(kSecond);
  oracle.finish();
  CHECK(simulator.fault() == "");
}

TEST_CASE("oracle__reports_completions_that_vanish") {
  // Where every datagram is shown, at once; else when nothing is left to happen.
  for (const bool shown : {true, false}) {
    Simulator simulator(SimulatorConfig{}, sim::star(2, fabric()));
    simulator.connect_all();
    Oracle oracle(simulator, true);
    simulator.run_for(kMillisecond);
    post(oracle, 0, 1, 100'000);
    simulator.on_completion = nullptr;
    if (!shown) simulator.observer = nullptr;
    simulator.run_for(kSecond);
    CHECK_FALSE(oracle.all_ended());
    oracle.finish();
    const std::string expected =
        shown ? "rule 14: receive 1 of rank 1" : "rule 3: never ended: receive 1 (rank 1, peer 0, tag 1), send 2";
    CHECK(simulator.fault().find(expected) == 0);
  }
}

TEST_CASE("simulator__filters_drop_what_they_name_and_nothing_else") {
  Simulator simulator({}, sim::star(2, fabric()));
  simulator.connect_all();
  Oracle oracle(simulator, false);
  simulator.run_for(0);
  std::uint64_t data = 0;
  simulator.network().drop_if = [&](const sim::Packet& packet) { return packet.is_data() && data++ % 10 == 3; };
  std::uint64_t messages = 0;
  simulator.drop_message_if = [&](std::uint16_t, const core::ControlOutput&) { return ++messages > 0; };
  post(oracle, 0, 1, 200'000);
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, kSecond));
  const sim::Ledger& ledger = simulator.ledger();
  CHECK(ledger.of(Fate::k_dropped_filter, true).packets == (data + 6) / 10);
  CHECK(ledger.of(Fate::k_dropped_filter, true).packets > 10);
  CHECK(ledger.of(Fate::k_dropped_filter, false).packets == 0);
  CHECK(ledger.dropped(true).packets == ledger.of(Fate::k_dropped_filter, true).packets);
  // Of a receive that no datagram reaches, the control connection would tell; it loses everything too.
  simulator.network().drop_if = [](const sim::Packet&) { return true; };
  post(oracle, 0, 1, 10'000, 2);
  CHECK_FALSE(simulator.run_until([&] { return oracle.all_ended(); }, kSecond));
  CHECK(messages > 0);
  CHECK(simulator.messages_delivered() == 0);
}

TEST_CASE("simulator__tells_a_host_what_adjust_peer_makes_of_it") {
  SimulatorConfig config;
  config.adjust_peer = [](std::uint16_t host, core::PeerUp& up) {
    if (host == 0) up.segment_bytes = 1'000;
  };
  Simulator simulator(config, sim::star(2, fabric()));
  simulator.connect_all();
  simulator.run_for(0);
  CHECK(simulator.endpoint(0).segment_count(1, 10'000) == 10);
  CHECK(simulator.endpoint(1).segment_count(0, 10'000) == 7);
}

TEST_CASE("simulator__reports_every_entry_into_an_endpoint_and_its_end") {
  Simulator simulator({}, sim::star(2, fabric()));
  int depth = 0;
  std::uint64_t entries = 0;
  simulator.on_entry = [&](bool entering) {
    depth += entering ? 1 : -1;
    CHECK(depth == (entering ? 1 : 0));
    entries += entering ? 1U : 0U;
  };
  simulator.connect_all();
  Oracle oracle(simulator, false);
  simulator.run_for(0);
  post(oracle, 0, 1, 20'000);
  REQUIRE(simulator.run_until([&] { return oracle.all_ended(); }, kSecond));
  CHECK(entries > 100);
  CHECK(depth == 0);
}

TEST_CASE("link__without_a_checksum_hands_over_all_that_it_damages") {
  for (const bool checked : {true, false}) {
    sim::Fabric made = fabric();
    made.host_link.data.corrupt = 1;
    made.host_link.udp_checksum = checked;
    Simulator simulator({}, sim::star(2, made));
    simulator.connect_all();
    simulator.run_for(0);
    std::vector<std::byte> sent(50'000, std::byte{1});
    std::vector<std::byte> received(50'000, std::byte{1});
    core::ReceiveRequest receive;
    receive.peer = 0;
    receive.data = received;
    REQUIRE(simulator.receive(1, receive) == core::PostStatus::kPosted);
    core::SendRequest send;
    send.peer = 1;
    send.data = sent;
    REQUIRE(simulator.send(0, send) == core::PostStatus::kPosted);
    simulator.run_for(kMillisecond);
    CHECK((simulator.ledger().of(Fate::k_dropped_checksum, true).packets > 0) == checked);
    CHECK((received == sent) == checked);  // what the receiver got it took as it was
  }
}
