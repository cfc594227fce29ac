#include "io/path_mtu.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "io/unique_fd.h"

namespace mlt::io {

std::uint32_t path_mtu(const SocketAddress& from, const SocketAddress& to, const std::string& device) {
  if (from.family() != to.family() || (to.family() != AF_INET && to.family() != AF_INET6)) return 0;
  const UniqueFd fd(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return 0;
  if (!device.empty() &&
      ::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, device.c_str(), static_cast<socklen_t>(device.size())) != 0) {
    return 0;
  }
  // From the same address as the datagrams: a routing rule may look at it.
  const SocketAddress any_port = from.with_port(0);
  if (::bind(fd.get(), any_port.raw(), any_port.raw_size()) != 0) return 0;
  const SocketAddress target = to.with_port(std::max<std::uint16_t>(to.port(), 9));
  if (::connect(fd.get(), target.raw(), target.raw_size()) != 0) return 0;
  const bool is_ipv6 = to.family() == AF_INET6;
  int mtu = 0;
  socklen_t size = sizeof mtu;
  const int asked = is_ipv6 ? ::getsockopt(fd.get(), IPPROTO_IPV6, IPV6_MTU, &mtu, &size)
                            : ::getsockopt(fd.get(), IPPROTO_IP, IP_MTU, &mtu, &size);
  return asked == 0 && mtu > 0 ? static_cast<std::uint32_t>(mtu) : 0;
}

std::uint32_t udp_header_bytes(const SocketAddress& to) {
  constexpr std::uint32_t kUdp = 8;
  return kUdp + (to.family() == AF_INET6 ? 40U : 20U);
}

}  // namespace mlt::io
