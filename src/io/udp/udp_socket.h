// A bound, non-blocking UDP socket with the options that the transport needs: buffer sizes as requested if the system
// allows, segmentation and receive offload, the received TOS byte. UdpDatapath sends and receives.
//
// Packets carry "don't fragment": a datagram that does not fit the path is an error here instead of a fragment that a
// switch may drop. One thread owns a socket.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/net/socket_address.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

struct UdpSocketOptions {
  SocketAddress bind;  // port 0: the system chooses
  std::uint32_t receive_buffer_bytes = 8U << 20;
  std::uint32_t send_buffer_bytes = 4U << 20;
  bool receive_offload = true;  // UDP_GRO, where the kernel has it
  std::string device;           // SO_BINDTODEVICE: leave by this interface regardless of routes; empty: by the routes
  bool flow_labels = false;     // IPv6: send the flow label of each destination address
  std::uint32_t busy_poll_us = 0;  // SO_BUSY_POLL and SO_PREFER_BUSY_POLL; 0: none
};

class UdpSocket {
 public:
  static std::optional<UdpSocket> open(const UdpSocketOptions& options, OsError& error);

  int fd() const { return fd_.get(); }
  const SocketAddress& local_address() const { return local_; }
  bool is_ipv6() const { return local_.family() == AF_INET6; }
  // Payload bytes: half of what the kernel reports, which includes its bookkeeping per packet.
  std::uint32_t granted_receive_bytes() const { return granted_receive_bytes_; }
  std::uint32_t granted_send_bytes() const { return granted_send_bytes_; }
  bool receive_offload() const { return receive_offload_; }
  bool reads_ecn() const { return reads_ecn_; }
  bool stamps_arrivals() const { return stamps_arrivals_; }

  // From now on every datagram carries an SRv6 routing header through `segments`, in order of travel, each an IPv6
  // address. A socket option, because this kernel refuses the header as a control message per datagram (EINVAL).
  bool set_segments(std::span<const SocketAddress> segments, OsError& error);
  // Bytes of the MTU that such a header occupies.
  static std::uint32_t segment_list_bytes(std::size_t segments) {
    return segments == 0 ? 0 : static_cast<std::uint32_t>(8 + 16 * (segments + 1));
  }

  // Whether a two-datagram UDP_SEGMENT send works: tested by sending, because a kernel or a sandbox may know the option
  // and still reject the send. The probe goes to this very socket and is read back, so it cannot detect an interface
  // that rejects it later: UdpDatapath then falls back by itself.
  bool probe_segmentation_offload();

 private:
  UdpSocket() = default;
  bool set_path_options(const UdpSocketOptions& options, OsError& error);
  std::uint32_t size_buffer(int force_option, int plain_option, std::uint32_t bytes);

  UniqueFd fd_;
  SocketAddress local_;
  std::uint32_t granted_receive_bytes_ = 0;
  std::uint32_t granted_send_bytes_ = 0;
  bool receive_offload_ = false;
  bool reads_ecn_ = false;
  bool stamps_arrivals_ = false;
};

}  // namespace mlt::io
