#include "io/udp/udp_socket.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <array>

#include "io/net/interface.h"

using namespace mlt;

namespace {
std::optional<io::UdpSocket> open(std::uint32_t buffer_bytes, io::OsError& error) {
  io::UdpSocketOptions options;
  options.bind = io::SocketAddress::loopback(AF_INET, 0);
  options.receive_buffer_bytes = options.send_buffer_bytes = buffer_bytes;
  return io::UdpSocket::open(options, error);
}
}  // namespace

TEST_CASE("open__is_non_blocking_closed_on_exec_and_bound") {
  io::OsError error;
  const auto socket = open(1U << 20, error);
  REQUIRE_MESSAGE(socket.has_value(), error.text);
  CHECK((::fcntl(socket->fd(), F_GETFL) & O_NONBLOCK) != 0);
  CHECK((::fcntl(socket->fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(socket->local_address().port() != 0);
}

TEST_CASE("open__reports_the_buffers_that_were_granted") {
  io::OsError error;
  const auto socket = open(200'000, error);  // below every system's default limit (212,992)
  REQUIRE(socket.has_value());
  CHECK(socket->granted_receive_bytes() == 200'000);
  CHECK(socket->granted_send_bytes() == 200'000);
  // More than there is memory for: the kernel grants less or the same, and what it granted is what is reported.
  const auto greedy = open(0xFFFFFFFFU, error);
  REQUIRE(greedy.has_value());
  int kernel_bytes = 0;
  socklen_t size = sizeof kernel_bytes;
  REQUIRE(::getsockopt(greedy->fd(), SOL_SOCKET, SO_RCVBUF, &kernel_bytes, &size) == 0);
  CHECK(greedy->granted_receive_bytes() == static_cast<std::uint32_t>(kernel_bytes) / 2);
  CHECK(greedy->granted_receive_bytes() > 100'000);
}

TEST_CASE("probe_segmentation_offload__leaves_nothing_behind") {
  io::OsError error;
  auto socket = open(1U << 20, error);
  REQUIRE(socket.has_value());
  socket->probe_segmentation_offload();
  std::array<std::byte, 8> bytes;
  CHECK(::recv(socket->fd(), bytes.data(), bytes.size(), 0) == -1);
}

TEST_CASE("find_interface__loopback_has_an_mtu_and_no_speed") {
  io::OsError error;
  for (const char* host : {"127.0.0.1", "127.4.5.6"}) {
    const auto info = io::find_interface(*io::SocketAddress::from_host(host, 0), error);
    REQUIRE_MESSAGE(info.has_value(), error.text);
    CHECK(info->name == "lo");
    CHECK(info->is_loopback);
    CHECK(info->mtu_bytes >= 1'280);
    CHECK(info->speed_bits_per_second == 0);
    CHECK(!error);
  }
  const auto any = io::find_interface(*io::SocketAddress::from_host("0.0.0.0", 0), error);
  REQUIRE(any.has_value());
  CHECK(any->mtu_bytes <= io::find_interface(*io::SocketAddress::from_host("127.0.0.1", 0), error)->mtu_bytes);
  CHECK(!io::find_interface(*io::SocketAddress::from_host("192.0.2.1", 0), error).has_value());
  CHECK(error.code == io::OsErrorCode::kAddressNotAvailable);
  CHECK(error.text.find("192.0.2.1") != std::string::npos);
}
