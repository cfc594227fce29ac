#include "io/control/tcp_socket.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <string_view>

namespace mlt::io {

namespace {

void enable(int fd, int level, int name) {
  const int on = 1;
  ::setsockopt(fd, level, name, &on, sizeof on);  // optional: failure is harmless
}

// PROTOCOL 13.1.7: Packets of the TCP control connection SHOULD carry the control class's DSCP, those of its handshake
//     included.
void mark(int fd, const SocketAddress& address, std::uint8_t dscp) {
  const int traffic_class = dscp << 2;  // the kernel sets the ECN bits of a TCP stream itself
  if (address.family() == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &traffic_class, sizeof traffic_class);
  } else {
    ::setsockopt(fd, IPPROTO_IP, IP_TOS, &traffic_class, sizeof traffic_class);
  }
}

// With few bytes in flight a loss is found by the timeout only. Doubled each time from 200 ms, four losses in a row
// already last as long as the silence limit: the peer would be taken for dead. Reno, which every system has: with BBR
// Linux doubles it all the same.
void repeat_steadily(int fd) {
  static constexpr std::string_view kReno = "reno";
  enable(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS);
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
}

std::optional<UniqueFd> open_tcp(const SocketAddress& address, std::uint8_t dscp, OsError& error) {
  if (address.family() != AF_INET && address.family() != AF_INET6) {
    error = bad_argument("cannot open a control socket without an IPv4 or IPv6 address.");
    return std::nullopt;
  }
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    error = os_error(errno, "open a control socket for", address.format());
    return std::nullopt;
  }
  mark(fd.get(), address, dscp);  // before listen(): accepted sockets inherit both
  // PROTOCOL 3.1.9: Both sides SHOULD enable linear retransmission timeouts in TCP (TCP_THIN_LINEAR_TIMEOUTS).
  repeat_steadily(fd.get());
  return fd;
}

}  // namespace

std::optional<UniqueFd> listen_tcp(const SocketAddress& address, std::uint8_t dscp, OsError& error) {
  auto fd = open_tcp(address, dscp, error);
  if (!fd) return std::nullopt;
  enable(fd->get(), SOL_SOCKET, SO_REUSEADDR);
  if (address.family() == AF_INET6) enable(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY);
  if (::bind(fd->get(), address.raw(), address.raw_size()) != 0 || ::listen(fd->get(), SOMAXCONN) != 0) {
    error = os_error(errno, "listen for control connections on", address.format());
    return std::nullopt;
  }
  return fd;
}

std::optional<UniqueFd> start_connect_tcp(const SocketAddress& address, const SocketAddress& source, std::uint8_t dscp,
                                          OsError& error) {
  auto fd = open_tcp(address, dscp, error);
  if (!fd) return std::nullopt;
  if (source.family() == address.family() && !source.is_wildcard()) {
    enable(fd->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT);  // connect() chooses the port, unlike those of its target
    const SocketAddress from = source.with_port(0);
    if (::bind(fd->get(), from.raw(), from.raw_size()) != 0) {
      error = os_error(errno, "connect from", from.format());
      return std::nullopt;
    }
  }
  // PROTOCOL 3.1.8: Both sides SHOULD send frames at once (TCP_NODELAY).
  enable(fd->get(), IPPROTO_TCP, TCP_NODELAY);
  if (::connect(fd->get(), address.raw(), address.raw_size()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    error = os_error(errno, "connect to", address.format());
    return std::nullopt;
  }
  return fd;
}

UniqueFd accept_tcp(int listener, int& number) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      number = 0;
      enable(fd.get(), IPPROTO_TCP, TCP_NODELAY);
      return fd;
    }
    // A connection that failed in the queue must not stop the accept loop.
    if (errno == EINTR || errno == ECONNABORTED) continue;
    number = errno == EAGAIN ? 0 : errno;
    return UniqueFd();
  }
}

std::optional<base::DurationNs> acknowledgement_age(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info.tcpi_last_ack_recv * base::kMillisecond;
}

bool is_all_acknowledged(int fd) {
  int left = 0;
  return ::ioctl(fd, SIOCOUTQ, &left) != 0 || left == 0;
}

int connect_result(int fd) {
  int number = 0;
  socklen_t size = sizeof number;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size) != 0) return errno;
  if (number == 0 && SocketAddress::local_of(fd) == SocketAddress::remote_of(fd)) return ECONNREFUSED;
  return number;
}

}  // namespace mlt::io
