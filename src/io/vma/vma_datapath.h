// The kernel's socket datapath as it has to be under libvma, which takes its calls over (io/vma/vma.h).
//
// libvma's sendmsg() reads no control messages: neither UDP_SEGMENT nor the TOS byte. So datagrams are sent one by one,
// and the mark is set on the socket when it differs from the run's before. Its receive calls deliver no TOS byte
// either, so ECN marks are not read, and the capabilities say so. With the extra interface a datagram is handed up
// where the card put it and given back at once; without it, or where libvma left the socket to the kernel, it is copied
// as ever. None of this is probed by sending: libvma leaves a socket's talk with itself to the kernel, which can do
// everything.
//
// Tested against a stand-in (tests/support/vma_stand_in.cc), never on a Mellanox card: none was at hand. One thread
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
  kZeroCopyReceived,   // datagrams handed up in place
  kFragmentsJoined,    // of these: lay in several pieces and were copied together
  kCopiedReceived,     // libvma had copied them: a packet that came through the kernel
  kReceiveFailed,      // errno other than EAGAIN
  kMarksSet,           // times that the TOS byte of the socket was changed
  kMarkFailed,         // it could not be; the run went out with the mark before
  kZeroCopyAvailable,  // 1: the extra interface is there
  kCount
};

class VmaDatapath final : public NetworkDatapath {
 public:
  // Null on failure, with `error` filled: for one, where the process does not run under libvma.
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
  // This layer's, then the socket's.
  std::span<const NamedCounter> counters() const override;

 private:
  VmaDatapath(std::unique_ptr<UdpDatapath> socket, const VmaInterface* zero_copy);

  void set_mark(std::uint8_t traffic_class);
  bool receive_one(ReceiveSink& sink, bool& delivered);
  void hand_up_packet(VmaPacket* packet, ReceiveSink& sink, bool& delivered);

  std::unique_ptr<UdpDatapath> socket_;
  const VmaInterface* zero_copy_;
  Capabilities capabilities_;
  int mark_ = -1;  // of the socket; unknown at first
  CounterTable<VmaCounter> counters_;
  std::vector<std::byte> buffer_;  // what a receive call fills: packets, or copied data
  std::vector<std::byte> joined_;
  mutable std::vector<NamedCounter> report_;
};

}  // namespace mlt::io
