#include "io/net/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "io/net/address_lists.h"

namespace mlt::io {

namespace {

// Copies the storage into one family's structure, to respect strict aliasing.
template <typename Family>
Family as(const sockaddr_in6& storage) {
  static_assert(sizeof(Family) <= sizeof storage);
  Family result;
  std::memcpy(&result, &storage, sizeof result);
  return result;
}

template <typename Family>
sockaddr_in6 store(const Family& address) {
  static_assert(sizeof address <= sizeof(sockaddr_in6));
  sockaddr_in6 storage{};
  std::memcpy(&storage, &address, sizeof address);
  return storage;
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (status != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return port;
}

// A scope is an interface name or index.
std::optional<std::uint32_t> parse_scope(const std::string& scope) {
  if (const unsigned index = if_nametoindex(scope.c_str()); index != 0) return index;
  std::uint32_t index = 0;
  const auto [end, status] = std::from_chars(scope.data(), scope.data() + scope.size(), index);
  if (status != std::errc{} || end != scope.data() + scope.size() || index == 0) return std::nullopt;
  return index;
}

}  // namespace

std::optional<SocketAddress> SocketAddress::from_host(std::string_view host, std::uint16_t port) {
  SocketAddress result;
  sockaddr_in v4{};
  const std::string text(host);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    result.storage_ = store(v4);
    return result;
  }
  sockaddr_in6 v6{};
  const std::size_t percent = text.find('%');
  if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), &v6.sin6_addr) != 1) return std::nullopt;
  if (percent != std::string::npos) {
    const auto scope = parse_scope(text.substr(percent + 1));
    if (!scope) return std::nullopt;
    v6.sin6_scope_id = *scope;
  }
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  result.storage_ = store(v6);
  return result;
}

std::optional<SocketAddress> SocketAddress::parse(std::string_view text) {
  std::string_view host;
  std::string_view rest;
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
    if (host.find(':') == std::string_view::npos) return std::nullopt;  // only IPv6 addresses have brackets
  } else {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (rest.empty() || rest.front() != ':') return std::nullopt;
  const auto port = parse_port(rest.substr(1));
  if (!port) return std::nullopt;
  return from_host(host, *port);
}

std::optional<SocketAddress> SocketAddress::resolve(const std::string& host, std::uint16_t port, OsError& error) {
  if (auto number = from_host(host, port)) return number;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // one result per address, not one per socket type
  HostAddresses answers;
  const int status = list_host_addresses(host.c_str(), nullptr, hints, answers);
  if (status != 0) {
    error.code = OsErrorCode::kUnreachable;
    error.number = status == EAI_SYSTEM ? errno : 0;
    error.text = "cannot resolve host name \"" + host +
                 "\": " + (status == EAI_SYSTEM ? errno_text(error.number) : std::string(gai_strerror(status))) +
                 ". Check the spelling and `getent hosts`, or give the address as numbers.";
    return std::nullopt;
  }
  std::optional<SocketAddress> found;
  for (const addrinfo* answer = answers.get(); answer != nullptr; answer = answer->ai_next) {
    if (answer->ai_family != AF_INET && answer->ai_family != AF_INET6) continue;
    if (found && answer->ai_family != AF_INET) continue;
    const bool better = !found || found->family() != AF_INET;
    if (!better) continue;
    SocketAddress candidate;
    std::memcpy(&candidate.storage_, answer->ai_addr, answer->ai_addrlen);
    found = candidate.with_port(port);
  }
  if (!found) error = bad_argument("host name \"" + host + "\" has no IPv4 or IPv6 address; give one as numbers.");
  return found;
}

SocketAddress SocketAddress::from_raw(const sockaddr_storage& storage) {
  SocketAddress result;
  if (storage.ss_family == AF_INET || storage.ss_family == AF_INET6) {
    std::memcpy(&result.storage_, &storage, sizeof result.storage_);
  }
  return result;
}

namespace {
constexpr std::array<std::byte, 12> kMappedPrefix = {std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                                     std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                                     std::byte{0}, std::byte{0}, std::byte{0xFF}, std::byte{0xFF}};
}  // namespace

SocketAddress SocketAddress::from_ip_bytes(const std::array<std::byte, 16>& bytes, std::uint16_t port) {
  SocketAddress result;
  if (std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin())) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, bytes.data() + kMappedPrefix.size(), sizeof v4.sin_addr);
    result.storage_ = store(v4);
  } else {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, bytes.data(), sizeof v6.sin6_addr);
    result.storage_ = store(v6);
  }
  return result;
}

std::array<std::byte, 16> SocketAddress::ip_bytes() const {
  std::array<std::byte, 16> bytes{};
  if (family() == AF_INET) {
    const auto v4 = as<sockaddr_in>(storage_);
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin());
    std::memcpy(bytes.data() + kMappedPrefix.size(), &v4.sin_addr, sizeof v4.sin_addr);
  } else if (family() == AF_INET6) {
    const auto v6 = as<sockaddr_in6>(storage_);
    std::memcpy(bytes.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  }
  return bytes;
}

SocketAddress SocketAddress::with_flow_label(std::uint32_t label) const {
  SocketAddress result = *this;
  if (family() == AF_INET6) {
    auto v6 = as<sockaddr_in6>(storage_);
    v6.sin6_flowinfo = htonl(label & 0xF'FFFFU);
    result.storage_ = store(v6);
  }
  return result;
}

SocketAddress SocketAddress::loopback(int family, std::uint16_t port) {
  return *from_host(family == AF_INET6 ? "::1" : "127.0.0.1", port);
}

SocketAddress SocketAddress::local_of(int fd) {
  SocketAddress result;
  socklen_t size = sizeof result.storage_;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&result.storage_), &size) != 0) return {};
  return result;
}

SocketAddress SocketAddress::remote_of(int fd) {
  SocketAddress result;
  socklen_t size = sizeof result.storage_;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&result.storage_), &size) != 0) return {};
  return result;
}

bool SocketAddress::is_wildcard() const {
  if (family() == AF_INET) return as<sockaddr_in>(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
  if (family() == AF_INET6) {
    const auto v6 = as<sockaddr_in6>(storage_);
    return std::memcmp(&v6.sin6_addr, &in6addr_any, sizeof in6addr_any) == 0;
  }
  return false;
}

bool SocketAddress::is_loopback() const {
  const std::array<std::byte, 16> bytes = ip_bytes();
  constexpr std::array<std::uint8_t, 13> kMappedNet = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127};
  return std::memcmp(bytes.data(), kMappedNet.data(), kMappedNet.size()) == 0 ||
         std::memcmp(bytes.data(), &in6addr_loopback, sizeof in6addr_loopback) == 0;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(as<sockaddr_in>(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(as<sockaddr_in6>(storage_).sin6_port);
  return 0;
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress result;
  if (family() == AF_INET) {
    auto v4 = as<sockaddr_in>(storage_);
    v4.sin_port = htons(port);
    result.storage_ = store(v4);
  } else if (family() == AF_INET6) {
    auto v6 = as<sockaddr_in6>(storage_);
    v6.sin6_port = htons(port);
    result.storage_ = store(v6);
  }
  return result;
}

socklen_t SocketAddress::raw_size() const {
  if (family() == AF_INET) return sizeof(sockaddr_in);
  if (family() == AF_INET6) return sizeof(sockaddr_in6);
  return 0;
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (family() == AF_INET) {
    const auto v4 = as<sockaddr_in>(storage_);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return text.data();
  }
  if (family() != AF_INET6) return {};
  const auto v6 = as<sockaddr_in6>(storage_);
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  std::string result = text.data();
  if (v6.sin6_scope_id != 0) {
    std::array<char, IF_NAMESIZE> name{};
    const char* found = if_indextoname(v6.sin6_scope_id, name.data());
    result += '%';
    result += found != nullptr ? std::string(found) : std::to_string(v6.sin6_scope_id);
  }
  return result;
}

std::string SocketAddress::format() const {
  if (family() == AF_INET) return host() + ":" + std::to_string(port());
  if (family() == AF_INET6) return "[" + host() + "]:" + std::to_string(port());
  return "(no address)";
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  if (family() != other.family() || port() != other.port()) return false;
  if (family() == AF_INET) {
    return as<sockaddr_in>(storage_).sin_addr.s_addr == as<sockaddr_in>(other.storage_).sin_addr.s_addr;
  }
  if (family() != AF_INET6) return true;
  const auto mine = as<sockaddr_in6>(storage_);
  const auto theirs = as<sockaddr_in6>(other.storage_);
  return std::memcmp(&mine.sin6_addr, &theirs.sin6_addr, sizeof mine.sin6_addr) == 0 &&
         mine.sin6_scope_id == theirs.sin6_scope_id;
}

}  // namespace mlt::io
