// The kernel UDP datapath adapted to libvma, which intercepts its calls (io/vma/vma.h).
//
// libvma's sendmsg() ignores control messages, both UDP_SEGMENT and the TOS byte. So datagrams are sent one by one, and
// the mark is set on the socket when it differs from the previous run's. Its receive calls return no TOS byte either,
// so ECN marks are not read, as the capabilities report. With the extra API a datagram is delivered in place, in the
// NIC's buffer, and released at once; without it, or for a socket that libvma leaves to the kernel, it is copied. None
// of this is probed by sending: libvma leaves a socket's traffic to itself to the kernel, which supports everything.
//
// Tested against a stand-in (tests/support/vma_stand_in.cc), never on a Mellanox NIC: none was available. One thread
// owns a VmaDatapath; no call but construction allocates, except last_error().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/network_datapath.h"
#include "io/udp/udp_datapath.h"
#include "io/vma/vma.h"

namespace mlt::io {

enum class VmaCounter : std::size_t {
  kZeroCopyReceived,   // datagrams delivered in place
  kFragmentsJoined,    // of these: copied together from several fragments
  kCopiedReceived,     // copied by libvma: the packet came through the kernel
  kReceiveFailed,      // errno other than EAGAIN
  kMarksSet,           // times that the TOS byte of the socket was changed
  kMarkFailed,         // it could not be changed; the run was sent with the previous mark
  kZeroCopyAvailable,  // 1: the extra API is available
  kCount
};

class VmaDatapath final : public NetworkDatapath {
 public:
  // Null on failure, with `error` filled: for example if the process does not run under libvma.
  static std::unique_ptr<VmaDatapath> open(const UdpOptions& options, OsError& error);

  bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) override {
    return socket_->set_peer(rank, address, error);
  }
  const SocketAddress& local_address() const override { return socket_->local_address(); }

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  int readable_fd() const override { return socket_->readable_fd(); }
  base::TimeNs next_timeout() const override { return socket_->next_timeout(); }
  std::string last_error() const override { return socket_->last_error(); }
  // This layer's counters, then the socket's.
  std::span<const NamedCounter> counters() const override;

 private:
  VmaDatapath(std::unique_ptr<UdpDatapath> socket, const VmaInterface* zero_copy);

  void set_mark(std::uint8_t traffic_class);
  bool receive_one(ReceiveSink& sink, bool& delivered);
  void hand_up_packet(VmaPacket* packet, ReceiveSink& sink, bool& delivered);

  std::unique_ptr<UdpDatapath> socket_;
  const VmaInterface* zero_copy_;
  Capabilities capabilities_;
  int mark_ = -1;  // of the socket; initially unknown
  CounterTable<VmaCounter> counters_;
  std::vector<std::byte> buffer_;  // buffer of a receive call: packets, or copied data
  std::vector<std::byte> joined_;
  mutable std::vector<NamedCounter> report_;
};

}  // namespace mlt::io
