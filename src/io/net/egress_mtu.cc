#include "io/net/egress_mtu.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "io/net/next_hop.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

namespace {

// The length field of an IPv4 packet has 16 bits.
constexpr std::uint32_t kMaxIpv4PacketBytes = 65'535;

bool name_of_egress(const SocketAddress& from, const SocketAddress& to, const std::string& device, ifreq& request) {
  if (!device.empty()) {
    std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
    return true;
  }
  OsError error;
  auto netlink = Netlink::open(error);
  const unsigned index = netlink ? find_egress(*netlink, from, to) : 0;
  return index != 0 && ::if_indextoname(index, request.ifr_name) != nullptr;
}

}  // namespace

std::uint32_t egress_mtu(const SocketAddress& from, const SocketAddress& to, const std::string& device) {
  if (from.family() != to.family() || (to.family() != AF_INET && to.family() != AF_INET6)) return 0;
  ifreq request{};
  if (!name_of_egress(from, to, device, request)) return 0;
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::ioctl(fd.get(), SIOCGIFMTU, &request) != 0 || request.ifr_mtu <= 0) return 0;
  const auto mtu = static_cast<std::uint32_t>(request.ifr_mtu);
  return to.family() == AF_INET ? std::min(mtu, kMaxIpv4PacketBytes) : mtu;
}

std::uint32_t udp_header_bytes(const SocketAddress& to) {
  constexpr std::uint32_t kUdp = 8;
  return kUdp + (to.family() == AF_INET6 ? 40U : 20U);
}

}  // namespace mlt::io
