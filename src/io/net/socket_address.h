// An IPv4 or IPv6 address with a port, as system calls take it and as text.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/os/os_error.h"

namespace mlt::io {

class SocketAddress {
 public:
  SocketAddress() = default;  // no address: family() is AF_UNSPEC

  // "192.0.2.1:5000", "[2001:db8::1]:5000", "[fe80::1%eth0]:5000". Numbers only; names need resolve().
  static std::optional<SocketAddress> parse(std::string_view text);
  // `host` without brackets: "192.0.2.1", "2001:db8::1", "fe80::1%eth0".
  static std::optional<SocketAddress> from_host(std::string_view host, std::uint16_t port);
  // Calls the system's resolver, which may block: never call it from an I/O thread. Takes the first result; IPv4 is
  // preferred so that "localhost" means the same on every host.
  static std::optional<SocketAddress> resolve(const std::string& host, std::uint16_t port, OsError& error);

  static SocketAddress from_raw(const sockaddr_storage& storage);
  // 16 bytes of an IPv6 address; ::ffff:a.b.c.d becomes the IPv4 address. A link-local address loses its scope.
  static SocketAddress from_ip_bytes(const std::array<std::byte, 16>& bytes, std::uint16_t port);
  static SocketAddress loopback(int family, std::uint16_t port);
  // The address that `fd` is bound to; no address if the system returns none.
  static SocketAddress local_of(int fd);
  static SocketAddress remote_of(int fd);

  int family() const { return storage_.sin6_family; }
  bool is_wildcard() const;
  bool is_loopback() const;  // 127.0.0.0/8, also as ::ffff:127.0.0.0/104, or ::1
  std::uint16_t port() const;
  SocketAddress with_port(std::uint16_t port) const;

  // Inverse of from_ip_bytes(); all zero without an address.
  std::array<std::byte, 16> ip_bytes() const;
  // A copy with an IPv6 flow label of 20 bits; IPv4 has none and is unchanged.
  SocketAddress with_flow_label(std::uint32_t label) const;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t raw_size() const;

  std::string host() const;    // without brackets or port
  std::string format() const;  // what parse() reads; "(no address)" if there is none

  // Same family, host, port and scope.
  bool operator==(const SocketAddress& other) const;

 private:
  // Of either family: a sockaddr_in begins with the same field, and is shorter. A job has several of each peer.
  sockaddr_in6 storage_{};
};

}  // namespace mlt::io
