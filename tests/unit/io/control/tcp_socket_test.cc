// Sockets of the control channel on loopback, looked at through the kernel.
#include "io/control/tcp_socket.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string_view>

namespace {

using namespace mlt;

// The DSCP that the kernel puts into this socket's packets.
int dscp_of(const io::UniqueFd& fd, int family) {
  int traffic_class = -1;
  socklen_t size = sizeof traffic_class;
  const int level = family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
  REQUIRE(::getsockopt(fd.get(), level, family == AF_INET6 ? IPV6_TCLASS : IP_TOS, &traffic_class, &size) == 0);
  return traffic_class >> 2;
}

bool has_ipv6() {
  io::OsError error;
  return io::listen_tcp(io::SocketAddress::loopback(AF_INET6, 0), 0, error).has_value();
}

}  // namespace

TEST_CASE("tcp_socket__both_ends_of_a_connection_carry_their_dscp") {
  for (const int family : {AF_INET, AF_INET6}) {
    if (family == AF_INET6 && !has_ipv6()) continue;
    CAPTURE(family);
    io::OsError error;
    const auto listener = io::listen_tcp(io::SocketAddress::loopback(family, 0), 48, error);
    REQUIRE(listener);
    CHECK(dscp_of(*listener, family) == 48);  // what answers a SYN
    const auto connection = io::start_connect_tcp(io::SocketAddress::local_of(listener->get()), {}, 31, error);
    REQUIRE(connection);
    CHECK(dscp_of(*connection, family) == 31);
    pollfd waiting{.fd = listener->get(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&waiting, 1, 5'000) == 1);
    int number = 0;
    const io::UniqueFd accepted = io::accept_tcp(listener->get(), number);
    REQUIRE(accepted);
    CHECK(dscp_of(accepted, family) == 48);
  }
}

// PROTOCOL 3.5.7
TEST_CASE("tcp_socket__connects_from_the_address_that_is_given") {
  io::OsError error;
  const auto listener = io::listen_tcp(*io::SocketAddress::parse("127.0.0.1:0"), 0, error);
  REQUIRE(listener);
  const io::SocketAddress target = io::SocketAddress::local_of(listener->get());
  for (const char* host : {"127.0.0.2", "127.0.0.3"}) {
    // Its port is somebody's; ours is another.
    const auto connection = io::start_connect_tcp(target, *io::SocketAddress::from_host(host, target.port()), 0, error);
    REQUIRE(connection);
    CHECK(io::SocketAddress::local_of(connection->get()).host() == host);
    CHECK(io::SocketAddress::local_of(connection->get()).port() != target.port());
  }
  const auto any = io::start_connect_tcp(target, *io::SocketAddress::parse("0.0.0.0:0"), 0, error);
  REQUIRE(any);
  CHECK(io::SocketAddress::local_of(any->get()).host() == "127.0.0.1");
  CHECK(!io::start_connect_tcp(target, *io::SocketAddress::parse("192.0.2.1:0"), 0, error));
  CHECK(error.text.find("192.0.2.1") != std::string::npos);
}

// PROTOCOL 3.1.9
TEST_CASE("tcp_socket__both_ends_repeat_what_was_lost_without_doubling_the_time") {
  io::OsError error;
  const auto listener = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 48, error);
  REQUIRE(listener);
  const auto connection = io::start_connect_tcp(io::SocketAddress::local_of(listener->get()), {}, 48, error);
  REQUIRE(connection);
  pollfd waiting{.fd = listener->get(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&waiting, 1, 5'000) == 1);
  int number = 0;
  const io::UniqueFd accepted = io::accept_tcp(listener->get(), number);
  REQUIRE(accepted);
  for (const io::UniqueFd* end : {&*connection, &accepted}) {
    int linear = 0;
    socklen_t size = sizeof linear;
    REQUIRE(::getsockopt(end->get(), IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &linear, &size) == 0);
    CHECK(linear == 1);
    std::array<char, 16> control{};
    size = control.size();
    REQUIRE(::getsockopt(end->get(), IPPROTO_TCP, TCP_CONGESTION, control.data(), &size) == 0);
    CHECK(std::string_view(control.data()) == "reno");
  }
}
