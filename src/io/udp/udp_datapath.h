// Runs of datagrams over kernel UDP: one system call per sent run (UDP_SEGMENT) and one per merged received run
// (UDP_GRO).
//
// Slices are passed to the kernel in place, so that sending copies nothing in user space. If segmentation offload is
// missing or rejected, a run is one sendmmsg instead, and its unsent rest waits here, copied, for the next call. One
// path per peer: a run for any other returns kNoPeer (UdpPathsDatapath has several). One thread owns a UdpDatapath; no
// call but construction allocates, except last_error(). Offloads: Linux udp(7); de Bruijn and Dumazet, "Optimizing UDP
// for content delivery", Linux Plumbers 2018.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/network_datapath.h"
#include "io/os/os_error.h"
#include "io/run_view.h"
#include "io/udp/udp_socket.h"

namespace mlt::io {

struct UdpOptions {
  UdpSocketOptions socket;
  std::uint16_t peer_count = 0;         // ranks 0 .. peer_count-1 can be peers
  bool segmentation_offload = true;     // false: never use UDP_SEGMENT, even if it works
  std::uint8_t path = 0;                // the one path of this datapath
  std::uint32_t flow_label = 0;         // of its packets, 20 bits, IPv6; 0: chosen by the system
  std::vector<SocketAddress> segments;  // SRv6 list of its packets, in order of travel; empty: none
};

enum class UdpCounter : std::size_t {
  kRunsSent,
  kDatagramsSent,
  kBytesSent,
  kSystemCallsSend,
  kRunsReceived,
  kBytesReceived,
  kSendWouldBlock,
  kSendNoBuffers,       // ENOBUFS, ENOMEM: the kernel had no memory for the run
  kSendTooLarge,        // EMSGSIZE: larger than the MTU, which shrank or is that of another route
  kSendForbidden,       // EPERM: a packet filter rejected it
  kSendFailed,          // any other errno; see last_error()
  kIcmpErrors,          // ECONNREFUSED and similar, for an earlier datagram; the run was sent again
  kPartialRuns,         // without offload: only a part was sent, the rest waits here
  kDatagramsAbandoned,  // without offload: the rest of a run after a permanent error
  kOffloadDisabled,     // 1 after the interface rejected UDP_SEGMENT
  kReceiveTruncated,    // larger than any run can be; dropped
  kReceiveOverflows,    // dropped by the system: the receive buffer was full
  kReceiveEmpty,        // zero bytes; dropped
  kReceiveFailed,       // errno other than EAGAIN and pending ICMP errors
  kCount
};

class UdpDatapath final : public NetworkDatapath {
 public:
  // Null on failure, with `error` filled.
  static std::unique_ptr<UdpDatapath> open(const UdpOptions& options, OsError& error);

  bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) override;
  std::uint16_t local_port() const { return socket_.local_address().port(); }
  const SocketAddress& local_address() const override { return socket_.local_address(); }
  std::string path_device(std::uint8_t) const override { return device_; }
  std::uint32_t send_buffer_bytes() const { return socket_.granted_send_bytes(); }

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  int readable_fd() const override { return socket_.fd(); }
  PathCount path_count(std::uint8_t) const override {
    return {counters_[UdpCounter::kRunsSent], counters_[UdpCounter::kSendFailed] +
                                                  counters_[UdpCounter::kSendForbidden] +
                                                  counters_[UdpCounter::kSendTooLarge]};
  }
  base::TimeNs next_timeout() const override { return backlog_due_; }
  std::string last_error() const override;
  std::span<const NamedCounter> counters() const override { return counters_.all(); }

 private:
  UdpDatapath(UdpSocket socket, const UdpOptions& options);

  void prepare(msghdr& message, const base::DatagramRun& run, std::uint16_t segment_bytes);
  SendStatus send_whole(const base::DatagramRun& run);
  SendStatus send_each(const base::DatagramRun& run, std::uint32_t& taken);
  SendStatus send_parts(base::TimeNs now, const base::DatagramRun& run);
  bool flush_backlog(base::TimeNs now);
  SendStatus refused(int number, std::uint16_t peer);
  bool receive_one(base::TimeNs now, base::DurationNs realtime_offset_ns, ReceiveSink& sink, bool& delivered);

  UdpSocket socket_;
  std::uint8_t path_ = 0;
  std::uint32_t flow_label_ = 0;
  std::string device_;
  Capabilities capabilities_;
  CounterTable<UdpCounter> counters_;
  std::vector<SocketAddress> peers_;
  int failed_errno_ = 0;
  std::uint16_t failed_peer_ = 0;

  CopiedRun backlog_;
  base::TimeNs backlog_due_ = base::kNever;

  std::array<iovec, 2 * base::kMaxRunSegments> vectors_;
  std::array<mmsghdr, base::kMaxRunSegments> messages_;
  alignas(cmsghdr) std::array<std::byte, 64> send_control_;
  alignas(cmsghdr) std::array<std::byte, 128> receive_control_;
  std::vector<std::byte> receive_buffer_;
  std::uint32_t receive_overflows_ = 0;  // as the system last reported them; wraps
  base::TimeNs drained_ns_ = 0;          // when the socket was last found empty
};

}  // namespace mlt::io
