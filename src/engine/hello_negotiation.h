// What this rank offers in its hello, and what a pair uses once both hellos are known (PROTOCOL.md, section 3).
//
// Any thread. Invariant: nothing changes after construction, so every peer gets the same incarnation and sizes, and a
// cookie of its own for the process's life. Absent on purpose: shared memory, which a pair agrees on later
// (local_peers.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/event.h"
#include "io/control/control_frame.h"

namespace mlt::engine {

class HelloNegotiation {
 public:
  // Draws the incarnation and a cookie per rank. `segment_bytes`: the payload of a packet that this rank offers.
  // Throws mlt::Error if the system has no random bytes.
  HelloNegotiation(std::uint16_t rank, std::uint16_t ranks, std::uint32_t segment_bytes,
                   std::uint32_t receive_buffer_bytes);

  std::uint64_t incarnation() const { return incarnation_; }
  // [r]: what rank r must put into its datagrams to this rank.
  const std::vector<std::uint64_t>& cookies() const { return cookies_; }
  std::uint32_t segment_bytes() const { return segment_bytes_; }
  // Max bytes in flight from each peer.
  std::uint32_t window_bytes() const { return window_bytes_; }

  // Settings of the pair by the peer's hello; empty, with `error` set, if they are unusable.
  std::optional<core::PeerUp> negotiate(const io::Hello& hello, std::string& error) const;

 private:
  const std::uint16_t rank_;
  const std::uint32_t segment_bytes_;
  std::uint32_t window_bytes_;
  std::uint64_t incarnation_;
  std::vector<std::uint64_t> cookies_;
};

}  // namespace mlt::engine
