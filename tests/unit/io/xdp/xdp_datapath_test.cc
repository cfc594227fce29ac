// AF_XDP over a veth pair in namespaces of its own. What every datapath promises is checked in tests/backend.
#include "io/xdp/xdp_datapath.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <memory>

#include "support/veth_pair.h"
#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::CollectingSink;
using io_test::TestRun;
using io_test::VethPair;

namespace {

// Why it can't be tested here, said once per case; empty if it can.
bool can_run() {
  static const std::string missing = VethPair::missing();
  if (!missing.empty()) MESSAGE("skipped: ", missing);
  return missing.empty();
}

io::XdpOptions options_at(const char* host, std::uint16_t port = 0) {
  io::XdpOptions options;
  options.socket.bind = *io::SocketAddress::from_host(host, port);
  options.peer_count = 2;
  return options;
}

std::unique_ptr<io::XdpDatapath> open_at(const VethPair& cable, int end, const io::XdpOptions& options,
                                         io::OsError& error) {
  std::unique_ptr<io::XdpDatapath> datapath;
  cable.inside(end, [&] { datapath = io::XdpDatapath::open(options, error); });
  return datapath;
}

struct Ends {
  std::array<std::unique_ptr<io::XdpDatapath>, 2> end;
  io::XdpDatapath& operator[](std::size_t i) { return *end[i]; }
  std::uint64_t count(std::size_t i, const char* name) { return io::counter_value(end[i]->counters(), name); }
};

Ends open_both(const VethPair& cable, const char* const (&hosts)[2],
               const std::function<void(io::XdpOptions&)>& change) {
  Ends ends;
  io::OsError error;
  for (const int i : {0, 1}) {
    io::XdpOptions options = options_at(hosts[i]);
    if (change) change(options);
    ends.end[static_cast<std::size_t>(i)] = open_at(cable, i, options, error);
    REQUIRE_MESSAGE(ends.end[static_cast<std::size_t>(i)] != nullptr, error.text);
  }
  REQUIRE(ends[0].set_peer(1, ends[1].local_address(), error));
  REQUIRE(ends[1].set_peer(0, ends[0].local_address(), error));
  return ends;
}

// Sends until a run has gone past the kernel: the first ones make it find the peer's Ethernet address.
void meet(Ends& ends, std::size_t from) {
  const base::TimeNs deadline = io::monotonic_now() + 2 * base::kSecond;
  CollectingSink sink;
  std::size_t sent = 0;
  while (ends.count(from, "xdp_runs_sent") == 0 && io::monotonic_now() < deadline) {
    const TestRun run(static_cast<std::uint16_t>(1 - from), 0, 1, 100);
    REQUIRE(ends[from].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
    ++sent;
    ::usleep(100);  // only between two sends
  }
  REQUIRE(ends.count(from, "xdp_runs_sent") > 0);
  io_test::receive_until(ends[1 - from], sink, sent);
  REQUIRE(sink.datagrams.size() == sent);
}

}  // namespace

TEST_CASE("open__finds_the_peer_through_the_kernel_and_then_goes_past_it") {
  if (!can_run()) return;
  const VethPair cable;
  Ends ends = open_both(cable, VethPair::kIpv4, {});
  CHECK(ends.count(0, "xdp_native") == 1);
  meet(ends, 0);
  const std::uint64_t kernel_runs = ends.count(1, "xdp_kernel_runs_received");
  CollectingSink sink;
  const TestRun run(1, 100, 44, 1'472, 700);
  REQUIRE(ends[0].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
  io_test::receive_until(ends[1], sink, 44);
  REQUIRE(sink.datagrams.size() == 44);
  for (const auto& datagram : sink.datagrams) CHECK(datagram.intact);
  CHECK(ends.count(1, "xdp_runs_received") >= 44);
  CHECK(ends.count(1, "xdp_kernel_runs_received") == kernel_runs);
}

TEST_CASE("open__by_netlink_serves_as_well_and_is_taken_down") {
  if (!can_run()) return;
  const VethPair cable;
  {
    Ends ends = open_both(cable, VethPair::kIpv4,
                          [](io::XdpOptions& options) { options.attach_by = io::XdpAttachment::Way::kNetlink; });
    meet(ends, 0);
    cable.run(0, "ip -details link show mlt0 | grep -q prog/xdp");
  }
  for (const int end : {0, 1}) cable.run(end, "! ip -details link show mlt0 | grep -q prog/xdp");
}

TEST_CASE("open__waits_for_a_queue_that_was_left_a_moment_ago") {
  if (!can_run()) return;
  const VethPair cable;
  for (int i = 0; i < 10; ++i) {
    io::OsError error;
    CHECK_MESSAGE(open_at(cable, 0, options_at(VethPair::kIpv4[0]), error) != nullptr, error.text);
  }
}

TEST_CASE("open__is_refused_where_the_interface_is_taken_and_leaves_the_first_alone") {
  if (!can_run()) return;
  const VethPair cable;
  {
    Ends ends = open_both(cable, VethPair::kIpv4, {});
    io::OsError error;
    CHECK(open_at(cable, 0, options_at(VethPair::kIpv4[0]), error) == nullptr);
    CHECK(error.number == EBUSY);
    CHECK(error.text.find("one XDP program") != std::string::npos);
    CHECK(error.text.find("datapath=\"udp\"") != std::string::npos);
    meet(ends, 0);
    meet(ends, 1);
    // The kernel's socket holds the port.
    io::UdpOptions udp;
    udp.peer_count = 1;
    udp.socket.bind = ends[0].local_address();
    cable.inside(0, [&] { CHECK(io::UdpDatapath::open(udp, error) == nullptr); });
    CHECK(error.code == io::OsErrorCode::kAddressInUse);
  }
  cable.run(0, "! ip -details link show mlt0 | grep -q prog/xdp");
}

TEST_CASE("open__refuses_what_it_cannot_serve") {
  if (!can_run()) return;
  const VethPair cable;
  const auto text_of = [&](const io::XdpOptions& options) {
    io::OsError error;
    CHECK(open_at(cable, 0, options, error) == nullptr);
    return error.text;
  };
  const auto has = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  CHECK(has(text_of(options_at("127.0.0.1")), "loopback, the interface of 127.0.0.1"));
  CHECK(has(text_of(options_at("0.0.0.0")), "0.0.0.0:0 stands for all of them"));
  CHECK(has(text_of(options_at("10.77.0.9")), "cannot find the network interface of 10.77.0.9: EADDRNOTAVAIL"));
  io::XdpOptions queue = options_at(VethPair::kIpv4[0]);
  queue.queue = 77;
  CHECK(has(text_of(queue), "queue 77 of mlt0"));
  CHECK(has(text_of(queue), "ethtool -l"));
  cable.run(0, "ip tuntap add dev mlttun mode tun && ip address add 10.78.0.1/24 dev mlttun && ip link set mlttun up");
  CHECK(has(text_of(options_at("10.78.0.1")), "mlttun, where 10.78.0.1 is, has no Ethernet headers"));
  cable.run(0, "! ip -details link show mlt0 | grep -q prog/xdp");
}

TEST_CASE("send__goes_by_a_gateway_whatever_mtu_the_route_has") {
  if (!can_run()) return;
  const VethPair cable;
  cable.run(1, "ip address add 10.99.0.1/32 dev lo");
  // A route's MTU may be what a forged ICMP message said: the interface's counts.
  cable.run(0, "ip route add 10.99.0.0/24 via 10.77.0.2 mtu 1000");
  io::OsError error;
  auto near = open_at(cable, 0, options_at(VethPair::kIpv4[0]), error);
  REQUIRE_MESSAGE(near != nullptr, error.text);
  std::unique_ptr<io::UdpDatapath> far;
  io::UdpOptions udp;
  udp.peer_count = 2;
  udp.socket.bind = *io::SocketAddress::from_host("10.99.0.1", 0);
  cable.inside(1, [&] { far = io::UdpDatapath::open(udp, error); });
  REQUIRE_MESSAGE(far != nullptr, error.text);
  REQUIRE(near->set_peer(1, far->local_address(), error));
  CollectingSink sink;
  const base::TimeNs deadline = io::monotonic_now() + 2 * base::kSecond;
  std::size_t sent = 0;
  while (io::counter_value(near->counters(), "xdp_runs_sent") == 0 && io::monotonic_now() < deadline) {
    const TestRun run(1, 0, 3, 1'472);
    REQUIRE(near->send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
    sent += 3;
    ::usleep(100);  // only between two sends
  }
  CHECK(io::counter_value(near->counters(), "xdp_runs_sent") == 1);
  io_test::receive_until(*far, sink, sent);
  CHECK(sink.datagrams.size() == sent);
  const TestRun large(1, 0, 3, 1'473);
  CHECK(near->send(io::monotonic_now(), large.get()) == io::SendStatus::kTooLarge);
}

TEST_CASE("send__reaches_a_rank_on_the_same_machine_through_the_kernel") {
  if (!can_run()) return;
  const VethPair cable;
  io::OsError error;
  auto xdp = open_at(cable, 0, options_at(VethPair::kIpv4[0]), error);
  REQUIRE_MESSAGE(xdp != nullptr, error.text);
  std::unique_ptr<io::UdpDatapath> neighbour;
  io::UdpOptions udp;
  udp.peer_count = 2;
  udp.socket.bind = *io::SocketAddress::from_host(VethPair::kIpv4[0], 0);
  cable.inside(0, [&] { neighbour = io::UdpDatapath::open(udp, error); });
  REQUIRE(neighbour != nullptr);
  REQUIRE(xdp->set_peer(1, neighbour->local_address(), error));
  REQUIRE(neighbour->set_peer(0, xdp->local_address(), error));
  CollectingSink there, back;
  const TestRun out(1, 0, 20, 1'400), answer(0, 100, 20, 1'400);
  REQUIRE(xdp->send(io::monotonic_now(), out.get()) == io::SendStatus::kSent);
  REQUIRE(neighbour->send(io::monotonic_now(), answer.get()) == io::SendStatus::kSent);
  io_test::receive_until(*neighbour, there, 20);
  io_test::receive_until(*xdp, back, 20);
  CHECK(there.datagrams.size() == 20);
  CHECK(back.datagrams.size() == 20);
  CHECK(io::counter_value(xdp->counters(), "xdp_kernel_runs_sent") == 1);
  CHECK(io::counter_value(xdp->counters(), "xdp_kernel_runs_received") == 20);
  CHECK(io::counter_value(xdp->counters(), "xdp_runs_sent") == 0);
}

TEST_CASE("send__fails_by_name_while_the_interface_is_down_and_works_again_after") {
  if (!can_run()) return;
  const VethPair cable;
  Ends ends = open_both(cable, VethPair::kIpv4, {});
  meet(ends, 0);
  cable.run(0, "ip link set mlt0 down");
  const TestRun run(1, 0, 4, 1'000);
  // The route was looked up just now and is not looked up again before a second has passed.
  CHECK(ends[0].send(io::monotonic_now(), run.get()) == io::SendStatus::kFailed);
  const std::string text = ends[0].last_error();
  CHECK_MESSAGE(text.find("send frames by mlt0: ENETDOWN") != std::string::npos, text);
  CHECK(ends.count(0, "xdp_send_failed") == 1);
  cable.run(0, "ip link set mlt0 up");
  CollectingSink sink;
  const base::TimeNs deadline = io::monotonic_now() + 5 * base::kSecond;
  while (sink.datagrams.size() < 8 && io::monotonic_now() < deadline) {
    ends[0].send(io::monotonic_now(), run.get());
    ends[1].receive(io::monotonic_now(), 16, sink);
    ::usleep(1'000);  // only between two sends
  }
  CHECK(sink.datagrams.size() >= 8);
}

TEST_CASE("receive__finds_what_there_is_at_every_turn_with_a_budget_of_one") {
  if (!can_run()) return;
  const VethPair cable;
  Ends ends = open_both(cable, VethPair::kIpv4, {});
  meet(ends, 0);
  const TestRun run(1, 0, 50, 200);
  REQUIRE(ends[0].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
  CollectingSink sink;
  for (int i = 0; i < 50; ++i) {
    pollfd ready{ends[1].readable_fd(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 1'000) == 1);
    CHECK(ends[1].receive(io::monotonic_now(), 1, sink) == 1);
  }
  CHECK(ends[1].receive(io::monotonic_now(), 1, sink) == 0);
}

TEST_CASE("receive__counts_what_the_kernel_dropped_because_nobody_read") {
  if (!can_run()) return;
  const VethPair cable;
  Ends ends = open_both(cable, VethPair::kIpv4, [](io::XdpOptions& options) { options.receive_frames = 64; });
  meet(ends, 0);
  const TestRun run(1, 0, 60, 200);
  for (int i = 0; i < 10; ++i) REQUIRE(ends[0].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
  CollectingSink sink;
  io_test::receive_until(ends[1], sink, 64);
  ends[1].receive(io::monotonic_now(), 100, sink);
  CHECK(sink.datagrams.size() == 64);
  const std::uint64_t dropped = ends.count(1, "xdp_receive_no_frame") + ends.count(1, "xdp_receive_ring_full") +
                                ends.count(1, "xdp_receive_dropped");
  CHECK(dropped >= 600 - 64);
  // The frames were given back: it continues.
  REQUIRE(ends[0].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
  io_test::receive_until(ends[1], sink, 64 + 60);
  CHECK(sink.datagrams.size() == 64 + 60);
}

TEST_CASE("open__offers_what_its_frames_hold_on_an_interface_of_large_packets") {
  if (!can_run()) return;
  for (const auto& [mtu, expected] : {std::pair{3'000, 2'972U}, std::pair{9'000, 4'096U - 256 - 14 - 28}}) {
    CAPTURE(mtu);
    const VethPair cable(mtu);
    Ends ends = open_both(cable, VethPair::kIpv4, {});
    // Too large for the driver's XDP: the generic one, without being asked.
    CHECK(ends.count(0, "xdp_native") == (mtu == 3'000 ? 1 : 0));
    CHECK(ends[0].capabilities().max_datagram_bytes == expected);
    meet(ends, 0);
    CollectingSink sink;
    const TestRun run(1, 1, 15, expected);
    REQUIRE(ends[0].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
    io_test::receive_until(ends[1], sink, 15);
    REQUIRE(sink.datagrams.size() == 15);
    for (const auto& datagram : sink.datagrams) CHECK(datagram.intact);
  }
}

TEST_CASE("fork__a_child_holds_neither_queue_nor_program") {
  if (!can_run()) return;
  for (const auto way : {io::XdpAttachment::Way::kLink, io::XdpAttachment::Way::kNetlink}) {
    for (const bool destroys : {false, true}) {  // as a child that ends in good order does
      CAPTURE(destroys);
      const VethPair cable;
      Ends ends = open_both(cable, VethPair::kIpv4, [&](io::XdpOptions& options) { options.attach_by = way; });
      std::array<int, 2> ready{};
      REQUIRE(::pipe(ready.data()) == 0);
      const ::pid_t child = ::fork();
      if (child == 0) {
        if (destroys) ends.end[0].reset();
        ::close(ready[1]);
        ::pause();
        ::_exit(0);
      }
      REQUIRE(child > 0);
      ::close(ready[1]);
      char none = 0;
      CHECK(::read(ready[0], &none, 1) == 0);
      ::close(ready[0]);
      // The parent continues past the kernel, in both directions ...
      meet(ends, 0);
      meet(ends, 1);
      CHECK(ends.count(0, "xdp_runs_received") > 0);
      // ... and leaves what another can take.
      ends.end[0].reset();
      io::OsError error;
      const auto again = open_at(cable, 0, options_at(VethPair::kIpv4[0]), error);
      CHECK_MESSAGE(again != nullptr, error.text);
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
}

TEST_CASE("send__waits_for_frames_that_a_queue_below_holds") {
  if (!can_run()) return;
  const VethPair cable;
  // The copies of what leaves mlt1 wait in the queue of mlt0, for 10 ms a run.
  cable.run(0, "ip link add link mlt0 name mlt1 type macvlan && ip address add 10.79.0.1/24 dev mlt1");
  cable.run(0, "ip link set mlt1 up && ip neighbour add 10.79.0.2 lladdr 02:00:00:00:00:02 dev mlt1 nud permanent");
  cable.run(0, "tc qdisc add dev mlt0 root tbf rate 50mbit burst 3000 latency 1s");
  io::OsError error;
  const auto datapath = open_at(cable, 0, options_at("10.79.0.1"), error);
  REQUIRE_MESSAGE(datapath != nullptr, error.text);
  REQUIRE(datapath->set_peer(1, *io::SocketAddress::from_host("10.79.0.2", 9), error));
  const TestRun run(1, 0, 60, 1'000);
  io::SendStatus status = io::SendStatus::kSent;
  int sent = 0;
  while (status == io::SendStatus::kSent && sent < 50) {  // a slow build may send the third when the first has left
    status = datapath->send(io::monotonic_now(), run.get());
    ++sent;
  }
  REQUIRE(sent > 2);
  REQUIRE(status == io::SendStatus::kWouldBlock);
  // As the event loop waits.
  for (int waited_ms = 0; waited_ms < 20 && status == io::SendStatus::kWouldBlock; ++waited_ms) {
    pollfd writable{datapath->writable_fd(run.get()), POLLOUT, 0};
    ::poll(&writable, 1, 1);
    status = datapath->send(io::monotonic_now(), run.get());
  }
  CHECK(status == io::SendStatus::kSent);
  CHECK(io::counter_value(datapath->counters(), "xdp_kernel_runs_sent") == 0);
}
