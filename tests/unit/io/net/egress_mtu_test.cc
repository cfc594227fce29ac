#include "io/net/egress_mtu.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "io/net/interface.h"
#include "support/veth_pair.h"

using namespace mlt::io;

TEST_CASE("egress_mtu__on_loopback_is_the_interfaces") {
  for (const char* host : {"127.0.0.1", "::1"}) {
    CAPTURE(host);
    const SocketAddress address = *SocketAddress::from_host(host, 0);
    OsError error;
    const auto interface = find_interface(address, error);
    if (!interface) continue;  // a machine without IPv6
    // An IPv4 packet has 16 bits for its length, and loopback's MTU is 65,536.
    const std::uint32_t expected =
        address.family() == AF_INET ? std::min(interface->mtu_bytes, 65'535U) : interface->mtu_bytes;
    CHECK(egress_mtu(address, address.with_port(5'000)) == expected);
    CHECK(egress_mtu(address, address) == expected);
  }
}

TEST_CASE("egress_mtu__is_unknown_between_families_and_from_an_address_of_another_machine") {
  const SocketAddress four = SocketAddress::loopback(AF_INET, 1);
  const SocketAddress six = SocketAddress::loopback(AF_INET6, 1);
  CHECK(egress_mtu(four, six) == 0);
  CHECK(egress_mtu(SocketAddress(), SocketAddress()) == 0);
  // 192.0.2.0/24 is reserved for documentation.
  CHECK(egress_mtu(*SocketAddress::from_host("192.0.2.1", 0), four) == 0);
}

TEST_CASE("egress_mtu__is_that_of_the_interface_that_a_path_is_bound_to") {
  if (const std::string missing = mlt::io_test::VethPair::missing(); !missing.empty()) {
    MESSAGE("skipped: " << missing);
    return;
  }
  std::uint32_t by_routes = 0, by_device = 0, by_none = 1;
  mlt::io_test::in_namespace(-1, [&] {
    using mlt::io_test::shell;
    // Two NICs in one network, as with a path for each: the routes know the first alone.
    for (const char* command :
         {"ip link add near type veth peer name near-end", "ip link set near mtu 1500 up", "ip link set near-end up",
          "ip address add 10.99.0.1/24 dev near", "ip link add far type veth peer name far-end",
          "ip link set far mtu 1300 up", "ip link set far-end up", "ip address add 10.99.0.2/32 dev far"}) {
      if (!shell(command)) throw std::runtime_error(command);
    }
    const SocketAddress from = *SocketAddress::from_host("10.99.0.2", 0);
    const SocketAddress to = *SocketAddress::from_host("10.99.0.9", 5'000);
    by_routes = egress_mtu(from, to);
    by_device = egress_mtu(from, to, "far");
    by_none = egress_mtu(from, to, "none0");
  });
  CHECK(by_routes == 1'500);
  CHECK(by_device == 1'300);
  CHECK(by_none == 0);
}

TEST_CASE("udp_header_bytes__by_ip_version") {
  CHECK(udp_header_bytes(SocketAddress::loopback(AF_INET, 1)) == 28);
  CHECK(udp_header_bytes(SocketAddress::loopback(AF_INET6, 1)) == 48);
}
