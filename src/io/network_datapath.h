// A datapath that reaches its peers at addresses of the IP network: kernel UDP, AF_XDP. Memory has no addresses.
#pragma once

#include <cstdint>

#include "io/datapath.h"
#include "io/os_error.h"
#include "io/socket_address.h"

namespace mlt::io {

class NetworkDatapath : public Datapath {
 public:
  // Where rank `rank` receives. False, with `error` filled, if the rank is out of range or the address is of another
  // family than ours. May be called again.
  virtual bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) = 0;

  // Where this rank receives; what peers are told.
  virtual const SocketAddress& local_address() const = 0;
};

}  // namespace mlt::io
