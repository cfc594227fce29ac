// Runs of datagrams that bypass the kernel's network stack: frames are built here, written to the memory of an AF_XDP
// socket, and read where the NIC (or, in copy mode, the kernel) put them.
//
// A kernel UDP socket accompanies it. It holds the port, receives the packets that the steering program passes
// (xsk_steering.h), such as those of a receive queue without an AF_XDP socket, and carries the runs to peers that plain
// frames do not reach: ranks on this host, peers behind tunnels, and any peer until its Ethernet address is known,
// which the first of these runs makes the kernel resolve. So no run waits for an address, and none is lost because it
// is unknown. Payload is copied once when sent and delivered in place when received, one datagram per run.
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
  UdpSocketOptions socket;       // of the kernel's socket; its address determines the interface
  std::uint16_t peer_count = 0;  // ranks 0 .. peer_count-1 can be peers
  std::uint32_t queue = 0;       // receive and send queue of the interface
  bool native = true;            // try native (driver) XDP before generic XDP
  bool zero_copy = true;         // try zero-copy before copy mode
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
  kSendWouldBlock,      // no free frame, and the kernel accepted none
  kSendFailed,          // the interface rejected the send; see last_error()
  kKernelRunsSent,      // through the kernel's socket, without a plain route or an Ethernet address
  kKernelRunsReceived,  // passed by the steering program: another receive queue, a rank on this host
  kRouteLookups,
  kChecksumUnfinished,  // accepted: a kernel on this host left the checksum to offload, which never happened
  kReceiveMalformed,    // lengths that contradict each other, or no payload; dropped
  kReceiveChecksum,     // dropped
  kReceiveRingFull,     // the kernel dropped a packet: this process was slow to read
  kReceiveNoFrame,      // the kernel or the NIC dropped a packet: no frame was free
  kReceiveDropped,      // the kernel dropped a packet for another reason
  kSendInvalid,         // frames that the kernel rejected
  kNative,              // 1: the program runs in the driver
  kZeroCopy,            // 1: the NIC reads and writes this process's memory
  kDeviceQueues,        // receive queues of the interface, of which this datapath uses one
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
  // This layer's counters, then the kernel socket's.
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
  base::TimeNs push_at_ = base::kNever;  // when frames that the kernel did not accept are offered again
  std::uint32_t turns_ = 0;
  int failed_errno_ = 0;
  bool kernel_failed_ = false;  // the last error was the kernel socket's
  std::uint64_t send_calls_ = 0;
  CounterTable<XdpCounter> counters_;
  mutable std::vector<NamedCounter> report_;
  std::optional<ForkGuard> guard_;  // declared last: destroyed before members that it uses
};

}  // namespace mlt::io
