// The Ethernet address for datagrams to a peer: the kernel's route, then the kernel's neighbour table.
//
// This only reads what the kernel knows, and not a path's MTU, which a forged ICMP message may have set. If the
// neighbour is unknown, the caller sends a datagram through an ordinary socket, which makes the kernel resolve it (ARP,
// neighbour discovery).
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
