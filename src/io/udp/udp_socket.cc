#include "io/udp/udp_socket.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

// Newer than the headers of manylinux_2_28.
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif

namespace mlt::io {

namespace {

constexpr int kFlowInfoSend = 33;  // IPV6_FLOWINFO_SEND of linux/in6.h, which conflicts with netinet/in.h

bool set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

int get_option(int fd, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : 0;
}

}  // namespace

std::uint32_t UdpSocket::size_buffer(int force_option, int plain_option, std::uint32_t bytes) {
  const int asked = static_cast<int>(std::min<std::uint32_t>(bytes, std::numeric_limits<int>::max() / 2));
  // FORCE exceeds the system's limit (net.core.rmem_max) and needs CAP_NET_ADMIN; the plain option is capped at the
  // limit.
  if (!set_option(fd_.get(), SOL_SOCKET, force_option, asked)) set_option(fd_.get(), SOL_SOCKET, plain_option, asked);
  return static_cast<std::uint32_t>(get_option(fd_.get(), SOL_SOCKET, plain_option)) / 2;
}

// Sets the path options that the system may reject. Before bind(), so that the address is looked up on the device.
bool UdpSocket::set_path_options(const UdpSocketOptions& options, OsError& error) {
  const int fd = fd_.get();
  if (!options.device.empty() && ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, options.device.c_str(),
                                              static_cast<socklen_t>(options.device.size())) != 0) {
    error = os_error(errno, "bind a UDP socket to interface", options.device);
    return false;
  }
  if (options.flow_labels && !set_option(fd, IPPROTO_IPV6, kFlowInfoSend, 1)) {
    error = os_error(errno, "switch on flow labels for", options.bind.format());
    return false;
  }
  if (options.busy_poll_us == 0) return true;
  if (!set_option(fd, SOL_SOCKET, SO_BUSY_POLL, static_cast<int>(options.busy_poll_us)) ||
      !set_option(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)) {
    error = os_error(errno, "switch on busy polling for", options.bind.format());
    error.text += " Busy polling needs CAP_NET_ADMIN and Linux 5.11; set busy_poll_us to 0 to do without.";
    return false;
  }
  return true;
}

bool UdpSocket::set_segments(std::span<const SocketAddress> segments, OsError& error) {
  // RFC 8754, section 2: the list is in reverse order, its first entry is the destination, which the kernel fills in.
  constexpr std::size_t kMaxSegments = 126;  // the length field counts units of 8 bytes, at most 255
  if (!is_ipv6() || segments.empty() || segments.size() > kMaxSegments ||
      std::any_of(segments.begin(), segments.end(), [](const auto& one) { return one.family() != AF_INET6; })) {
    error = bad_argument("a segment list of SRv6 has 1 to 126 IPv6 addresses, on a path whose own address is IPv6; " +
                         local_.format() + " was given " + std::to_string(segments.size()) + ".");
    return false;
  }
  std::vector<std::byte> header(segment_list_bytes(segments.size()));
  constexpr std::byte kSegmentRouting{4};
  const auto last = static_cast<std::byte>(segments.size());
  header[1] = static_cast<std::byte>(2 * (segments.size() + 1));
  header[2] = kSegmentRouting;
  header[3] = last;  // segments left
  header[4] = last;  // last entry
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto bytes = segments[i].ip_bytes();
    std::copy(bytes.begin(), bytes.end(), header.end() - static_cast<std::ptrdiff_t>(16 * (i + 1)));
  }
  if (::setsockopt(fd_.get(), IPPROTO_IPV6, IPV6_RTHDR, header.data(), static_cast<socklen_t>(header.size())) != 0) {
    error = os_error(errno, "set the segment list of", local_.format());
    error.text += " The kernel needs CONFIG_IPV6_SEG6_LWTUNNEL.";
    return false;
  }
  return true;
}

std::optional<UdpSocket> UdpSocket::open(const UdpSocketOptions& options, OsError& error) {
  const int family = options.bind.family();
  if (family != AF_INET && family != AF_INET6) {
    error = bad_argument(
        "cannot open a UDP socket without an IPv4 or IPv6 address to bind to; give one, such as "
        "127.0.0.1:0.");
    return std::nullopt;
  }
  UdpSocket socket;
  socket.fd_ = UniqueFd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = socket.fd_.get();
  if (fd < 0) {
    error = os_error(errno, "open a UDP socket for", options.bind.format());
    return std::nullopt;
  }
  if (family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (!socket.set_path_options(options, error)) return std::nullopt;
  if (::bind(fd, options.bind.raw(), options.bind.raw_size()) != 0) {
    error = os_error(errno, "bind a UDP socket to", options.bind.format());
    return std::nullopt;
  }
  socket.local_ = SocketAddress::local_of(fd);
  socket.granted_receive_bytes_ = socket.size_buffer(SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer_bytes);
  socket.granted_send_bytes_ = socket.size_buffer(SO_SNDBUFFORCE, SO_SNDBUF, options.send_buffer_bytes);
  if (family == AF_INET) {
    // PROTOCOL 4.1.2: An endpoint MUST NOT act on what ICMP says about the path: anybody can forge it.
    set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    socket.reads_ecn_ = set_option(fd, IPPROTO_IP, IP_RECVTOS, 1);
  } else {
    set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
    socket.reads_ecn_ = set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  }
  // Time of arrival rather than of reading: the round-trip time of the network alone.
  socket.stamps_arrivals_ = set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
  // With each datagram, how many the socket has dropped because its buffer was full.
  set_option(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
  if (options.receive_offload) socket.receive_offload_ = set_option(fd, IPPROTO_UDP, UDP_GRO, 1);
  return socket;
}

bool UdpSocket::probe_segmentation_offload() {
  SocketAddress self = local_;
  if (self.is_wildcard()) self = SocketAddress::loopback(local_.family(), local_.port());
  std::array<std::byte, 2> payload{};
  iovec vector{payload.data(), payload.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(self.raw());
  message.msg_namelen = self.raw_size();
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = IPPROTO_UDP;
  header->cmsg_type = UDP_SEGMENT;
  header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const std::uint16_t one_byte_each = 1;
  std::memcpy(CMSG_DATA(header), &one_byte_each, sizeof one_byte_each);
  if (::sendmsg(fd_.get(), &message, 0) != static_cast<ssize_t>(payload.size())) return false;
  // Reads the probe back, so that it is not taken for traffic. On any loopback path it is already queued; if a packet
  // filter dropped it, nothing has to be read.
  std::size_t seen = 0;
  while (seen < payload.size()) {
    pollfd ready{fd_.get(), POLLIN, 0};
    constexpr int kProbeWaitMs = 50;
    if (::poll(&ready, 1, kProbeWaitMs) <= 0) break;
    std::array<std::byte, 64> sink;
    const ssize_t got = ::recv(fd_.get(), sink.data(), sink.size(), 0);
    if (got < 0 && errno != EINTR && errno != EAGAIN) break;
    if (got > 0) seen += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace mlt::io
