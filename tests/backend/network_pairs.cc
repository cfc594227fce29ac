#include "network_pairs.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "io/os/clock.h"
#include "io/udp/udp_datapath.h"
#include "io/vma/vma_datapath.h"
#include "io/xdp/xdp_datapath.h"
#include "support/veth_pair.h"
#include "unit/io/datagrams.h"

namespace mlt::io_test {

namespace {

using Ends = std::array<std::unique_ptr<io::NetworkDatapath>, 2>;

std::unique_ptr<io::NetworkDatapath> open_end(XdpKind kind, const char* host) {
  io::OsError error;
  std::unique_ptr<io::NetworkDatapath> end;
  if (kind == XdpKind::kUdp || kind == XdpKind::kUdpWithoutOffload) {
    io::UdpOptions options;
    options.socket.bind = *io::SocketAddress::from_host(host, 0);
    options.peer_count = 2;
    options.segmentation_offload = options.socket.receive_offload = kind == XdpKind::kUdp;
    end = io::UdpDatapath::open(options, error);
  } else {
    io::XdpOptions options;
    options.socket.bind = *io::SocketAddress::from_host(host, 0);
    options.peer_count = 2;
    options.native = kind == XdpKind::kNative;
    end = io::XdpDatapath::open(options, error);
  }
  CHECK_MESSAGE(end != nullptr, error.text);
  return end;
}

void connect(Ends& ends) {
  io::OsError error;
  REQUIRE(ends[0]->set_peer(1, ends[1]->local_address(), error));
  REQUIRE(ends[1]->set_peer(0, ends[0]->local_address(), error));
}

// Sends from one end until runs use their final datapath, and takes off the other what arrived meanwhile.
void meet(io::Datapath& from, io::Datapath& to, std::uint16_t to_rank) {
  const bool past_kernel = from.capabilities().name == "xdp";
  const TestRun run(to_rank, 0, 1, 100);
  const base::TimeNs deadline = io::monotonic_now() + 2 * base::kSecond;
  CollectingSink sink;
  std::size_t sent = 0;
  do {
    REQUIRE(from.send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
    ++sent;
    ::usleep(100);  // only between two sends
  } while (past_kernel && io::counter_value(from.counters(), "xdp_runs_sent") == 0 && io::monotonic_now() < deadline);
  receive_until(to, sink, sent);
  REQUIRE(sink.datagrams.size() == sent);
  if (past_kernel) REQUIRE(io::counter_value(from.counters(), "xdp_runs_sent") > 0);
}

}  // namespace

std::string xdp_missing() { return VethPair::missing(); }

Pair xdp_pair(XdpKind zero, XdpKind one, bool ipv6) {
  auto cable = std::make_shared<VethPair>();
  const auto& hosts = ipv6 ? VethPair::kIpv6 : VethPair::kIpv4;
  Ends ends;
  cable->inside(0, [&] { ends[0] = open_end(zero, hosts[0]); });
  cable->inside(1, [&] { ends[1] = open_end(one, hosts[1]); });
  REQUIRE((ends[0] && ends[1]));
  connect(ends);
  meet(*ends[0], *ends[1], 1);
  meet(*ends[1], *ends[0], 0);
  return {cable, std::move(ends[0]), std::move(ends[1])};
}

bool has_vma() { return io::find_vma().present; }

Pair vma_pair(const char* host) {
  Ends ends;
  for (auto& end : ends) {
    io::UdpOptions options;
    options.socket.bind = *io::SocketAddress::from_host(host, 0);
    options.peer_count = 2;
    io::OsError error;
    end = io::VmaDatapath::open(options, error);
    REQUIRE_MESSAGE(end != nullptr, error.text);
  }
  connect(ends);
  return {nullptr, std::move(ends[0]), std::move(ends[1])};
}

std::size_t vma_packets_held() {
  void* found = dlsym(RTLD_DEFAULT, "vma_stand_in_packets_held");
  REQUIRE_MESSAGE(found != nullptr, "this is not the stand-in");
  std::size_t (*held)() = nullptr;
  std::memcpy(&held, &found, sizeof held);
  return held();
}

}  // namespace mlt::io_test
