// Runs of datagrams past the kernel's stack: frames are built here, written to the memory of an AF_XDP socket, and read
// from it where the card (or, in copy mode, the kernel) put them.
//
// A UDP socket of the kernel stands beside it. It holds the port, it receives what the steering program lets pass
// (xsk_steering.h), such as frames of a receive queue without a socket of ours, and it carries the runs of peers whom
// no plain frame reaches: ranks on this machine, peers behind tunnels, and any peer until its Ethernet address is
// known, which the first of these runs makes the kernel find out. So no run waits for an address, and none is lost for
// want of one. Payload is copied once on the way out and handed up in place on the way in, a datagram per run.
//
// Frames bypass the kernel's qdiscs and packet filters. One path per peer. One thread owns an XdpDatapath; no call but
// construction allocates, except last_error().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/net/ethernet_device.h"
#include "io/net/next_hop.h"
#include "io/network_datapath.h"
#include "io/os/fork_guard.h"
#include "io/udp/udp_datapath.h"
#include "io/xdp/bpf_loader.h"
#include "io/xdp/xsk_frame.h"
#include "io/xdp/xsk_socket.h"

namespace mlt::io {

struct XdpOptions {
  UdpSocketOptions socket;       // of the kernel's socket; the address decides the interface
  std::uint16_t peer_count = 0;  // ranks 0 .. peer_count-1 can be peers
  std::uint32_t queue = 0;       // receive and send queue of the interface
  bool native = true;            // try the driver's XDP before the generic one
  bool zero_copy = true;         // try that before copy mode
  std::uint32_t receive_frames = 4'096;
  std::uint32_t send_frames = 2'048;  // both powers of two
  XdpAttachment::Way attach_by = XdpAttachment::Way::kLink;
};

enum class XdpCounter : std::size_t {
  kRunsSent,
  kDatagramsSent,
  kBytesSent,
  kSystemCallsSend,
  kRunsReceived,  // one datagram each
  kBytesReceived,
  kSendWouldBlock,      // no free frame, and the kernel took none
  kSendFailed,          // the interface refused to send; see last_error()
  kKernelRunsSent,      // through the kernel's socket, for want of a plain route or of an Ethernet address
  kKernelRunsReceived,  // passed by the steering program: another receive queue, a rank on this machine
  kRouteLookups,
  kChecksumUnfinished,  // accepted: a kernel on this machine left it to a card that was never there
  kReceiveMalformed,    // lengths that contradict each other, or no payload; dropped
  kReceiveChecksum,     // dropped
  kReceiveRingFull,     // the kernel dropped a packet: this process was slow to read
  kReceiveNoFrame,      // the kernel dropped a packet, or the card would have: no frame was free
  kReceiveDropped,      // the kernel dropped a packet for another reason
  kSendInvalid,         // frames that the kernel would not send
  kNative,              // 1: the program runs in the driver
  kZeroCopy,            // 1: the card reads and writes our memory
  kDeviceQueues,        // receive queues of the interface; only one of them is ours
  kCount
};

class XdpDatapath final : public NetworkDatapath {
 public:
  // Null on failure, with `error` filled and nothing left behind.
  static std::unique_ptr<XdpDatapath> open(const XdpOptions& options, OsError& error);

  bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) override;
  const SocketAddress& local_address() const override { return kernel_->local_address(); }

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  // Readable when either socket is; never writable: an epoll descriptor.
  int readable_fd() const override { return poll_fd_.get(); }
  int writable_fd(const base::DatagramRun& run) const override;
  base::TimeNs next_timeout() const override;
  std::string last_error() const override;
  // This layer's, then the kernel socket's.
  std::span<const NamedCounter> counters() const override;

 private:
  struct Peer {
    SocketAddress address;
    UdpFrameHeader header;
    bool by_kernel = true;
    base::TimeNs look_up_at = 0;
  };

  explicit XdpDatapath(const XdpOptions& options);
  bool open_socket(const XdpOptions& options, OsError& error);
  bool steer(const XdpOptions& options, OsError& error);
  bool attach(XdpMode mode, XdpAttachment::Way way, OsError& error);
  bool watch(OsError& error);
  void look_up(base::TimeNs now, Peer& peer);
  SendStatus send_frames(base::TimeNs now, const Peer& peer, const base::DatagramRun& run);
  bool push_out(base::TimeNs now);
  bool hand_up(std::span<const std::byte> frame, ReceiveSink& sink);
  void let_go();

  std::unique_ptr<UdpDatapath> kernel_;
  EthernetDevice device_;
  std::unique_ptr<XskSocket> socket_;
  UniqueFd map_;
  std::unique_ptr<XdpAttachment> attachment_;
  std::optional<Netlink> netlink_;
  UniqueFd poll_fd_;
  Capabilities capabilities_;
  std::vector<Peer> peers_;
  base::TimeNs push_at_ = base::kNever;  // when frames that the kernel did not take are offered again
  std::uint32_t turns_ = 0;
  int failed_errno_ = 0;
  bool kernel_failed_ = false;  // the last failure was the kernel socket's
  std::uint64_t send_calls_ = 0;
  CounterTable<XdpCounter> counters_;
  mutable std::vector<NamedCounter> report_;
  std::optional<ForkGuard> guard_;  // last: gone before what it speaks of
};

}  // namespace mlt::io
