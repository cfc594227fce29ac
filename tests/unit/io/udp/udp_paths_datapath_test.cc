#include "io/udp/udp_paths_datapath.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <set>

#include "unit/io/datagrams.h"

using namespace mlt;
using io::SendStatus;
using io_test::CollectingSink;
using io_test::TestRun;

namespace {

std::vector<io::PathSpec> specs(std::size_t paths, const char* host = "127.0.0.1") {
  std::vector<io::PathSpec> list(paths);
  for (io::PathSpec& spec : list) spec.bind = *io::SocketAddress::from_host(host, 0);
  return list;
}

std::unique_ptr<io::UdpPathsDatapath> open_paths(const std::vector<io::PathSpec>& list, std::uint16_t peers = 2) {
  io::UdpOptions options;
  options.peer_count = peers;
  io::OsError error;
  auto datapath = io::UdpPathsDatapath::open(options, list, error);
  REQUIRE_MESSAGE(datapath != nullptr, error.text);
  return datapath;
}

std::string refusal(const std::vector<io::PathSpec>& list) {
  io::UdpOptions options;
  options.peer_count = 2;
  io::OsError error;
  CHECK(io::UdpPathsDatapath::open(options, list, error) == nullptr);
  return error.text;
}

std::vector<io::SocketAddress> addresses(const io::UdpPathsDatapath& of) {
  std::vector<io::SocketAddress> list;
  for (std::uint8_t path = 0; path < of.paths(); ++path) list.push_back(of.path_address(path));
  return list;
}

struct PathsPair {
  explicit PathsPair(std::size_t paths) : zero(open_paths(specs(paths))), one(open_paths(specs(paths))) {
    io::OsError error;
    REQUIRE(zero->set_peer_paths(1, addresses(*one), error));
  }
  SendStatus send(std::uint8_t path, std::uint32_t first, std::uint32_t count, std::uint32_t bytes = 200) {
    TestRun run(1, first, count, bytes);
    run.get().path = path;
    return zero->send(0, run.get());
  }
  std::unique_ptr<io::UdpPathsDatapath> zero, one;
  CollectingSink sink;
};

bool is_readable(int fd, int wait_ms) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, wait_ms) == 1;
}

}  // namespace

TEST_CASE("open__refuses_no_path_17_paths_mixed_versions_and_flow_labels_without_ipv6") {
  CHECK(refusal({}).find("0 paths") != std::string::npos);
  CHECK(refusal(specs(17)).find("17 paths; give 1 to 16") != std::string::npos);
  auto mixed = specs(2);
  mixed[1].bind = io::SocketAddress::loopback(AF_INET6, 0);
  CHECK(refusal(mixed).find("path 1: [::1]:0 is of another IP version") != std::string::npos);
  auto labelled = specs(2);
  labelled[1].flow_label = 7;
  CHECK(refusal(labelled).find("path 1: flow label 7") != std::string::npos);
  auto listed = specs(2);
  listed[0].segments = {io::SocketAddress::loopback(AF_INET6, 0)};
  CHECK(refusal(listed).find("path 0: a segment list") != std::string::npos);
  listed = specs(2);
  listed[1].segments_to = {{2, {}}};
  CHECK(refusal(listed).find("path 1: a segment list for rank 2") != std::string::npos);
  listed[1].segments_to = {{1, {}}, {1, {}}};
  CHECK(refusal(listed).find("path 1: a segment list for rank 1") != std::string::npos);
  auto away = specs(2);
  away[1].device = "mlt-no-such";
  CHECK(refusal(away).find("mlt-no-such") != std::string::npos);
}

TEST_CASE("path_device__is_the_one_that_a_path_is_bound_to") {
  auto bound = specs(2);
  bound[1].device = "lo";
  const auto datapath = open_paths(bound);
  CHECK(datapath->path_device(0) == "");
  CHECK(datapath->path_device(1) == "lo");
}

TEST_CASE("set_peer_paths__wants_an_address_per_path") {
  const auto datapath = open_paths(specs(2));
  io::OsError error;
  const io::SocketAddress good = io::SocketAddress::loopback(AF_INET, 9);
  CHECK(!datapath->set_peer(1, good, error));
  CHECK(error.text.find("rank 1 has 1 paths and this rank 2") != std::string::npos);
  CHECK(!datapath->set_peer_paths(1, std::vector{good, good.with_port(0)}, error));
  CHECK(error.text.find("path 1: ") != std::string::npos);
  CHECK(!datapath->set_peer_paths(2, std::vector{good, good}, error));
  CHECK(datapath->set_peer_paths(1, std::vector{good, good}, error));
}

TEST_CASE("send__each_path_has_ports_of_its_own_at_both_ends_and_counts_for_itself") {
  PathsPair pair(3);
  std::set<std::uint16_t> ports;
  for (const io::SocketAddress& address : addresses(*pair.zero)) ports.insert(address.port());
  for (const io::SocketAddress& address : addresses(*pair.one)) ports.insert(address.port());
  CHECK(ports.size() == 6);
  CHECK(!is_readable(pair.one->readable_fd(), 0));
  for (std::uint8_t path = 0; path < 3; ++path) {
    REQUIRE(pair.send(path, path * 10U, path + 1U) == SendStatus::kSent);
    CHECK(is_readable(pair.one->readable_fd(), 1'000));
    io_test::receive_until(*pair.one, pair.sink, (path + 1U) * (path + 2U) / 2);
  }
  CHECK(pair.sink.numbers() == std::vector<std::uint32_t>{0, 10, 11, 20, 21, 22});
  CHECK(pair.send(3, 0, 1) == SendStatus::kNoPeer);
  TestRun unknown(0, 0, 1, 200);
  unknown.get().path = 1;
  CHECK(pair.zero->send(0, unknown.get()) == SendStatus::kNoPeer);
  const auto counters = pair.zero->counters();
  CHECK(io::counter_value(counters, "udp_runs_sent") == 3);
  CHECK(io::counter_value(counters, "udp_datagrams_sent") == 6);
  for (const char* name : {"udp_path0_runs_sent", "udp_path1_runs_sent", "udp_path2_runs_sent"}) {
    CHECK(io::counter_value(counters, name) == 1);
  }
  CHECK(io::counter_value(counters, "udp_path1_runs_failed") == 0);
  CHECK(io::counter_value(pair.one->counters(), "udp_bytes_received") == 6 * 200);
}

TEST_CASE("receive__a_flooded_path_does_not_starve_the_others_within_the_budget") {
  PathsPair pair(4);
  for (std::uint32_t i = 0; i < 60; ++i) REQUIRE(pair.send(0, i, 1, 100 + i) == SendStatus::kSent);
  for (std::uint8_t path = 1; path < 4; ++path) REQUIRE(pair.send(path, 1'000U + path, 1) == SendStatus::kSent);
  // A budget of as many runs as there are paths: one from each.
  CHECK(pair.one->receive(0, 4, pair.sink) == 4);
  auto numbers = pair.sink.numbers();
  std::sort(numbers.begin(), numbers.end());
  CHECK(numbers == std::vector<std::uint32_t>{0, 1'001, 1'002, 1'003});
  // A smaller one: each has its turn.
  for (std::uint8_t path = 1; path < 4; ++path) REQUIRE(pair.send(path, 2'000U + path, 1) == SendStatus::kSent);
  for (int turns = 0; turns < 4; ++turns) CHECK(pair.one->receive(0, 1, pair.sink) == 1);
  numbers = pair.sink.numbers();
  std::sort(numbers.begin(), numbers.end());
  CHECK(numbers == std::vector<std::uint32_t>{0, 1, 1'001, 1'002, 1'003, 2'001, 2'002, 2'003});
}

TEST_CASE("capabilities__offer_the_smallest_buffer_and_mtu_of_all_paths") {
  io::UdpOptions small;
  small.peer_count = 2;
  small.socket.receive_buffer_bytes = 256U << 10;
  io::OsError error;
  const auto datapath = io::UdpPathsDatapath::open(small, specs(4), error);
  REQUIRE(datapath != nullptr);
  // Not four times as much: the other paths may be silent when a whole window comes.
  CHECK(datapath->capabilities().receive_buffer_bytes == 256U << 10);
}

TEST_CASE("segments__take_room_and_only_the_ranks_that_are_named_get_another_list") {
  auto list = specs(2, "::1");
  const io::SocketAddress spine = *io::SocketAddress::from_host("2001:db8::1", 0);
  io::UdpOptions options;
  options.peer_count = 4;
  io::OsError error;
  const auto plain = io::UdpPathsDatapath::open(options, list, error);
  if (plain == nullptr) {
    MESSAGE("no IPv6 on this machine: ", error.text);
    return;
  }
  const std::uint32_t room = plain->capabilities().max_datagram_bytes;
  list[1].segments = {spine};
  list[1].segments_to = {{2, {spine, spine}}, {3, {spine, spine}}, {1, {}}};
  const auto datapath = io::UdpPathsDatapath::open(options, list, error);
  REQUIRE_MESSAGE(datapath != nullptr, error.text);
  // Header of 8 bytes, the destination, two segments.
  CHECK(datapath->capabilities().max_datagram_bytes == room - 8 - 3 * 16);
  // Rank 1 gets none on path 1, and its datagrams arrive on loopback; what path 1 sends to rank 0 goes by the segment.
  const auto receiver = open_paths(specs(2, "::1"), 4);
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    REQUIRE(datapath->set_peer_paths(rank, addresses(*receiver), error));
  }
  CollectingSink sink;
  for (std::uint16_t rank = 1; rank < 4; ++rank) {
    TestRun run(rank, rank, 1, 200);
    run.get().path = 1;
    const SendStatus status = datapath->send(0, run.get());
    if (rank == 1) CHECK(status == SendStatus::kSent);
  }
  io_test::receive_until(*receiver, sink, 1);
  CHECK(sink.numbers() == std::vector<std::uint32_t>{1});
}
