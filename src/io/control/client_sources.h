// From where the connections without a proof come. A flood from one host takes the places of its own connections.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/check.h"
#include "io/net/socket_address.h"

namespace mlt::io {

class ClientSources {
 public:
  // What clients of one host share: its IPv4 address, or the /64 of its IPv6 address, in which it can take any.
  using Source = std::uint64_t;
  static Source of(const SocketAddress& address) {
    const auto bytes = address.ip_bytes();
    // An IPv4 address may come as an IPv6 one.
    const std::size_t first = SocketAddress::from_ip_bytes(bytes, 0).family() == AF_INET ? 8 : 0;
    Source source = 0;
    for (std::size_t i = first; i < first + 8; ++i) source = source << 8 | static_cast<std::uint8_t>(bytes[i]);
    return source;
  }

  void add(Source source) {
    ++counts_[source];
    ++clients_;
  }
  void remove(Source source) {
    const auto found = counts_.find(source);
    MLT_CHECK(found != counts_.end());
    if (--found->second == 0) counts_.erase(found);
    --clients_;
  }
  std::size_t clients() const { return clients_; }
  std::size_t clients_of(Source source) const {
    const auto found = counts_.find(source);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  std::unordered_map<Source, std::size_t> counts_;
  std::size_t clients_ = 0;
};

// Connections without a proof in a job of `ranks`. Small jobs have the same number, so that a flood does not count
// ranks; of a large one it shows the size to a power of two.
constexpr std::size_t max_unproved_of(std::size_t ranks) {
  constexpr std::size_t kMinMaxUnproved = 256;
  // Beyond one per rank: retries of the same rank and unrelated clients.
  constexpr std::size_t kSpareUnproved = 64;
  return std::max(kMinMaxUnproved, std::bit_ceil(ranks + kSpareUnproved));
}

}  // namespace mlt::io
