// What the kernel knows of the path between two addresses: the largest IP packet that goes there unfragmented, in
// bytes. It starts as the interface's MTU and shrinks when a router says so (ICMP), for ten minutes.
//
// Absent on purpose: any probe. A path that drops large packets without a word looks here as large as the interface.
#pragma once

#include <cstdint>
#include <string>

#include "io/socket_address.h"

namespace mlt::io {

// 0 where the kernel does not say: no route, or no more descriptors. Ports do not matter; nothing is sent. `device`:
// the interface that the datagrams leave by whatever the routes say; empty: by the routes.
std::uint32_t path_mtu(const SocketAddress& from, const SocketAddress& to, const std::string& device = {});

// The bytes of such a packet that a UDP datagram does not have for itself: IP and UDP headers.
std::uint32_t udp_header_bytes(const SocketAddress& to);

}  // namespace mlt::io
