// What the system reports of the network interface behind an address: MTU and link speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/net/socket_address.h"
#include "io/os/os_error.h"

namespace mlt::io {

struct InterfaceInfo {
  std::string name;
  std::uint32_t mtu_bytes = 0;              // largest IP packet
  std::uint64_t speed_bits_per_second = 0;  // 0: unknown (loopback, veth before Linux 6.x, link down)
  bool is_loopback = false;
};

// The interface that has `local`, an address of this host. For a wildcard address: the interface with the smallest MTU
// among those that are up and have an address of that family, because any of them may be used.
std::optional<InterfaceInfo> find_interface(const SocketAddress& local, OsError& error);

// The first address of `family` on the interface called `name`, port 0.
std::optional<SocketAddress> address_of_interface(const std::string& name, int family, OsError& error);

}  // namespace mlt::io
