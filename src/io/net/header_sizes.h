// Bytes of the headers around a datagram: Ethernet without VLAN tags, IPv4 without options (RFC 791), IPv6 without
// extension headers (RFC 8200), UDP (RFC 768).
#pragma once

#include <cstdint>

namespace mlt::io {

inline constexpr std::uint32_t kEthernetHeaderBytes = 14;
inline constexpr std::uint32_t kIpv4HeaderBytes = 20;
inline constexpr std::uint32_t kIpv6HeaderBytes = 40;
inline constexpr std::uint32_t kUdpHeaderBytes = 8;

}  // namespace mlt::io
