#include "io/udp/udp_datapath.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <numeric>

#include "unit/io/datagrams.h"
#include "unit/io/udp/scripted_socket.h"

using namespace mlt;
using io::SendStatus;
using io_test::CollectingSink;
using io_test::ScriptScope;
using io_test::socket_script;
using io_test::TestRun;

namespace {

std::unique_ptr<io::UdpDatapath> open_udp(bool offload = true, const char* host = "127.0.0.1") {
  io::UdpOptions options;
  options.socket.bind = *io::SocketAddress::from_host(host, 0);
  options.peer_count = 2;
  options.segmentation_offload = offload;
  io::OsError error;
  auto datapath = io::UdpDatapath::open(options, error);
  REQUIRE_MESSAGE(datapath != nullptr, error.text);
  return datapath;
}

// Rank 0 sends to rank 1.
struct UdpPair {
  explicit UdpPair(bool offload = true) : zero(open_udp(offload)), one(open_udp()) {
    io::OsError error;
    REQUIRE(zero->set_peer(1, one->local_address(), error));
  }
  std::uint64_t count(const char* name) const { return io::counter_value(zero->counters(), name); }

  ScriptScope script;
  std::unique_ptr<io::UdpDatapath> zero, one;
  CollectingSink sink;
};

std::vector<std::uint32_t> sequence(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace

TEST_CASE("open__port_taken_names_address_port_and_way_out") {
  const auto first = open_udp();
  io::UdpOptions options;
  options.socket.bind = first->local_address();
  options.peer_count = 2;
  io::OsError error;
  CHECK(io::UdpDatapath::open(options, error) == nullptr);
  CHECK(error.code == io::OsErrorCode::kAddressInUse);
  CHECK(error.number == EADDRINUSE);
  CHECK(error.text.find(first->local_address().format()) != std::string::npos);
  CHECK(error.text.find("choose another one") != std::string::npos);
}

TEST_CASE("open__an_address_of_no_interface_and_no_address_at_all_are_refused") {
  io::UdpOptions options;
  options.peer_count = 2;
  options.socket.bind = *io::SocketAddress::from_host("192.0.2.1", 0);  // TEST-NET-1, never assigned
  io::OsError error;
  CHECK(io::UdpDatapath::open(options, error) == nullptr);
  CHECK(error.code == io::OsErrorCode::kAddressNotAvailable);
  options.socket.bind = {};
  CHECK(io::UdpDatapath::open(options, error) == nullptr);
  CHECK(error.code == io::OsErrorCode::kBadArgument);
  options.socket.bind = io::SocketAddress::loopback(AF_INET, 0);
  options.peer_count = 0;
  CHECK(io::UdpDatapath::open(options, error) == nullptr);
  CHECK(error.code == io::OsErrorCode::kBadArgument);
}

TEST_CASE("set_peer__refuses_a_bad_rank_another_ip_version_and_port_0") {
  const auto datapath = open_udp();
  io::OsError error;
  CHECK(!datapath->set_peer(2, io::SocketAddress::loopback(AF_INET, 1), error));
  CHECK(error.text.find("rank 2") != std::string::npos);
  CHECK(!datapath->set_peer(1, io::SocketAddress::loopback(AF_INET6, 1), error));
  CHECK(error.text.find("same IP version") != std::string::npos);
  CHECK(!datapath->set_peer(1, io::SocketAddress::loopback(AF_INET, 0), error));
  CHECK(datapath->set_peer(1, io::SocketAddress::loopback(AF_INET, 1), error));
}

TEST_CASE("capabilities__are_those_of_the_loopback_interface") {
  const auto datapath = open_udp();
  const io::Capabilities& can = datapath->capabilities();
  CHECK(can.name == "udp");
  CHECK(can.max_datagram_bytes > 1'472);
  CHECK(can.max_datagram_bytes <= base::kMaxRunBytes);
  CHECK(can.receive_buffer_bytes > 64 << 10);
  CHECK(datapath->send_buffer_bytes() > 64 << 10);
  CHECK(datapath->local_port() != 0);
  CHECK(open_udp(false)->capabilities().segmentation_offload == false);
  if (!can.segmentation_offload) MESSAGE("no UDP_SEGMENT here: sending falls back on sendmmsg");
}

TEST_CASE("send__a_run_is_one_system_call_with_offload_and_without") {
  for (const bool offload : {true, false}) {
    UdpPair pair(offload);
    const TestRun run(1, 0, 44, 1'440);
    REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
    CHECK(pair.count("udp_system_calls_send") == 1);
    CHECK(pair.count("udp_runs_sent") == 1);
    CHECK(pair.count("udp_datagrams_sent") == 44);
    CHECK(pair.count("udp_bytes_sent") == run.get().total_bytes);
    io_test::receive_until(*pair.one, pair.sink, 44);
    CHECK(pair.sink.numbers() == sequence(0, 44));
    if (offload && pair.zero->capabilities().segmentation_offload && pair.one->capabilities().receive_offload) {
      CHECK(pair.sink.runs == 1);  // the super-packet crosses loopback whole
    }
  }
}

TEST_CASE("send__would_block_takes_nothing") {
  UdpPair pair;
  const TestRun run(1, 0, 10, 500);
  for (const auto& [error, counter] : {std::pair{EAGAIN, "udp_send_would_block"}, {ENOBUFS, "udp_send_no_buffers"}}) {
    socket_script().sendmsg.push_back({error});
    CHECK(pair.zero->send(0, run.get()) == SendStatus::kWouldBlock);
    CHECK(pair.count(counter) == 1);
  }
  CHECK(pair.count("udp_runs_sent") == 0);
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  io_test::receive_until(*pair.one, pair.sink, 10);
  CHECK(pair.sink.datagrams.size() == 10);
}

TEST_CASE("send__too_large_for_the_path_and_forbidden_are_told_apart") {
  UdpPair pair;
  const TestRun run(1, 0, 1, 500);
  socket_script().sendmsg.push_back({EMSGSIZE});
  CHECK(pair.zero->send(0, run.get()) == SendStatus::kTooLarge);
  CHECK(pair.zero->last_error().empty());
  socket_script().sendmsg.push_back({EPERM});
  CHECK(pair.zero->send(0, run.get()) == SendStatus::kFailed);
  CHECK(pair.count("udp_send_forbidden") == 1);
  const std::string text = pair.zero->last_error();
  CHECK(text.find("rank 1 at " + pair.one->local_address().format()) != std::string::npos);
  CHECK(text.find("EPERM") != std::string::npos);
  CHECK(text.find("firewall") != std::string::npos);
}

TEST_CASE("send__an_earlier_icmp_error_is_counted_and_the_run_goes_out") {
  UdpPair pair;
  // For real: with IP_RECVERR, Linux reports a closed port on the next call.
  const int on = 1;
  REQUIRE(::setsockopt(pair.zero->readable_fd(), IPPROTO_IP, IP_RECVERR, &on, sizeof on) == 0);
  const io::SocketAddress closed = open_udp()->local_address();
  io::OsError error;
  REQUIRE(pair.zero->set_peer(0, closed, error));
  const TestRun to_nobody(0, 0, 1, 100);
  REQUIRE(pair.zero->send(0, to_nobody.get()) == SendStatus::kSent);
  const TestRun run(1, 5, 3, 500);
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  CHECK(pair.count("udp_icmp_errors") == 1);
  io_test::receive_until(*pair.one, pair.sink, 3);
  CHECK(pair.sink.numbers() == sequence(5, 3));
  // And when it is the receiving call that hears of it.
  REQUIRE(pair.zero->send(0, to_nobody.get()) == SendStatus::kSent);
  CHECK(pair.zero->receive(0, 4, pair.sink) == 0);
  CHECK(pair.count("udp_icmp_errors") == 2);
}

TEST_CASE("send__a_lasting_error_is_a_failure_not_a_loop") {
  UdpPair pair;
  for (int i = 0; i < 20; ++i) socket_script().sendmsg.push_back({ENETUNREACH});
  const TestRun run(1, 0, 1, 100);
  CHECK(pair.zero->send(0, run.get()) == SendStatus::kFailed);
  CHECK(pair.zero->last_error().find("ENETUNREACH") != std::string::npos);
}

TEST_CASE("send__an_interface_that_refuses_offload_is_served_without_it") {
  UdpPair pair;
  if (!pair.zero->capabilities().segmentation_offload) return;
  socket_script().segmented_sends_fail_with = EIO;
  const TestRun run(1, 0, 20, 1'000, 300);
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  CHECK(pair.zero->capabilities().segmentation_offload == false);
  CHECK(pair.count("udp_offload_disabled") == 1);
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  CHECK(pair.count("udp_offload_disabled") == 1);
  io_test::receive_until(*pair.one, pair.sink, 40);
  CHECK(pair.sink.datagrams.size() == 40);
  for (const auto& datagram : pair.sink.datagrams) CHECK(datagram.intact);
}

TEST_CASE("send__a_path_too_small_for_the_segments_does_not_cost_the_offload") {
  UdpPair pair;
  if (!pair.zero->capabilities().segmentation_offload) return;
  socket_script().segmented_sends_fail_with = EINVAL;  // what Linux says of a segment above the path's MTU
  socket_script().sendmmsg.push_back({EMSGSIZE});
  const TestRun run(1, 0, 20, 1'000);
  CHECK(pair.zero->send(0, run.get()) == SendStatus::kTooLarge);
  CHECK(pair.zero->capabilities().segmentation_offload);
}

TEST_CASE("send__without_offload_the_rest_of_a_run_waits_and_goes_first") {
  UdpPair pair(false);
  socket_script().sendmmsg = {{0, 7}, {EAGAIN}, {EAGAIN}, {EAGAIN}};
  auto run = std::make_unique<TestRun>(std::uint16_t{1}, 0U, 20U, 1'000U, 300U);
  REQUIRE(pair.zero->send(1'000, run->get()) == SendStatus::kSent);
  run.reset();  // the rest was copied
  CHECK(pair.count("udp_partial_runs") == 1);
  CHECK(pair.zero->next_timeout() > 1'000);
  CHECK(pair.zero->next_timeout() < base::kMillisecond);
  const TestRun next(1, 100, 2, 400);
  CHECK(pair.zero->send(2'000, next.get()) == SendStatus::kWouldBlock);
  pair.zero->receive(3'000, 1, pair.sink);  // tries again, in vain
  CHECK(pair.zero->next_timeout() > 3'000);
  pair.zero->receive(4'000, 1, pair.sink);
  CHECK(pair.zero->next_timeout() == base::kNever);
  REQUIRE(pair.zero->send(5'000, next.get()) == SendStatus::kSent);
  CHECK(socket_script().empty());
  io_test::receive_until(*pair.one, pair.sink, 22);
  auto expected = sequence(0, 20);
  expected.push_back(100);
  expected.push_back(101);
  CHECK(pair.sink.numbers() == expected);
  for (const auto& datagram : pair.sink.datagrams) CHECK(datagram.intact);
}

TEST_CASE("send__without_offload_a_blocked_first_datagram_takes_nothing") {
  UdpPair pair(false);
  socket_script().sendmmsg = {{EAGAIN}};
  const TestRun run(1, 0, 5, 100);
  CHECK(pair.zero->send(0, run.get()) == SendStatus::kWouldBlock);
  CHECK(pair.zero->next_timeout() == base::kNever);
}

TEST_CASE("send__without_offload_a_rest_that_is_refused_for_good_is_counted") {
  UdpPair pair(false);
  const TestRun run(1, 0, 10, 100);
  socket_script().sendmmsg = {{0, 4}, {EPERM}};
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  CHECK(pair.count("udp_datagrams_abandoned") == 6);
  socket_script().sendmmsg = {{0, 4}, {EAGAIN}, {EPERM}};
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  pair.zero->receive(0, 1, pair.sink);
  CHECK(pair.count("udp_datagrams_abandoned") == 12);
  CHECK(pair.zero->next_timeout() == base::kNever);
}

TEST_CASE("receive__empty_datagrams_and_system_errors_are_counted_and_survived") {
  const ScriptScope script;
  const auto datapath = open_udp();
  const io::UniqueFd unrelated(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const io::SocketAddress to = datapath->local_address();
  REQUIRE(::sendto(unrelated.get(), nullptr, 0, 0, to.raw(), to.raw_size()) == 0);
  socket_script().recvmsg = {{EINTR}, {ECONNREFUSED}};
  CollectingSink sink;
  CHECK(datapath->receive(0, 8, sink) == 0);
  CHECK(io::counter_value(datapath->counters(), "udp_receive_empty") == 1);
  CHECK(io::counter_value(datapath->counters(), "udp_icmp_errors") == 1);
  socket_script().recvmsg = {{ENOMEM}};
  CHECK(datapath->receive(0, 8, sink) == 0);
  CHECK(io::counter_value(datapath->counters(), "udp_receive_failed") == 1);
}

TEST_CASE("receive__a_flood_of_empty_datagrams_costs_budget") {
  const auto datapath = open_udp();
  const io::UniqueFd unrelated(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const io::SocketAddress to = datapath->local_address();
  for (int i = 0; i < 10; ++i) REQUIRE(::sendto(unrelated.get(), nullptr, 0, 0, to.raw(), to.raw_size()) == 0);
  CollectingSink sink;
  CHECK(datapath->receive(0, 4, sink) == 0);
  CHECK(io::counter_value(datapath->counters(), "udp_receive_empty") == 4);
}

TEST_CASE("receive__a_wall_clock_that_was_set_dates_no_arrival_back") {
  struct Sink final : io::ReceiveSink {
    void on_run(const base::ReceivedRun& run) override { arrivals.push_back(run.arrival_ns); }
    std::vector<base::TimeNs> arrivals;
  };
  UdpPair pair;
  const TestRun run(1, 0, 1, 100);
  Sink sink;
  const base::TimeNs empty = io::monotonic_now();
  REQUIRE(pair.one->receive(empty, 8, sink) == 0);
  for (const long long hours : {0, 2, -2}) {
    socket_script().stamps_shift_ns = hours * 3'600'000'000'000LL;
    REQUIRE(pair.zero->send(io::monotonic_now(), run.get()) == SendStatus::kSent);
    const base::TimeNs now = io::monotonic_now();
    REQUIRE(pair.one->receive(now, 8, sink) == 1);
    CHECK(sink.arrivals.back() >= empty);
    CHECK(sink.arrivals.back() <= now);
  }
}

TEST_CASE("receive__reports_datagrams_that_the_full_socket_dropped") {
  struct Sink final : io::ReceiveSink {
    void on_run(const base::ReceivedRun& run) override { drops += run.after_drop ? 1 : 0; }
    int drops = 0;
  };
  UdpPair pair(false);
  const int smallest = 1;
  REQUIRE(::setsockopt(pair.one->readable_fd(), SOL_SOCKET, SO_RCVBUF, &smallest, sizeof smallest) == 0);
  const auto overflows = [&] { return io::counter_value(pair.one->counters(), "udp_receive_overflows"); };
  Sink sink;
  const TestRun run(1, 0, 20, 1'000);
  REQUIRE(pair.zero->send(0, run.get()) == SendStatus::kSent);
  while (pair.one->receive(0, 64, sink) > 0) {
  }
  CHECK(sink.drops == 0);  // the next datagram that fits reports them
  CHECK(overflows() == 0);
  const TestRun next(1, 20, 1, 1'000);
  REQUIRE(pair.zero->send(0, next.get()) == SendStatus::kSent);
  while (pair.one->receive(0, 64, sink) > 0) {
  }
  CHECK(sink.drops == 1);
  CHECK(overflows() > 0);
  CHECK(overflows() < 20);
  const std::uint64_t before = overflows();
  REQUIRE(pair.zero->send(0, next.get()) == SendStatus::kSent);
  while (pair.one->receive(0, 64, sink) > 0) {
  }
  CHECK(sink.drops == 1);
  CHECK(overflows() == before);
}
