#include "io/net/next_hop.h"

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>

#include <algorithm>

#include "io/net/ip_bytes.h"

namespace mlt::io {

namespace {

constexpr unsigned kUsableStates = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;

template <typename Value>
Value read(std::span<const std::byte> bytes) {
  Value value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

struct Route {
  bool plain = false;      // unicast, by the given interface, without encapsulation
  unsigned leaves_by = 0;  // interface; 0: no route
  IpBytes gateway;         // next hop; the peer itself on the same network
};

IpBytes gateway_of(int family, std::span<const std::byte> value) {
  IpBytes gateway;
  gateway.family = family;
  gateway.size = std::min(value.size(), gateway.bytes.size());
  std::memcpy(gateway.bytes.data(), value.data(), gateway.size);
  return gateway;
}

Route find_route(Netlink& netlink, unsigned interface, const IpBytes& from, const IpBytes& to) {
  const auto bits = static_cast<unsigned char>(to.size * 8);
  rtmsg question{};
  question.rtm_family = static_cast<unsigned char>(to.family);
  question.rtm_dst_len = bits;
  question.rtm_src_len = bits;
  NetlinkMessage message(RTM_GETROUTE, 0, question);
  message.attribute(RTA_DST, to.bytes.data(), to.size);
  message.attribute(RTA_SRC, from.bytes.data(), from.size);
  // A link-local address identifies a different host on each link.
  if (to.is_link_local() && interface != 0) message.attribute(RTA_OIF, interface);
  std::span<const std::byte> answer;
  Route route;
  if (netlink.request(message, answer) != 0 || answer.size() < sizeof(rtmsg)) return route;
  route.gateway = to;
  const auto found = read<rtmsg>(answer);
  bool encapsulated = false;
  NetlinkAttributes attributes(answer.subspan(NLMSG_ALIGN(sizeof(rtmsg))));
  std::uint16_t type = 0;
  std::span<const std::byte> value;
  while (attributes.next(type, value)) {
    if (type == RTA_OIF) route.leaves_by = read<unsigned>(value);
    if (type == RTA_GATEWAY) route.gateway = gateway_of(to.family, value);
    if (type == RTA_VIA && value.size() > sizeof(rtvia)) {
      route.gateway = gateway_of(read<rtvia>(value).rtvia_family, value.subspan(sizeof(rtvia)));
    }
    if (type == RTA_ENCAP) encapsulated = true;
  }
  route.plain = found.rtm_type == RTN_UNICAST && route.leaves_by == interface && !encapsulated;
  return route;
}

}  // namespace

NextHop find_next_hop(Netlink& netlink, unsigned interface, const SocketAddress& from, const SocketAddress& to) {
  NextHop hop;
  const Route route = find_route(netlink, interface, IpBytes::of(from), IpBytes::of(to));
  if (!route.plain) return hop;
  hop.kind = NextHopKind::kUnresolved;
  ndmsg question{};
  question.ndm_family = static_cast<unsigned char>(route.gateway.family);
  question.ndm_ifindex = static_cast<int>(interface);
  NetlinkMessage message(RTM_GETNEIGH, 0, question);
  message.attribute(NDA_DST, route.gateway.bytes.data(), route.gateway.size);
  std::span<const std::byte> answer;
  if (netlink.request(message, answer) != 0 || answer.size() < sizeof(ndmsg)) return hop;
  if ((read<ndmsg>(answer).ndm_state & kUsableStates) == 0) return hop;
  NetlinkAttributes attributes(answer.subspan(NLMSG_ALIGN(sizeof(ndmsg))));
  std::uint16_t type = 0;
  std::span<const std::byte> value;
  while (attributes.next(type, value)) {
    if (type != NDA_LLADDR || value.size() != hop.mac.size()) continue;
    hop.mac = read<MacAddress>(value);
    hop.kind = NextHopKind::kKnown;
  }
  return hop;
}

unsigned find_egress(Netlink& netlink, const SocketAddress& from, const SocketAddress& to) {
  return find_route(netlink, 0, IpBytes::of(from), IpBytes::of(to)).leaves_by;
}

}  // namespace mlt::io
