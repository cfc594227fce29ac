// What crosses the line between a protocol endpoint and a datapath: runs of datagrams, out and in.
//
// A run is one GSO super-packet: equal-sized datagrams (the last may be shorter) for one peer, with one DSCP, one ECN
// mark and one path. Payload slices point into the tensor: nothing is copied on the way out. Absent on purpose:
// addresses (a peer is an index that the driver resolves) and sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"

namespace mlt::base {

// Linux takes 64 segments in one UDP_SEGMENT call on every kernel that has it (UDP_MAX_SEGMENTS was 64 until 6.9).
inline constexpr std::size_t kMaxRunSegments = 64;
// An IPv4 UDP datagram carries at most 65,507 bytes; a GSO super-packet obeys the same length field.
inline constexpr std::size_t kMaxRunBytes = 65'507;
// Headers of a full run, or one whole control datagram, are built inside the run itself.
inline constexpr std::size_t kRunScratchBytes = 4'096;

// The two bits of the IP header that the transport sets and reads (RFC 3168).
enum class Ecn : std::uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

struct Slice {
  const std::byte* data = nullptr;
  std::size_t size = 0;
};

struct DatagramRun {
  std::uint16_t peer = 0;            // rank of the destination
  std::uint8_t path = 0;             // which of the peer's paths (0 .. paths-1)
  std::uint8_t dscp = 0;             // 6 bits
  Ecn ecn = Ecn::kNotEct;            //
  std::uint32_t datagram_count = 0;  // 1 .. kMaxRunSegments
  std::uint32_t datagram_bytes = 0;  // size of every datagram but the last, headers included
  std::uint32_t total_bytes = 0;     // sum over slices
  std::uint32_t slice_count = 0;     // slices in use, in wire order; a datagram is one or two consecutive slices
  std::array<Slice, 2 * kMaxRunSegments> slices;
  std::array<std::byte, kRunScratchBytes> scratch;

  DatagramRun() {}  // leaves the two arrays untouched: they are written before they are read
  DatagramRun(const DatagramRun&) = delete;
  DatagramRun& operator=(const DatagramRun&) = delete;

  std::uint8_t traffic_class() const { return static_cast<std::uint8_t>((dscp << 2) | static_cast<std::uint8_t>(ecn)); }
};

// One or more datagrams as a datapath hands them up: `bytes` holds them back to back, each `datagram_bytes` long but
// the last. The memory is the datapath's and is valid only during the call.
struct ReceivedRun {
  std::span<const std::byte> bytes;
  std::uint32_t datagram_bytes = 0;
  Ecn ecn = Ecn::kNotEct;
  // When the network delivered it, on the driver's clock: before it waited for this process to read it. kNever where
  // the datapath can't tell.
  TimeNs arrival_ns = kNever;
};

}  // namespace mlt::base
