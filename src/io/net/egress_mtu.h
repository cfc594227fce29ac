// The MTU of the interface by which datagrams to an address leave: the largest IP packet that this host sends there, in
// bytes.
//
// Absent on purpose: the path behind the interface. What the kernel knows of it comes from ICMP, which anybody can
// forge; the protocol finds it by its own probes (core/mtu_search.h).
#pragma once

#include <cstdint>
#include <string>

#include "io/net/socket_address.h"

namespace mlt::io {

// 0 where the kernel does not say: no route, or no more descriptors. Ports do not matter; nothing is sent. `device`:
// the interface that the datagrams leave by whatever the routes say; empty: by the routes.
std::uint32_t egress_mtu(const SocketAddress& from, const SocketAddress& to, const std::string& device = {});

// The bytes of such a packet that a UDP datagram does not have for itself: IP and UDP headers.
std::uint32_t udp_header_bytes(const SocketAddress& to);

}  // namespace mlt::io
