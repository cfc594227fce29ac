#include "engine/hello_negotiation.h"

#include <sys/random.h>

#include <algorithm>

#include "mlt.h"
#include "wire/packet.h"

namespace mlt::engine {

namespace {

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) {
    throw Error(ErrorCode::kSystem, "getrandom() failed: no random bytes for the connection's cookie");
  }
  return value;
}

}  // namespace

HelloNegotiation::HelloNegotiation(std::uint16_t rank, std::uint16_t ranks, std::uint32_t segment_bytes,
                                   std::uint32_t receive_buffer_bytes)
    : rank_(rank), segment_bytes_(segment_bytes) {
  // The packets that all peers send at once must fit the socket buffer, in which a small packet takes more than its
  // bytes.
  const std::uint32_t senders = std::clamp<std::uint32_t>(ranks - 1U, 1, 8);
  // PROTOCOL 3.2.8: A rank SHOULD offer as window a third of its socket's receive buffer (with several paths, of the
  //     smallest: the others may fail) divided by the number of ranks that may send at once (at most 8 are counted),
  //     and at least 16 segments.
  window_bytes_ = std::max(receive_buffer_bytes / 3 / senders, 16 * segment_bytes);
  // PROTOCOL 3.2.4: A rank MUST draw its incarnation and one cookie per peer from the system's random source when it
  //     starts.
  incarnation_ = random_u64();
  for (std::uint16_t peer = 0; peer < ranks; ++peer) {
    // PROTOCOL 3.2.5: The low 16 bits of a cookie MUST be the rank that uses it, and the other 48 MUST be random.
    cookies_.push_back((random_u64() & ~std::uint64_t{MLT_COOKIE_RANK_MASK}) | peer);
  }
}

std::optional<core::PeerUp> HelloNegotiation::negotiate(const io::Hello& hello, std::string& error) const {
  core::PeerUp up;
  up.peer = hello.rank;
  up.local_cookie = cookies_[hello.rank];
  up.remote_cookie = hello.cookie;
  // PROTOCOL 3.2.6: The segment bytes of a pair MUST be the smaller of the two values offered, rounded down to a
  //     multiple of 8.
  up.segment_bytes = std::min(hello.segment_bytes, segment_bytes_) / 8 * 8;
  up.window_bytes = hello.window_bytes;
  up.own_window_bytes = window_bytes_;
  up.early_segments = hello.early_segments;
  up.early_transfers = hello.early_transfers;
  // PROTOCOL 3.2.9: An endpoint MUST treat a peer as down if its hello leaves no segment bytes, or if its cookie names
  //     another rank.
  if (up.segment_bytes == 0 || wire::cookie_rank(up.remote_cookie) != rank_) {
    error = "rank " + std::to_string(hello.rank) +
            " sent a hello with an invalid cookie or segment size: install the same mlt release on every host";
    return std::nullopt;
  }
  return up;
}

}  // namespace mlt::engine
