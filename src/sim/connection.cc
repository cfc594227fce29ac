#include "sim/connection.h"

#include "base/check.h"
#include "wire/packet.h"

namespace mlt::sim {

Connections::Connections(std::uint16_t hosts, std::uint64_t seed) : hosts_(hosts), prng_(seed) {}

std::uint64_t Connections::open(std::uint16_t a, std::uint16_t b) {
  MLT_CHECK(a != b && number(a, b) == 0);
  Pair& opened = pairs_[key(a, b)];
  opened.number = ++opened_;
  const std::uint16_t low = a < b ? a : b;
  const std::uint16_t high = a < b ? b : a;
  // The low 16 bits of a cookie name the sender.
  opened.cookies[0] = (prng_.next() & ~std::uint64_t{MLT_COOKIE_RANK_MASK}) | low;
  opened.cookies[1] = (prng_.next() & ~std::uint64_t{MLT_COOKIE_RANK_MASK}) | high;
  return opened.number;
}

void Connections::close(std::uint16_t a, std::uint16_t b) { pairs_[key(a, b)].number = 0; }

}  // namespace mlt::sim
