// What is libvma's alone. These run under its stand-in (ctest's test_backend_vma*) and have nothing to say elsewhere.
#include "io/vma/vma_datapath.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "network_pairs.h"
#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::Pair;
using io_test::TestRun;

TEST_CASE("open__under_libvma_only") {
  if (io_test::has_vma()) return;
  io::UdpOptions options;
  options.socket.bind = io::SocketAddress::loopback(AF_INET, 0);
  options.peer_count = 1;
  io::OsError error;
  CHECK(io::VmaDatapath::open(options, error) == nullptr);
  CHECK(error.code == io::OsErrorCode::kBadArgument);
  CHECK(error.text.find("LD_PRELOAD=libvma.so") != std::string::npos);
}

TEST_CASE("send__puts_the_mark_on_the_packet_by_way_of_the_socket") {
  if (!io_test::has_vma()) return;
  // Sees the IP header of every UDP packet on loopback.
  const io::UniqueFd raw(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
  if (!raw) {
    MESSAGE("skipped: needs root, to look at packets");
    return;
  }
  const Pair pair = io_test::vma_pair("127.0.0.1");
  constexpr std::uint32_t kMark = 0xC0FFEE;
  for (const std::uint8_t dscp : {std::uint8_t{46}, std::uint8_t{46}, std::uint8_t{0}, std::uint8_t{63}}) {
    CAPTURE(dscp);
    TestRun run(1, kMark, 1, 100);
    run.get().dscp = dscp;
    run.get().ecn = base::Ecn::kEct0;
    REQUIRE(pair.zero->send(io::monotonic_now(), run.get()) == io::SendStatus::kSent);
    bool seen = false;
    while (!seen) {
      pollfd ready{raw.get(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 1'000) == 1);
      std::array<std::byte, 2'048> packet;
      const ssize_t got = ::recv(raw.get(), packet.data(), packet.size(), 0);
      if (got != 20 + 8 + 100 || base::load_le32(packet.data() + 28) != kMark) continue;  // somebody else's
      seen = true;
      CHECK(std::to_integer<int>(packet[1]) == (dscp << 2 | 2));
    }
  }
  // Set when it changed: the first, and two more.
  CHECK(io::counter_value(pair.zero->counters(), "vma_marks_set") == 3);
}

TEST_CASE("capabilities__promise_nothing_that_libvma_lacks") {
  if (!io_test::has_vma()) return;
  const Pair pair = io_test::vma_pair("127.0.0.1");
  const io::Capabilities& can = pair.zero->capabilities();
  CHECK(can.name == "vma");
  CHECK_FALSE(can.segmentation_offload);
  CHECK_FALSE(can.receive_offload);
  CHECK_FALSE(can.reads_ecn);
  CHECK(can.sets_dscp);
  CHECK(can.max_run_segments == base::kMaxRunSegments);
}
