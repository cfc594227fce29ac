// An IP address as the bytes that headers and routing tables hold, in network order.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "io/net/socket_address.h"

namespace mlt::io {

struct IpBytes {
  int family = AF_UNSPEC;
  std::array<std::uint8_t, 16> bytes{};
  std::size_t size = 0;  // 4 or 16

  static IpBytes of(const SocketAddress& address) {
    IpBytes result;
    result.family = address.family();
    if (address.family() == AF_INET) {
      sockaddr_in v4;
      std::memcpy(&v4, address.raw(), sizeof v4);
      result.size = sizeof v4.sin_addr;
      std::memcpy(result.bytes.data(), &v4.sin_addr, result.size);
    } else if (address.family() == AF_INET6) {
      sockaddr_in6 v6;
      std::memcpy(&v6, address.raw(), sizeof v6);
      result.size = sizeof v6.sin6_addr;
      std::memcpy(result.bytes.data(), &v6.sin6_addr, result.size);
    }
    return result;
  }

  // fe80::/10. IPv4's 169.254.0.0/16 needs no interface.
  bool is_link_local() const { return family == AF_INET6 && bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80; }
};

}  // namespace mlt::io
