// The receiving half of an endpoint: out-of-order placement, loss detection, BITMAP, STOP. Paper sections 4.2.1 and
// 4.2.3.
//
// Absent on purpose: sockets, clocks, threads, allocation after set-up. Owned by the endpoint, used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/datagram.h"
#include "base/fixed_stack.h"
#include "base/lazy_array.h"
#include "base/word_arena.h"
#include "core/early_buffer.h"
#include "core/finished_log.h"
#include "core/peer.h"
#include "core/receive_state.h"
#include "core/reply_queue.h"
#include "core/usage.h"

namespace mlt::core {

class Receiver {
 public:
  Receiver(Shared& shared, base::WordArena& arena);

  PostStatus post(TimeNs now, const ReceiveRequest& request);
  bool cancel(TimeNs now, OperationId operation);

  void on_data(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::DataHeader& header,
               std::span<const std::byte> payload, base::Ecn ecn);
  void on_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe, base::Ecn ecn,
                bool by_control);
  void on_abort(TimeNs now, std::uint16_t from, const wire::Abort& abort);
  void on_mtu_probe(std::uint16_t from, const wire::MtuProbe& probe);
  void on_retire(TimeNs now, std::uint16_t from, const wire::Retire& retire);
  void on_receive_timer(TimeNs now, std::uint32_t slot);
  void on_closing(TimeNs now);
  void on_peer_down(TimeNs now, std::uint16_t peer);

  // Builds the next reply (BITMAP, STOP) or ACK; false if none is due.
  bool fill_reply(TimeNs now, base::DatagramRun& run);
  bool fill_backstop(TimeNs now, ControlOutput& output);

  void add_usage(Usage& usage) const;
  bool has_early() const { return early_.transfers_known() > 0; }
  void complete(std::uint32_t slot, Completion& completion) const;
  void release(std::uint32_t slot);

 private:
  ReceiveState* find(std::uint16_t peer, const wire::TransferId& transfer);
  std::uint32_t slot_of(const ReceiveState& state) const { return static_cast<std::uint32_t>(&state - states_.data()); }
  bool is_over(std::uint16_t peer, const wire::TransferId& transfer);
  ReceiveTag* tag_for_post(std::uint16_t peer, std::uint64_t tag);
  // Records that a packet of the transfer, whose receive is posted, arrived.
  static void note_seen(ReceiveTag& entry, std::uint32_t generation);
  void note_seen(ReceiveState& state);
  void keep_tag(std::uint16_t from, std::uint64_t tag);
  void unkeep_tag(ReceiveTag& entry);
  void renumber(TimeNs now, ReceiveTag& entry, std::uint32_t floor);
  // Processes packets of the transfer that arrived before its receive was posted or had a generation.
  void take_early(TimeNs now, ReceiveState& state);

  // Fields that order a packet of any type on its path.
  struct Arrival {
    std::uint8_t path = 0;
    std::uint32_t sequence = 0;
    std::uint32_t timestamp_ns = 0;
    wire::TransferId transfer;
  };
  void count_arrival(TimeNs arrival_ns, std::uint16_t from, const Arrival& arrival, base::Ecn ecn, bool posted);
  void note_order(ReceiveState& state, std::uint8_t path, std::uint32_t sequence, TimeNs arrival_ns);
  void on_trailing_probe(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Probe& probe, base::Ecn ecn);
  void on_early_data(std::uint16_t from, const wire::DataHeader& header, std::span<const std::byte> payload);
  // False if the state ended (mismatch).
  bool place(TimeNs now, ReceiveState& state, const wire::DataHeader& header, std::span<const std::byte> payload);
  bool matches(TimeNs now, ReceiveState& state, std::uint64_t total_bytes, wire::ElementType element);
  void take_probe(TimeNs now, ReceiveState& state, const wire::Probe& probe, bool by_control);

  bool critical_complete(const ReceiveState& state) const;
  bool within_bound(const ReceiveState& state) const;
  bool may_end_within_bound(const ReceiveState& state) const;
  std::uint32_t unproven_paths(const ReceiveState& state) const;
  TimeNs known_lost_ns(const ReceiveState& state) const;
  TimeNs request_ns(const ReceiveState& state) const;
  void check_completion(TimeNs now, ReceiveState& state);
  // `event` ends the receive. If the transfer is not in progress, it only counts the event.
  void finish(TimeNs now, ReceiveState& state, ReceiveEvent event, CompletionStatus status, bool tell_sender);
  void fill_missing(ReceiveState& state);
  void arm(ReceiveState& state);
  void reply_finished(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t probe_timestamp_ns,
                      bool by_control, bool unseen = false);

  std::size_t encode_reply(TimeNs now, Reply& reply, std::uint32_t by_path, std::byte* out, bool& more);
  std::size_t encode_ack_reply(TimeNs now, const Reply& reply, std::uint32_t by_path, std::byte* out);
  std::size_t encode_mtu_reply_of(const Reply& reply, std::byte* out);
  std::size_t encode_stop_of(TimeNs now, const Reply& reply, std::uint32_t by_path, std::byte* out);
  std::size_t encode_bitmap_of(TimeNs now, Reply& reply, std::uint32_t by_path, std::byte* out, bool& more);
  std::size_t encode_ack_of(TimeNs now, std::uint16_t rank, std::byte* out);
  void add_other_paths(TimeNs now, std::uint16_t rank, std::uint32_t paths, wire::Ack& ack);
  std::uint8_t reply_path(const Peer& peer) const;
  wire::AckBlock block_of(TimeNs now, std::uint16_t rank, std::uint8_t path, bool& fresh);
  void fill_control_run(std::uint16_t peer, std::size_t size, base::DatagramRun& run) const;

  Shared& shared_;
  base::WordArena& arena_;
  base::LazyArray<ReceiveState> states_;
  base::FixedStack<std::uint32_t> free_;  // slots that were used before
  SlotIndex by_transfer_;                 // in progress
  SlotIndex by_operation_;                // until released
  EarlyBuffer early_;
  FinishedLog finished_;
  ReplyQueue replies_;
  ReplyQueue control_replies_;
  std::vector<std::uint64_t> ack_words_;
  base::BitmapView acks_due_;  // peers
};

}  // namespace mlt::core
