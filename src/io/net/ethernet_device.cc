#include "io/net/ethernet_device.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/os/unique_fd.h"

namespace mlt::io {

namespace {

constexpr const char* kUseUdp = " use the kernel's UDP (datapath=\"udp\", MLT_DATAPATH=udp).";

std::uint32_t count_receive_queues(int fd, ifreq request) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) return 1;
  return std::max(1U, channels.rx_count + channels.combined_count);
}

}  // namespace

std::optional<EthernetDevice> find_ethernet_device(const SocketAddress& local, OsError& error) {
  if (local.is_wildcard()) {
    error = bad_argument("AF_XDP works on one network interface, and " + local.format() +
                         " stands for all of them: give the address of one (host=, MLT_HOST), or" + kUseUdp);
    return std::nullopt;
  }
  const auto interface = find_interface(local, error);
  if (!interface) return std::nullopt;
  if (interface->is_loopback) {
    // Two ranks would share lo, which takes one program; and loopback copies from socket to socket, so that there is no
    // work to bypass.
    error = bad_argument("AF_XDP does not support loopback, the interface of " + local.host() +
                         ": give the address of a network interface (host=, MLT_HOST), or" + kUseUdp);
    return std::nullopt;
  }
  EthernetDevice device;
  device.name = interface->name;
  device.mtu_bytes = interface->mtu_bytes;
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, device.name.c_str(), IFNAMSIZ - 1);
  if (!fd || ::ioctl(fd.get(), SIOCGIFINDEX, &request) != 0) {
    error = os_error(errno, "find the number of interface", device.name);
    return std::nullopt;
  }
  device.index = static_cast<unsigned>(request.ifr_ifindex);
  if (::ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) {
    error = os_error(errno, "read the Ethernet address of", device.name);
    return std::nullopt;
  }
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) {
    error = bad_argument("AF_XDP needs an Ethernet interface, and " + device.name + ", where " + local.host() +
                         " is, has no Ethernet headers (a tunnel?):" + kUseUdp);
    return std::nullopt;
  }
  std::memcpy(device.mac.data(), request.ifr_hwaddr.sa_data, device.mac.size());
  device.receive_queues = count_receive_queues(fd.get(), request);
  return device;
}

}  // namespace mlt::io
