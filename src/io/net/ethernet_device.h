// What AF_XDP needs to know of the network device behind an address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/net/interface.h"
#include "io/net/next_hop.h"
#include "io/os/os_error.h"

namespace mlt::io {

struct EthernetDevice {
  std::string name;
  unsigned index = 0;
  MacAddress mac{};
  std::uint32_t mtu_bytes = 0;
  std::uint32_t receive_queues = 1;  // queues that packets are spread over; 1 if the driver does not report it
};

// The device that carries `local`, in the calling thread's network namespace. Nothing, with `error` filled, for a
// wildcard address, for loopback and for devices without Ethernet headers.
std::optional<EthernetDevice> find_ethernet_device(const SocketAddress& local, OsError& error);

}  // namespace mlt::io
