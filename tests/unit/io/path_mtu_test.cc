#include "io/path_mtu.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "io/interface.h"

using namespace mlt::io;

TEST_CASE("path_mtu__on_loopback_is_the_interfaces") {
  for (const char* host : {"127.0.0.1", "::1"}) {
    CAPTURE(host);
    const SocketAddress address = *SocketAddress::from_host(host, 0);
    OsError error;
    const auto interface = find_interface(address, error);
    if (!interface) continue;  // a machine without IPv6
    // An IPv4 packet has 16 bits for its length, and loopback's MTU is 65,536.
    const std::uint32_t expected =
        address.family() == AF_INET ? std::min(interface->mtu_bytes, 65'535U) : interface->mtu_bytes;
    CHECK(path_mtu(address, address.with_port(5'000)) == expected);
    CHECK(path_mtu(address, address) == expected);
  }
}

TEST_CASE("path_mtu__is_unknown_between_families_and_from_an_address_of_another_machine") {
  const SocketAddress four = SocketAddress::loopback(AF_INET, 1);
  const SocketAddress six = SocketAddress::loopback(AF_INET6, 1);
  CHECK(path_mtu(four, six) == 0);
  CHECK(path_mtu(SocketAddress(), SocketAddress()) == 0);
  // 192.0.2.0/24 is reserved for documentation.
  CHECK(path_mtu(*SocketAddress::from_host("192.0.2.1", 0), four) == 0);
}

TEST_CASE("udp_header_bytes__by_ip_version") {
  CHECK(udp_header_bytes(SocketAddress::loopback(AF_INET, 1)) == 28);
  CHECK(udp_header_bytes(SocketAddress::loopback(AF_INET6, 1)) == 48);
}
