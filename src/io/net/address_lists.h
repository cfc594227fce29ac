// Owners of the lists that the C library allocates: addresses of a host name, addresses of this host's interfaces.
#pragma once

#include <ifaddrs.h>
#include <netdb.h>

#include <memory>

namespace mlt::io {

struct FreeAddressList {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

using HostAddresses = std::unique_ptr<addrinfo, FreeAddressList>;
using InterfaceAddresses = std::unique_ptr<ifaddrs, FreeAddressList>;

// Both return the result of the C library call: 0, or an error that leaves `list` empty.
inline int list_interface_addresses(InterfaceAddresses& list) {
  ifaddrs* raw = nullptr;
  const int status = ::getifaddrs(&raw);
  list.reset(status == 0 ? raw : nullptr);
  return status;
}

// `service`: port number, or nullptr.
inline int list_host_addresses(const char* host, const char* service, const addrinfo& hints, HostAddresses& list) {
  addrinfo* raw = nullptr;
  const int status = ::getaddrinfo(host, service, &hints, &raw);
  list.reset(status == 0 ? raw : nullptr);
  return status;
}

}  // namespace mlt::io
