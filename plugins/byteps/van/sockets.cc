#include "sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "mlt.h"

namespace mlt::van {

namespace {

constexpr int kBacklog = 1'024;
constexpr std::chrono::seconds kExchangeTime{5};

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string place(const std::string& host, std::uint16_t port) { return host + ":" + std::to_string(port); }

Addresses look_up(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0) {
    throw Error(ErrorCode::kConfig, "the host '" + host + "' cannot be looked up: " + ::gai_strerror(result));
  }
  return Addresses(found);
}

template <typename Call>
sockaddr_storage address_of(const Descriptor& socket, Call call) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (call(socket.fd(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    throw Error(ErrorCode::kSystem, std::string("a connection has no address: ") + std::strerror(errno));
  }
  return address;
}

std::string numeric(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  const int result = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, host.data(),
                                   host.size(), nullptr, 0, NI_NUMERICHOST);
  if (result != 0) throw Error(ErrorCode::kSystem, std::string("an address has no text: ") + ::gai_strerror(result));
  return host.data();
}

// Moves all of the bytes by `step`, which waits for `events`.
template <typename Step>
bool move_all(int fd, short events, std::size_t bytes, Step step) {
  const auto end = std::chrono::steady_clock::now() + kExchangeTime;
  std::size_t moved = 0;
  while (moved < bytes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd ready{fd, events, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) == 0) return false;
    const ssize_t now = step(moved, bytes - moved);
    if (now == 0 || (now < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (now > 0) moved += static_cast<std::size_t>(now);
  }
  return true;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor listen_at(const std::string& host, std::uint16_t port) {
  const Addresses found = look_up(host, port);
  Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket || ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.fd(), kBacklog) != 0) {
    throw Error(ErrorCode::kPortInUse, place(host, port) + " cannot be bound: " + std::strerror(errno));
  }
  return socket;
}

Descriptor connect_to(const std::string& host, std::uint16_t port) {
  const Addresses found = look_up(host, port);
  Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.fd(), found->ai_addr, found->ai_addrlen) != 0) {
    throw Error(ErrorCode::kRendezvous, place(host, port) + " cannot be reached: " + std::strerror(errno));
  }
  return socket;
}

Descriptor accept_from(const Descriptor& listener, int timeout_ms) {
  pollfd ready{listener.fd(), POLLIN, 0};
  if (::poll(&ready, 1, timeout_ms) <= 0) return {};
  return Descriptor(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
}

std::string local_host(const Descriptor& socket) { return numeric(address_of(socket, ::getsockname)); }
std::string remote_host(const Descriptor& socket) { return numeric(address_of(socket, ::getpeername)); }

std::uint16_t local_port(const Descriptor& socket) {
  const sockaddr_storage address = address_of(socket, ::getsockname);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool write_all(const Descriptor& socket, const void* data, std::size_t bytes) {
  return move_all(socket.fd(), POLLOUT, bytes, [&](std::size_t from, std::size_t count) {
    return ::send(socket.fd(), static_cast<const char*>(data) + from, count, MSG_NOSIGNAL);
  });
}

bool read_all(const Descriptor& socket, void* data, std::size_t bytes) {
  return move_all(socket.fd(), POLLIN, bytes, [&](std::size_t from, std::size_t count) {
    return ::recv(socket.fd(), static_cast<char*>(data) + from, count, 0);
  });
}

}  // namespace mlt::van
