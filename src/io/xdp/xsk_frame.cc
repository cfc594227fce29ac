// Compiled with vectorised loops (CMakeLists.txt): the payload checksum is a pass that users of kernel sockets do not
// pay for in user space.
// not pay for in user space.
#include "io/xdp/xsk_frame.h"

#include <netinet/in.h>

#include <cstring>

#include "base/check.h"
#include "io/net/ip_bytes.h"

namespace mlt::io {

namespace {

constexpr std::uint16_t kEtherIpv4 = 0x0800;
constexpr std::uint16_t kEtherIpv6 = 0x86DD;
// Linux defaults (net.ipv4.ip_default_ttl, net.ipv6.conf.*.hop_limit).
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kVersion4WithoutOptions = 0x45;
constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kFragmentBits = 0x3FFF;  // more fragments, and the offset

// Offsets within the IP header.
constexpr std::size_t kIpv4Length = 2, kIpv4Fragment = 6, kIpv4HopLimit = 8, kIpv4Protocol = 9, kIpv4Checksum = 10,
                      kIpv4Addresses = 12;
constexpr std::size_t kIpv6Length = 4, kIpv6Protocol = 6, kIpv6HopLimit = 7, kIpv6Addresses = 8;
constexpr std::size_t kUdpLength = 4, kUdpChecksum = 6;

std::uint16_t load_be16(const std::byte* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return ntohs(value);
}

void store_be16(std::byte* at, std::uint16_t value) {
  value = htons(value);
  std::memcpy(at, &value, sizeof value);
}

// Stores a checksum in host byte order: one's complement sums are independent of byte order.
void store_raw16(std::byte* at, std::uint16_t value) { std::memcpy(at, &value, sizeof value); }

// Sums 16-bit words, two at a time; 64 bits hold the carries of far more than a packet. An odd last byte is padded with
// zeros.
std::uint64_t sum_words(const std::byte* data, std::size_t size) {
  std::uint64_t sum = 0;
  std::size_t at = 0;
  for (; at + 4 <= size; at += 4) {
    std::uint32_t word;
    std::memcpy(&word, data + at, sizeof word);
    sum += word;
  }
  std::uint32_t rest = 0;
  if (at < size) std::memcpy(&rest, data + at, size - at);
  return sum + rest;
}

std::uint16_t fold(std::uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

struct IpLayout {
  std::size_t header_bytes;
  std::size_t addresses;
  std::size_t addresses_bytes;  // both, which lie side by side
};
constexpr IpLayout kIpv4Layout{kIpv4HeaderBytes, kIpv4Addresses, 8};
constexpr IpLayout kIpv6Layout{kIpv6HeaderBytes, kIpv6Addresses, 32};

// The pseudo-header that UDP's checksum covers besides the datagram.
std::uint64_t pseudo_sum(const std::byte* ip, const IpLayout& layout, std::uint16_t udp_bytes) {
  return sum_words(ip + layout.addresses, layout.addresses_bytes) + htons(IPPROTO_UDP) + htons(udp_bytes);
}

}  // namespace

UdpFrameHeader::UdpFrameHeader(const MacAddress& from_mac, const MacAddress& to_mac, const SocketAddress& from,
                               const SocketAddress& to)
    : is_ipv6_(to.family() == AF_INET6) {
  MLT_CHECK(from.family() == to.family());
  const IpLayout& layout = is_ipv6_ ? kIpv6Layout : kIpv4Layout;
  std::byte* at = template_.data();
  std::memcpy(at, to_mac.data(), to_mac.size());
  std::memcpy(at + 6, from_mac.data(), from_mac.size());
  store_be16(at + 12, is_ipv6_ ? kEtherIpv6 : kEtherIpv4);
  std::byte* ip = at + kEthernetHeaderBytes;
  if (is_ipv6_) {
    ip[0] = std::byte{0x60};
    ip[kIpv6Protocol] = std::byte{IPPROTO_UDP};
    ip[kIpv6HopLimit] = std::byte{kHopLimit};
  } else {
    ip[0] = std::byte{kVersion4WithoutOptions};
    // PROTOCOL 4.1.2: An endpoint MUST NOT allow fragmentation of a datagram: the DF bit is set, and its size is within
    //     the MTU of the interface.
    // The identification stays 0: it has no meaning for packets that cannot be fragmented (RFC 6864).
    store_be16(ip + kIpv4Fragment, kDontFragment);
    ip[kIpv4HopLimit] = std::byte{kHopLimit};
    ip[kIpv4Protocol] = std::byte{IPPROTO_UDP};
  }
  const IpBytes source = IpBytes::of(from);
  const IpBytes destination = IpBytes::of(to);
  std::memcpy(ip + layout.addresses, source.bytes.data(), source.size);
  std::memcpy(ip + layout.addresses + source.size, destination.bytes.data(), destination.size);
  std::byte* udp = ip + layout.header_bytes;
  store_be16(udp, from.port());
  store_be16(udp + 2, to.port());
  size_ = static_cast<std::uint32_t>(kEthernetHeaderBytes + layout.header_bytes + kUdpHeaderBytes);
  ip_sum_ = sum_words(ip, layout.header_bytes);
  udp_sum_ = pseudo_sum(ip, layout, 0) + sum_words(udp, kUdpHeaderBytes);
}

std::uint32_t UdpFrameHeader::write(std::byte* frame, std::uint32_t payload_bytes, std::uint8_t traffic_class) const {
  MLT_CHECK(size_ > 0);
  std::memcpy(frame, template_.data(), size_);
  std::byte* ip = frame + kEthernetHeaderBytes;
  const auto udp_bytes = static_cast<std::uint16_t>(kUdpHeaderBytes + payload_bytes);
  if (is_ipv6_) {
    // Version, then eight bits of traffic class, then the flow label, which stays 0.
    store_be16(ip, static_cast<std::uint16_t>(0x6000 | traffic_class << 4));
    store_be16(ip + kIpv6Length, udp_bytes);
  } else {
    const auto length = static_cast<std::uint16_t>(kIpv4HeaderBytes + udp_bytes);
    ip[1] = std::byte{traffic_class};
    store_be16(ip + kIpv4Length, length);
    const std::uint64_t sum = ip_sum_ + htons(traffic_class) + htons(length);
    store_raw16(ip + kIpv4Checksum, static_cast<std::uint16_t>(~fold(sum)));
  }
  std::byte* udp = frame + size_ - kUdpHeaderBytes;
  store_be16(udp + kUdpLength, udp_bytes);
  // The length counts twice: in the header and in the pseudo-header.
  const std::uint64_t sum = udp_sum_ + 2U * htons(udp_bytes) + sum_words(frame + size_, payload_bytes);
  const auto checksum = static_cast<std::uint16_t>(~fold(sum));
  store_raw16(udp + kUdpChecksum, checksum == 0 ? std::uint16_t{0xFFFF} : checksum);  // 0 means no checksum
  return size_ + payload_bytes;
}

FrameVerdict read_frame(std::span<const std::byte> frame, ReceivedFrame& out) {
  if (frame.size() < kEthernetHeaderBytes + kIpv4HeaderBytes + kUdpHeaderBytes) return FrameVerdict::kMalformed;
  const std::byte* ip = frame.data() + kEthernetHeaderBytes;
  const std::size_t room = frame.size() - kEthernetHeaderBytes;
  const std::uint16_t ethertype = load_be16(frame.data() + 12);
  const bool is_ipv6 = ethertype == kEtherIpv6;
  const IpLayout& layout = is_ipv6 ? kIpv6Layout : kIpv4Layout;
  std::size_t ip_bytes = 0;  // of the packet; Ethernet pads short frames
  std::uint8_t traffic_class = 0;
  if (is_ipv6) {
    if (room < kIpv6HeaderBytes + kUdpHeaderBytes || ip[kIpv6Protocol] != std::byte{IPPROTO_UDP}) {
      return FrameVerdict::kMalformed;
    }
    ip_bytes = std::size_t{kIpv6HeaderBytes} + load_be16(ip + kIpv6Length);
    traffic_class = static_cast<std::uint8_t>(load_be16(ip) >> 4);
  } else {
    if (ethertype != kEtherIpv4 || ip[0] != std::byte{kVersion4WithoutOptions} ||
        ip[kIpv4Protocol] != std::byte{IPPROTO_UDP} || (load_be16(ip + kIpv4Fragment) & kFragmentBits) != 0) {
      return FrameVerdict::kMalformed;
    }
    if (fold(sum_words(ip, kIpv4HeaderBytes)) != 0xFFFF) return FrameVerdict::kBadChecksum;
    ip_bytes = load_be16(ip + kIpv4Length);
    traffic_class = static_cast<std::uint8_t>(ip[1]);
  }
  const std::byte* udp = ip + layout.header_bytes;
  if (ip_bytes > room || ip_bytes < layout.header_bytes + kUdpHeaderBytes) return FrameVerdict::kMalformed;
  const std::uint16_t udp_bytes = load_be16(udp + kUdpLength);
  // An empty datagram has nothing to deliver.
  if (udp_bytes <= kUdpHeaderBytes || udp_bytes > ip_bytes - layout.header_bytes) return FrameVerdict::kMalformed;
  out.payload = {udp + kUdpHeaderBytes, static_cast<std::size_t>(udp_bytes - kUdpHeaderBytes)};
  out.ecn = static_cast<base::Ecn>(traffic_class & 3);

  const std::uint64_t pseudo = pseudo_sum(ip, layout, udp_bytes);
  if (fold(pseudo + sum_words(udp, udp_bytes)) == 0xFFFF) return FrameVerdict::kGood;
  // Between two namespaces or virtual machines a kernel relies on checksum offload: the field holds the sum of the
  // pseudo-header alone. Such a frame never left memory.
  std::uint16_t field;
  std::memcpy(&field, udp + kUdpChecksum, sizeof field);
  return field == fold(pseudo) ? FrameVerdict::kChecksumUnfinished : FrameVerdict::kBadChecksum;
}

}  // namespace mlt::io
