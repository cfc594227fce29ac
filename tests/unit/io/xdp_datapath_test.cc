// AF_XDP over a veth pair in namespaces of its own. What every datapath promises is checked in tests/backend.
#include "io/xdp_datapath.h"

#include <doctest/doctest.h>

#include <array>
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

Ends open_both(const VethPair& cable, const char* const (&hosts)[2], const std::function<void(io::XdpOptions&)>& change) {
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
  const base::TimeNs give_up = io::monotonic_now() + 2 * base::kSecond;
  CollectingSink sink;
  while (ends.count(from, "xdp_runs_sent") == 0 && io::monotonic_now() < give_up) {
    const TestRun run(static_cast<std::uint16_t>(1 - from), 0, 1, 100);
    REQUIRE(ends[from].send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
    ends[1 - from].receive(io::monotonic_now(), 16, sink);
    ::usleep(100);
  }
  REQUIRE(ends.count(from, "xdp_runs_sent") > 0);
  io_test::receive_until(ends[1 - from], sink, sink.datagrams.size() + 1);
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
