// Interface between a protocol endpoint and a datapath: batches of datagrams, out and in.
//
// A DatagramRun is one GSO batch: equal-sized datagrams (the last may be shorter) for one peer, with one DSCP, one ECN
// codepoint and one path. Payload slices point into the tensor: sending copies nothing. Absent on purpose: addresses (a
// peer is an index that the driver resolves) and sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"

namespace mlt::base {

// Every Linux kernel with UDP_SEGMENT accepts 64 segments per call (UDP_MAX_SEGMENTS was 64 until 6.9).
inline constexpr std::size_t kMaxRunSegments = 64;
// Max payload of a UDP datagram over IPv4; a GSO batch has the same length field.
inline constexpr std::size_t kMaxRunBytes = 65'507;
// Space in the batch itself for the headers of a full batch, or for one whole control-class packet.
inline constexpr std::size_t kRunScratchBytes = 4'096;
// Of a packet that shares a system call with others of its peer: section 6.2.3 of PROTOCOL.md.
inline constexpr std::size_t kMaxGatheredBytes = 512;

// The two bits of the IP header that the transport sets and reads (RFC 3168).
enum class Ecn : std::uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

struct Slice {
  const std::byte* data = nullptr;
  std::size_t size = 0;
};

struct DatagramRun {
  std::uint16_t peer = 0;            // rank of the destination
  std::uint8_t path = 0;             // one of the peer's paths (0 .. paths-1)
  std::uint8_t dscp = 0;             // 6 bits
  Ecn ecn = Ecn::kNotEct;            //
  std::uint32_t datagram_count = 0;  // 1 .. kMaxRunSegments
  std::uint32_t datagram_bytes = 0;  // size of every datagram but the last, headers included
  std::uint32_t total_bytes = 0;     // sum over slices
  std::uint32_t slice_count = 0;     // slices in use, in wire order; a datagram is one or two consecutive slices
  std::array<Slice, 2 * kMaxRunSegments> slices;
  std::array<std::byte, kRunScratchBytes> scratch;

  DatagramRun() {}  // leaves the two arrays uninitialised: they are written before they are read
  DatagramRun(const DatagramRun&) = delete;
  DatagramRun& operator=(const DatagramRun&) = delete;

  // An empty run to where `other` goes.
  void begin_like(const DatagramRun& other, std::uint32_t bytes_of_each) {
    peer = other.peer;
    path = other.path;
    dscp = other.dscp;
    ecn = other.ecn;
    datagram_bytes = bytes_of_each;
    datagram_count = slice_count = total_bytes = 0;
  }

  std::uint8_t traffic_class() const { return static_cast<std::uint8_t>((dscp << 2) | static_cast<std::uint8_t>(ecn)); }
};

// One or more datagrams that a datapath received: `bytes` holds them back to back, each `datagram_bytes` long except
// the last. The datapath owns the memory, which is valid only during the call.
struct ReceivedRun {
  std::span<const std::byte> bytes;
  std::uint32_t datagram_bytes = 0;
  Ecn ecn = Ecn::kNotEct;
  // When the network delivered it, on the driver's clock: before it was queued for this process. kNever if the datapath
  // does not know.
  TimeNs arrival_ns = kNever;
  // The system reports that it dropped datagrams since the run before, because the receive buffer was full.
  bool after_drop = false;
};

}  // namespace mlt::base
