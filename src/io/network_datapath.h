// A datapath that reaches its peers at IP addresses: kernel UDP, AF_XDP. The in-memory datapath has no addresses.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/datapath.h"
#include "io/net/socket_address.h"
#include "io/os/os_error.h"

namespace mlt::io {

class NetworkDatapath : public Datapath {
 public:
  // Sets where rank `rank` receives. False, with `error` filled, if the rank is out of range or the address is of
  // another family. May be called again.
  virtual bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) = 0;

  // Where this rank receives; sent to peers. With several paths: path 0.
  virtual const SocketAddress& local_address() const = 0;

  // Number of paths to each peer, 1 to MLT_MAX_PATHS; DatagramRun::path is below it.
  virtual std::uint8_t paths() const { return 1; }
  // Where this rank receives on `path`, which is below paths().
  virtual const SocketAddress& path_address(std::uint8_t) const { return local_address(); }
  // The interface that `path` uses regardless of routes; empty: by the routes.
  virtual std::string path_device(std::uint8_t) const { return {}; }
  // Like set_peer(), with an address per path.
  virtual bool set_peer_paths(std::uint16_t rank, std::span<const SocketAddress> addresses, OsError& error) {
    if (addresses.size() == 1) return set_peer(rank, addresses[0], error);
    error = bad_argument("rank " + std::to_string(rank) + " has " + std::to_string(addresses.size()) +
                         " paths and this datapath one; give every rank the same number.");
    return false;
  }
  // Runs sent and failed on `path`; zeros if the datapath does not count by path.
  struct PathCount {
    std::uint64_t runs_sent = 0;
    std::uint64_t runs_failed = 0;  // rejected by the system, or too large
  };
  virtual PathCount path_count(std::uint8_t) const { return {}; }
};

}  // namespace mlt::io
