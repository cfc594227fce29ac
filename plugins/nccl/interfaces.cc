#include "interfaces.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "io/net/address_lists.h"
#include "io/os/unique_fd.h"
#include "mlt.h"
#include "variables/variables.h"

namespace mlt::nccl {

namespace {

struct Candidate {
  std::string name;
  std::string address;
  bool is_loopback = false;
};

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  }
  return text;
}

// Link-local IPv6 addresses are a different interface on every host.
bool is_usable(const sockaddr* address) {
  if (address->sa_family == AF_INET) return true;
  return address->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::vector<Candidate> candidates() {
  io::InterfaceAddresses list;
  if (io::list_interface_addresses(list) != 0) {
    throw Error(ErrorCode::kSystem, std::string("cannot list the network interfaces: ") + std::strerror(errno));
  }
  std::vector<Candidate> found;
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || !is_usable(one->ifa_addr)) continue;
    const std::string name = one->ifa_name;  // with a label after a colon, if the address has one
    found.push_back({name.substr(0, name.find(':')), text_of(one->ifa_addr), (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

std::string list_of(const std::vector<Candidate>& found) {
  std::string text;
  for (const Candidate& one : found) text += (text.empty() ? "" : ", ") + one.name + " " + one.address;
  return text.empty() ? "none" : text;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// The address of this host on the route to `target`, a name or an address. Connecting a UDP socket sends nothing.
std::optional<std::string> source_towards(const std::string& target) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  io::HostAddresses list;
  if (io::list_host_addresses(target.c_str(), "9", hints, list) != 0) return std::nullopt;
  const io::UniqueFd socket(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return std::nullopt;
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  const bool is_known = ::connect(socket.get(), list->ai_addr, list->ai_addrlen) == 0 &&
                        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                        is_usable(reinterpret_cast<const sockaddr*>(&own));
  return is_known ? std::optional(text_of(reinterpret_cast<const sockaddr*>(&own))) : std::nullopt;
}

// This host's address on the route to MASTER_ADDR, else on the default route. A host's own name often leads to
// loopback, where no other host reaches it: only a loopback address or "localhost" means that.
std::optional<std::string> routed_address() {
  if (std::optional<std::string> master = variables::text("MASTER_ADDR")) {
    if (master->starts_with("[") && master->ends_with("]")) master = master->substr(1, master->size() - 2);
    const std::optional<std::string> source = source_towards(*master);
    if (source && (!is_loopback(*source) || is_loopback(*master) || *master == "localhost")) return source;
  }
  // Addresses reserved for documentation: no host has them, so the default route decides.
  for (const char* somewhere : {"192.0.2.1", "2001:db8::1"}) {
    const std::optional<std::string> source = source_towards(somewhere);
    if (source && !is_loopback(*source)) return source;
  }
  return std::nullopt;
}

// A list of names: beginnings, "=exact", "^excluded"; "^" and "=" at its start apply to all of it, as in
// NCCL_SOCKET_IFNAME.
class Selection {
 public:
  Selection(const char* source, const std::string& text) {
    std::string_view body = text;
    const bool all_excluded = take(body, '^');
    const bool all_exact = take(body, '=');
    for (const std::string& item : variables::split(body)) {
      std::string_view name = item;
      const bool is_excluded = take(name, '^') || all_excluded;
      const bool is_exact = take(name, '=') || all_exact;
      if (name.empty())
        variables::reject(source, text, "a name is empty; write names of interfaces with commas between");
      if (name.find_first_of("/:") != std::string_view::npos ||
          std::isdigit(static_cast<unsigned char>(name[0])) != 0) {
        variables::reject(source, text, "the NCCL plugin reads names of interfaces only; give an address in MLT_HOST");
      }
      (is_excluded ? excluded_ : wanted_).push_back({std::string(name), is_exact});
    }
  }

  // Those that are selected, in the order of the list.
  std::vector<Candidate> pick(const std::vector<Candidate>& all) const {
    std::vector<Candidate> left;
    for (const Candidate& one : all) {
      if (std::none_of(excluded_.begin(), excluded_.end(), [&](const Entry& entry) { return entry.matches(one); })) {
        left.push_back(one);
      }
    }
    if (wanted_.empty()) {
      std::erase_if(left, [](const Candidate& one) { return one.is_loopback; });
      return left;
    }
    std::vector<Candidate> picked;
    for (const Entry& entry : wanted_) {
      std::copy_if(left.begin(), left.end(), std::back_inserter(picked),
                   [&](const Candidate& one) { return entry.matches(one); });
    }
    return picked;
  }

 private:
  struct Entry {
    std::string name;
    bool is_exact;
    bool matches(const Candidate& one) const { return is_exact ? one.name == name : one.name.starts_with(name); }
  };

  static bool take(std::string_view& text, char mark) {
    const bool has = text.starts_with(mark);
    if (has) text.remove_prefix(1);
    return has;
  }

  std::vector<Entry> wanted_;
  std::vector<Entry> excluded_;
};

Candidate choose(const std::vector<Candidate>& all) {
  const auto with_address = [](const std::vector<Candidate>& some, const std::string& address) {
    return std::find_if(some.begin(), some.end(), [&](const Candidate& one) { return one.address == address; });
  };
  if (const std::optional<std::string> host = variables::text("MLT_HOST")) {
    const auto found = with_address(all, *host);
    if (found != all.end()) return *found;
    // All of 127.0.0.0/8 is loopback's.
    if (host->starts_with("127.")) return {"lo", *host, true};
    variables::reject("MLT_HOST", *host, "no interface of this host has this address; there are: " + list_of(all));
  }
  const std::optional<std::string> routed = routed_address();
  for (const char* name : {"MLT_INTERFACE", "NCCL_SOCKET_IFNAME"}) {
    const std::optional<std::string> text = variables::text(name);
    if (!text) continue;
    const std::vector<Candidate> picked = Selection(name, *text).pick(all);
    if (picked.empty())
      variables::reject(name, *text, "it selects no interface that is up; there are: " + list_of(all));
    const auto best = with_address(picked, routed.value_or(""));
    return best != picked.end() ? *best : picked.front();
  }
  if (const auto found = with_address(all, routed.value_or("")); found != all.end()) return *found;
  if (routed && is_loopback(*routed)) return {"lo", *routed, true};
  const auto outward = std::find_if(all.begin(), all.end(), [](const Candidate& one) { return !one.is_loopback; });
  if (outward != all.end()) return *outward;
  if (!all.empty()) return all.front();
  throw Error(ErrorCode::kSystem, "this host has no network interface that is up and has an address");
}

// The PCI device of an interface, or that of the virtio device on it; empty if there is none.
std::string pci_path_of(const std::string& interface) {
  const std::unique_ptr<char, decltype(&std::free)> real(
      ::realpath(("/sys/class/net/" + interface + "/device").c_str(), nullptr), &std::free);
  if (!real) return "";
  std::string path = real.get();
  // The last part of a PCI device's path is its address, 0000:00:03.0.
  const auto is_pci = [&] { return path.size() > 12 && path[path.size() - 8] == ':' && path[path.size() - 5] == ':'; };
  if (!is_pci()) path = path.substr(0, path.rfind('/'));
  return is_pci() ? path : "";
}

}  // namespace

int speed_mbps_of(const std::string& name) {
  std::string interface = name;
  for (const Candidate& one : candidates()) {
    if (one.address == name) interface = one.name;
  }
  std::ifstream file("/sys/class/net/" + interface + "/speed");
  int speed = 0;
  return file >> speed && speed > 0 ? speed : 0;
}

Interface choose_interface() {
  const Candidate chosen = choose(candidates());
  return {chosen.name, chosen.address, pci_path_of(chosen.name), speed_mbps_of(chosen.name)};
}

}  // namespace mlt::nccl
