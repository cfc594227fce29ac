#include "io/net/interface.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "io/net/address_lists.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

namespace {

SocketAddress address_of(const ifaddrs& entry) {
  sockaddr_storage storage{};
  const std::size_t size = entry.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&storage, entry.ifa_addr, size);
  return SocketAddress::from_raw(storage);
}

// Every address of 127.0.0.0/8 belongs to the loopback interface, though only one is listed.
bool in_loopback_net(const SocketAddress& address) {
  return address.family() == AF_INET && address.host().starts_with("127.");
}

std::uint64_t read_speed(const std::string& name) {
  // Megabits per second; -1 if the driver does not know, EINVAL if it does not report it.
  std::ifstream file("/sys/class/net/" + name + "/speed");
  long long megabits = 0;
  if (!(file >> megabits) || megabits <= 0) return 0;
  return static_cast<std::uint64_t>(megabits) * 1'000'000;
}

// The entry of an address may have a label instead: the name, a colon, a suffix.
std::string name_of(const ifaddrs& entry) {
  const std::string label = entry.ifa_name;
  return label.substr(0, label.find(':'));
}

std::optional<InterfaceInfo> describe(const std::string& name, unsigned flags, OsError& error) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    error = os_error(errno, "open a socket to query interface", name);
    return std::nullopt;
  }
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (::ioctl(fd.get(), SIOCGIFMTU, &request) != 0) {
    error = os_error(errno, "read the MTU of interface", name);
    return std::nullopt;
  }
  InterfaceInfo info;
  info.name = name;
  info.mtu_bytes = static_cast<std::uint32_t>(request.ifr_mtu);
  info.is_loopback = (flags & IFF_LOOPBACK) != 0;
  info.speed_bits_per_second = read_speed(info.name);
  return info;
}

}  // namespace

std::optional<InterfaceInfo> find_interface(const SocketAddress& local, OsError& error) {
  InterfaceAddresses list;
  if (list_interface_addresses(list) != 0) {
    error = os_error(errno, "list the network interfaces", "");
    return std::nullopt;
  }
  std::optional<InterfaceInfo> best;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != local.family()) continue;
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    const bool matches = local.is_wildcard() || address_of(*entry).host() == local.host() ||
                         (in_loopback_net(local) && (entry->ifa_flags & IFF_LOOPBACK) != 0);
    if (!matches) continue;
    const auto info = describe(name_of(*entry), entry->ifa_flags, error);
    if (info && (!best || info->mtu_bytes < best->mtu_bytes)) best = info;
  }
  if (best) {
    error = {};
  } else if (!error) {
    error = os_error(EADDRNOTAVAIL, "find the network interface of", local.host());
  }
  return best;
}

std::optional<SocketAddress> address_of_interface(const std::string& name, int family, OsError& error) {
  InterfaceAddresses list;
  if (list_interface_addresses(list) != 0) {
    error = os_error(errno, "list the network interfaces", "");
    return std::nullopt;
  }
  std::optional<SocketAddress> found;
  for (const ifaddrs* entry = list.get(); entry != nullptr && !found; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family || name != name_of(*entry)) continue;
    const SocketAddress address = address_of(*entry).with_port(0);
    // A link-local address is meaningless to a peer on another link.
    if (!address.host().starts_with("fe80:")) found = address;
  }
  if (!found) {
    error = bad_argument("interface " + name + " has no " + (family == AF_INET ? "IPv4" : "IPv6") +
                         " address that peers could reach, or does not exist; `ip address` lists all interfaces.");
  }
  return found;
}

}  // namespace mlt::io
