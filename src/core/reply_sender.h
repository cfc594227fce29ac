// The replies of a receiver, queued and encoded: BITMAP (with NOT_POSTED and READY), STOP, MTU_REPLY, and ACK as the
// ledger makes it due. As datagrams, or over the control connection where the probe came over it.
//
// Invariants: replies of a queue leave in the order of push(); every ACK, BITMAP and STOP carries the acknowledgement
// block of the newest packet's path; no queue holds a reply of a connection that went down. Absent on purpose: the
// reason for a reply (Receiver), timers. Owned by the endpoint's Receiver, used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/datagram.h"
#include "core/ack_ledger.h"
#include "core/peer.h"
#include "core/receive_state.h"
#include "core/reply_queue.h"
#include "core/transfer_slots.h"
#include "core/usage.h"

namespace mlt::core {

class ReplySender {
 public:
  // A BITMAP reports the state of its receive in `receives` when it leaves.
  ReplySender(Shared& shared, AckLedger& acks, TransferSlots<ReceiveState>& receives);

  // If the queue is full the reply is dropped, and the sender probes again.
  void push(const Reply& reply, bool by_control) {
    if (!(by_control ? over_tcp_ : as_datagrams_).push(reply)) shared_.counters.add(Counter::k_replies_dropped);
  }
  // The peer's newest probe came over this path.
  void on_probe(std::uint16_t peer, std::uint8_t path) { probe_paths_[peer] = path; }

  // Builds the next reply or ACK; false if none is due.
  bool fill(TimeNs now, base::DatagramRun& run);
  bool fill_over_tcp(TimeNs now, ControlOutput& output);

  // The peer's connection went down, or a new one came up.
  void reset(std::uint16_t peer);
  void add_usage(Usage& usage) const;

 private:
  std::size_t encode(TimeNs now, Reply& reply, std::uint32_t sequence, std::byte* out, bool& more);
  std::size_t encode_due_ack(TimeNs now, std::uint16_t peer, std::byte* out);
  std::size_t encode_ack(TimeNs now, const Reply& reply, std::uint32_t sequence, std::byte* out);
  std::size_t encode_mtu_reply(const Reply& reply, std::byte* out);
  std::size_t encode_stop(TimeNs now, const Reply& reply, std::uint32_t sequence, std::byte* out);
  std::size_t encode_bitmap(TimeNs now, Reply& reply, std::uint32_t sequence, std::byte* out, bool& more);
  wire::Prefix prefix_of(wire::PacketType type, std::uint16_t peer, std::uint32_t sequence) const;
  void repeat(Reply reply);
  bool loses_some(std::uint16_t peer) const;
  std::uint8_t path_to(std::uint16_t peer) const;
  void fill_run(std::uint16_t peer, std::size_t size, base::DatagramRun& run) const;

  Shared& shared_;
  AckLedger& acks_;
  TransferSlots<ReceiveState>& receives_;
  ReplyQueue as_datagrams_;
  ReplyQueue over_tcp_;
  std::vector<std::uint8_t>
      probe_paths_;  // of each peer's newest probe, which moves if it stays unanswered; or kNoPath
};

}  // namespace mlt::core
