// Which Ethernet address a datagram for a peer is sent to: the kernel's route, then the kernel's neighbour table.
//
// We only read what the kernel knows. Not a path's MTU: it may be what a forged ICMP message said. Where it does not
// know a neighbour yet, a datagram through an ordinary socket makes it find out (ARP, neighbour discovery): that is the
// caller's part.
#pragma once

#include <array>
#include <cstdint>

#include "io/net/netlink.h"
#include "io/net/socket_address.h"

namespace mlt::io {

using MacAddress = std::array<std::uint8_t, 6>;

enum class NextHopKind : std::uint8_t {
  kElsewhere,   // no route, or one that does not leave by this interface as a plain frame: a tunnel, our own address
  kUnresolved,  // by this interface, but the neighbour's Ethernet address is not known (yet)
  kKnown,
};

struct NextHop {
  NextHopKind kind = NextHopKind::kElsewhere;
  MacAddress mac{};
};

// For datagrams from `from` to `to` (the same IP version) that are to leave by interface number `interface`.
NextHop find_next_hop(Netlink& netlink, unsigned interface, const SocketAddress& from, const SocketAddress& to);

// The number of the interface by which datagrams from `from` to `to` leave; 0: no route.
unsigned find_egress(Netlink& netlink, const SocketAddress& from, const SocketAddress& to);

}  // namespace mlt::io
