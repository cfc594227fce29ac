#include "sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "io/net/address_lists.h"
#include "mlt.h"

namespace mlt::van {

namespace {

constexpr int kBacklog = 1'024;
constexpr std::chrono::seconds kExchangeTime{5};

std::string name_of(const std::string& host, std::uint16_t port) { return host + ":" + std::to_string(port); }

io::HostAddresses look_up(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  io::HostAddresses found;
  const int result = io::list_host_addresses(host.c_str(), std::to_string(port).c_str(), hints, found);
  if (result != 0) {
    throw Error(ErrorCode::kConfig, "the host '" + host + "' cannot be looked up: " + ::gai_strerror(result));
  }
  return found;
}

template <typename Call>
sockaddr_storage address_of(const io::UniqueFd& socket, Call call) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (call(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    throw Error(ErrorCode::kSystem, std::string("cannot read the address of a connection: ") + std::strerror(errno));
  }
  return address;
}

std::string numeric(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  const int result = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, host.data(),
                                   host.size(), nullptr, 0, NI_NUMERICHOST);
  if (result != 0) throw Error(ErrorCode::kSystem, std::string("cannot format an address: ") + ::gai_strerror(result));
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

io::UniqueFd listen_at(const std::string& host, std::uint16_t port) {
  const io::HostAddresses found = look_up(host, port);
  io::UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    throw Error(ErrorCode::kPortInUse, name_of(host, port) + " cannot be bound: " + std::strerror(errno));
  }
  return socket;
}

io::UniqueFd connect_to(const std::string& host, std::uint16_t port) {
  const io::HostAddresses found = look_up(host, port);
  io::UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    throw Error(ErrorCode::kRendezvous, name_of(host, port) + " cannot be reached: " + std::strerror(errno));
  }
  return socket;
}

io::UniqueFd accept_from(const io::UniqueFd& listener, int timeout_ms) {
  pollfd ready{listener.get(), POLLIN, 0};
  if (::poll(&ready, 1, timeout_ms) <= 0) return {};
  return io::UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

std::string local_host(const io::UniqueFd& socket) { return numeric(address_of(socket, ::getsockname)); }
std::string remote_host(const io::UniqueFd& socket) { return numeric(address_of(socket, ::getpeername)); }

std::uint16_t local_port(const io::UniqueFd& socket) {
  const sockaddr_storage address = address_of(socket, ::getsockname);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool write_all(const io::UniqueFd& socket, const void* data, std::size_t bytes) {
  return move_all(socket.get(), POLLOUT, bytes, [&](std::size_t from, std::size_t count) {
    return ::send(socket.get(), static_cast<const char*>(data) + from, count, MSG_NOSIGNAL);
  });
}

bool read_all(const io::UniqueFd& socket, void* data, std::size_t bytes) {
  return move_all(socket.get(), POLLIN, bytes, [&](std::size_t from, std::size_t count) {
    return ::recv(socket.get(), static_cast<char*>(data) + from, count, 0);
  });
}

}  // namespace mlt::van
