// Ethernet frames that carry one UDP datagram, built and read in user space: what the kernel's stack does for a socket.
//
// IPv4 without options and IPv6 without extension headers, for this is all that the steering program lets through and
// all that we send. Absent on purpose: fragments, VLAN tags (the kernel's path has both). Header formats: RFC 791,
// 8200, 768; checksums: RFC 1071. Sizes in bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/datagram.h"
#include "io/net/next_hop.h"
#include "io/net/socket_address.h"

namespace mlt::io {

inline constexpr std::uint32_t kEthernetHeaderBytes = 14;
inline constexpr std::uint32_t kIpv4HeaderBytes = 20;
inline constexpr std::uint32_t kIpv6HeaderBytes = 40;
inline constexpr std::uint32_t kUdpHeaderBytes = 8;
inline constexpr std::uint32_t kMaxFrameHeaderBytes = kEthernetHeaderBytes + kIpv6HeaderBytes + kUdpHeaderBytes;

// The headers of every frame from us to one peer. All but lengths, marks and checksums is the same in each.
class UdpFrameHeader {
 public:
  UdpFrameHeader() = default;
  // Both addresses are of one IP version and have a port.
  UdpFrameHeader(const MacAddress& from_mac, const MacAddress& to_mac, const SocketAddress& from,
                 const SocketAddress& to);

  std::uint32_t bytes() const { return size_; }

  // Writes the headers to `frame`, whose payload lies behind them already. Returns the frame's size.
  std::uint32_t write(std::byte* frame, std::uint32_t payload_bytes, std::uint8_t traffic_class) const;

 private:
  std::array<std::byte, kMaxFrameHeaderBytes> template_{};
  std::uint32_t size_ = 0;
  bool is_ipv6_ = false;
  std::uint64_t ip_sum_ = 0;   // of the fields that stay, for the two checksums
  std::uint64_t udp_sum_ = 0;  //
};

struct ReceivedFrame {
  std::span<const std::byte> payload;
  base::Ecn ecn = base::Ecn::kNotEct;
};

enum class FrameVerdict : std::uint8_t {
  kGood,
  kChecksumUnfinished,  // good; the sender left the checksum to a device that never had to compute it
  kMalformed,
  kBadChecksum,
};

// `out.payload` points into `frame`.
FrameVerdict read_frame(std::span<const std::byte> frame, ReceivedFrame& out);

}  // namespace mlt::io
