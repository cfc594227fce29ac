// The MTU of the interface by which datagrams to an address leave: the largest IP packet that this host sends there, in
// bytes.
//
// Absent on purpose: the path behind the interface. The kernel learns its MTU from ICMP, which can be forged; the
// protocol finds it by its own probes (core/mtu_search.h).
#pragma once

#include <cstdint>
#include <string>

#include "io/net/socket_address.h"

namespace mlt::io {

// 0 if the kernel does not report it: no route, or no descriptor left. Ports do not matter; nothing is sent. `device`:
// the interface used regardless of routes; empty: by the routes.
std::uint32_t egress_mtu(const SocketAddress& from, const SocketAddress& to, const std::string& device = {});

// Bytes of IP and UDP headers in such a packet.
std::uint32_t udp_header_bytes(const SocketAddress& to);

}  // namespace mlt::io
