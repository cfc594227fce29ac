// Ethernet frames that carry one UDP datagram, built and parsed in user space, as the kernel's stack does for a socket.
//
// IPv4 without options and IPv6 without extension headers: the steering program redirects nothing else, and mlt sends
// nothing else. Absent on purpose: fragments, VLAN tags (the kernel's path handles both). Header formats: RFC 791,
// 8200, 768; checksums: RFC 1071. Sizes in bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/datagram.h"
#include "io/net/header_sizes.h"
#include "io/net/next_hop.h"
#include "io/net/socket_address.h"

namespace mlt::io {

inline constexpr std::uint32_t kMaxFrameHeaderBytes = kEthernetHeaderBytes + kIpv6HeaderBytes + kUdpHeaderBytes;

// The headers of every frame from this host to one peer. Only lengths, marks and checksums vary.
class UdpFrameHeader {
 public:
  UdpFrameHeader() = default;
  // Both addresses are of one IP version and have a port.
  UdpFrameHeader(const MacAddress& from_mac, const MacAddress& to_mac, const SocketAddress& from,
                 const SocketAddress& to);

  std::uint32_t bytes() const { return size_; }

  // Writes the headers to `frame`, which already holds the payload behind them. Returns the frame's size.
  std::uint32_t write(std::byte* frame, std::uint32_t payload_bytes, std::uint8_t traffic_class) const;

 private:
  std::array<std::byte, kMaxFrameHeaderBytes> template_{};
  std::uint32_t size_ = 0;
  bool is_ipv6_ = false;
  std::uint64_t ip_sum_ = 0;   // of the constant fields, for the two checksums
  std::uint64_t udp_sum_ = 0;  //
};

struct ReceivedFrame {
  std::span<const std::byte> payload;
  base::Ecn ecn = base::Ecn::kNotEct;
};

enum class FrameVerdict : std::uint8_t {
  kGood,
  kChecksumUnfinished,  // valid; the sender left the checksum to an offload that never computed it
  kMalformed,
  kBadChecksum,
};

// `out.payload` points into `frame`.
FrameVerdict read_frame(std::span<const std::byte> frame, ReceivedFrame& out);

}  // namespace mlt::io
