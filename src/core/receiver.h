// The receiving half of an endpoint: posts, arrivals and ends of receives. Paper sections 4.2.1 and 4.2.3. Its
// parts: TransferSlots, ReceiveTags, AckLedger, ReplySender, EarlyBuffer, FinishedLog; and in each receive Placement,
// LossDetection and LossBudget.
//
// Absent on purpose: sockets, clocks, threads, allocation after set-up. Owned by the endpoint, used by one thread.
#pragma once

#include <cstdint>

#include "base/datagram.h"
#include "base/word_arena.h"
#include "core/ack_ledger.h"
#include "core/early_buffer.h"
#include "core/finished_log.h"
#include "core/parity_store.h"
#include "core/peer.h"
#include "core/receive_state.h"
#include "core/receive_tags.h"
#include "core/reply_sender.h"
#include "core/transfer_slots.h"
#include "core/usage.h"

namespace mlt::core {

class Receiver {
 public:
  Receiver(Shared& shared, base::WordArena& arena);

  PostStatus post(TimeNs now, const ReceiveRequest& request);
  bool cancel(TimeNs now, OperationId operation);

  void on_data(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::DataHeader& header,
               std::span<const std::byte> payload, base::Ecn ecn);
  void on_parity(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::ParityHeader& header,
                 std::span<const std::byte> payload, base::Ecn ecn);
  void on_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe, base::Ecn ecn,
                bool by_control);
  void on_abort(TimeNs now, std::uint16_t from, const wire::Abort& abort);
  void on_mtu_probe(std::uint16_t from, const wire::MtuProbe& probe);
  void on_retire(TimeNs now, std::uint16_t from, const wire::Retire& retire);
  void on_receive_timer(TimeNs now, std::uint32_t slot);
  void on_closing(TimeNs now);
  void on_datagrams_dropped(TimeNs now);
  // An ACK is due after `packets_per_ack` packets of the peer.
  void on_peer_up(std::uint16_t peer, std::uint32_t packets_per_ack);
  void on_peer_down(TimeNs now, std::uint16_t peer);

  // Builds the next reply (BITMAP, STOP) or ACK; false if none is due.
  bool fill_reply(TimeNs now, base::DatagramRun& run) { return replies_.fill(now, run); }
  bool fill_fallback(TimeNs now, ControlOutput& output) { return replies_.fill_over_tcp(now, output); }

  void add_usage(Usage& usage) const;
  bool has_early() const { return early_.transfers_known() > 0; }
  void complete(std::uint32_t slot, Completion& completion) const;
  void release(std::uint32_t slot);

 private:
  void note_seen(ReceiveState& state);
  // Gives new numbers, from the floor on, to the receives of a tag that no send has matched.
  void renumber(TimeNs now, ReceiveTag& entry, std::uint32_t floor);
  // Processes packets of the transfer that arrived before its receive was posted or had a generation.
  void take_early(TimeNs now, ReceiveState& state);

  // Counts a packet as evidence for loss detection, and its lateness for the peer's reorder window.
  void note_order(ReceiveState& state, std::uint8_t path, std::uint32_t sequence, TimeNs arrival_ns);
  void on_trailing_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe, base::Ecn ecn);
  void on_early_data(TimeNs now, std::uint16_t from, const wire::DataHeader& header,
                     std::span<const std::byte> payload);
  // False if the state ended (mismatch).
  bool take_data(TimeNs now, ReceiveState& state, const wire::DataHeader& header, std::span<const std::byte> payload);
  void end_round(TimeNs now, ReceiveState& state, const wire::Prefix& prefix);
  static void note_early_end(EarlyTransfer& early, const wire::Prefix& prefix, std::uint32_t total_bytes);
  // False if the state ended (mismatch).
  bool take_parity(TimeNs now, ReceiveState& state, const wire::ParityHeader& header,
                   std::span<const std::byte> payload);
  // Restores the missing segments of a block if as many of its parities are there; frees these once nothing is missing.
  void restore(ReceiveState& state, std::uint32_t block);
  void complete_behind_data(TimeNs now, ReceiveState& state);
  bool matches(TimeNs now, ReceiveState& state, std::uint64_t total_bytes, wire::ElementType element);
  // The sender named the size of a receive that was posted for up to a size.
  static void take_size(ReceiveState& state, std::uint32_t total_bytes);
  void take_probe(TimeNs now, ReceiveState& state, const wire::Probe& probe, bool by_control);

  DurationNs reorder_ns(const ReceiveState& state) const { return shared_.peers[state.request.peer].reorder_window_ns; }
  // This host dropped datagrams that may have been of the transfer.
  void note_drops(ReceiveState& state);
  void check_completion(TimeNs now, ReceiveState& state);
  // `event` ends the receive. If the transfer is not in progress, it only counts the event.
  void finish(TimeNs now, ReceiveState& state, ReceiveEvent event, CompletionStatus status, bool tell_sender);
  void end_by_abort(TimeNs now, ReceiveState& state, const wire::AbortReason& reason);
  void arm(ReceiveState& state);
  void reply_finished(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t probe_timestamp_ns,
                      bool by_control, bool unseen = false);

  Shared& shared_;
  base::WordArena& arena_;
  TransferSlots<ReceiveState> receives_;  // listed: in progress
  ReceiveTags tags_;
  EarlyBuffer early_;
  FinishedLog finished_;
  AckLedger acks_;
  ReplySender replies_;
  ParityStore parity_;
  std::uint32_t drops_ = 0;      // on_datagrams_dropped()
  TimeNs dropped_until_ns_ = 0;  // packets of a transfer that was unknown then have arrived by this time
};

}  // namespace mlt::core
