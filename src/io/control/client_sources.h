// Counts the connections without a proof by source address. When there are too many, the source with the most loses
// one, so a flood from one host evicts its own connections.
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
  // What the clients of one host share: its IPv4 address, or the /64 of its IPv6 address, within which it can use any
  // address.
  using Source = std::uint64_t;
  static Source of(const SocketAddress& address) {
    const auto bytes = address.ip_bytes();
    // An IPv4 address may arrive as an IPv4-mapped IPv6 address.
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

// Maximum number of connections without a proof in a job of `ranks`. Small jobs share one limit, so that a flood cannot
// reveal the number of ranks; a large job reveals its size to a power of two.
constexpr std::size_t max_unproved_of(std::size_t ranks) {
  constexpr std::size_t kMinMaxUnproved = 256;
  // Allowance beyond one per rank, for retries of a rank and unrelated clients.
  constexpr std::size_t kSpareUnproved = 64;
  return std::max(kMinMaxUnproved, std::bit_ceil(ranks + kSpareUnproved));
}

}  // namespace mlt::io
