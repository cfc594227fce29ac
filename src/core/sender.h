// The sending half of an endpoint: posts, replies, probes, batches of data and ends of sends. Paper sections 4.2.1 to
// 4.2.3. Its parts: TransferSlots, SendTags, SendOrder, FlowControl, EarlyDataLimit, ProbeSender, MtuChecks, AckReport;
// and in each send RepairRounds and ProbeState.
//
// Absent on purpose: sockets, clocks, threads, allocation after set-up. Owned by the endpoint, used by one thread.
#pragma once

#include <cstdint>

#include "base/datagram.h"
#include "base/word_arena.h"
#include "core/early_data_limit.h"
#include "core/flow_control.h"
#include "core/mtu_checks.h"
#include "core/parity_sender.h"
#include "core/peer.h"
#include "core/probe_sender.h"
#include "core/send_order.h"
#include "core/send_state.h"
#include "core/send_tags.h"
#include "core/slot_set.h"
#include "core/transfer_slots.h"
#include "core/usage.h"

namespace mlt::core {

class Sender {
 public:
  Sender(Shared& shared, base::WordArena& arena);

  PostStatus post(TimeNs now, const SendRequest& request);
  bool cancel(TimeNs now, OperationId operation);

  void on_ack(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Ack& ack);
  void on_bitmap(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::BitmapMessage& bitmap);
  void on_stop(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Stop& stop);
  void on_send_timer(TimeNs now, std::uint32_t slot);
  void on_peer_timer(TimeNs now, std::uint16_t peer);
  void on_peer_up(const PeerUp& up);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  void on_path_limit(TimeNs now, std::uint16_t rank, std::uint32_t payload_bytes);
  void on_mtu_reply(TimeNs now, std::uint16_t from, const wire::MtuReply& reply);
  void on_mtu_timer(TimeNs now, std::uint16_t rank);

  // Builds the next probe, or the next batch of data; false if none may leave at `now`.
  bool fill_probe(TimeNs now, base::DatagramRun& run) { return probes_.fill(now, run); }
  bool fill_mtu_probe(TimeNs now, base::DatagramRun& run) { return mtu_checks_.fill_probe(now, run); }
  bool fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run);
  bool fill_fallback(TimeNs now, ControlOutput& output);

  void complete(std::uint32_t slot, Completion& completion) const;
  void release(std::uint32_t slot);

  void add_usage(Usage& usage) const;
  std::uint64_t in_flight_bytes(std::uint16_t peer) const { return flow_.in_flight_bytes(peer); }
  TimeNs paced_until() const { return flow_.paced_until(); }
  // Max datagram size that some path to the peer carries; 0: no limit is known.
  std::uint32_t path_limit_bytes(std::uint16_t peer) const { return mtu_checks_.limit_bytes(peer); }

 private:
  void on_report(std::uint16_t peer);
  void on_answer(SendState& state);
  void mark_ready(SendState& state);
  void merge(SendState& state, const wire::BitmapMessage& bitmap);
  void slow_down(const SendState& state);
  // `event` ends the send. False, and counted, if the transfer is not in progress.
  bool finish(TimeNs now, SendState& state, SendEvent event, CompletionStatus status);
  void abort_send(TimeNs now, SendState& state, SendEvent event, CompletionStatus status);
  void say_abort(TimeNs now, SendState& state);
  // Ends a failed send for good: the receiver has ended it too, or never will. `event` states which.
  void settle(SendState& state, SendEvent event, bool is_matched = false);
  void arm(SendState& state);
  void await_reply(TimeNs now, SendState& state);
  bool waits_for_turn(TimeNs now, SendState& state);
  DurationNs repeat_after(const SendState& state, std::uint32_t repeats) const;
  void wait_for_space(TimeNs now, SendState& state);
  void release_early(SendState& state);
  void wake_early(std::uint16_t peer);

  bool fill_from_peer(TimeNs now, std::uint16_t peer, const TransmitCapabilities& capabilities, base::DatagramRun& run);
  // `segment`: the first one, returned by SendOrder::next_segment().
  void fill_run(TimeNs now, SendState& state, std::uint32_t segment, std::uint32_t limit, base::DatagramRun& run);
  void fill_parity(TimeNs now, SendState& state, std::uint32_t limit, base::DatagramRun& run);
  std::uint32_t lossy_paths(const SendState& state) const;
  // A batch of the send, data or parity, was filled.
  void on_run_filled(TimeNs now, SendState& state, const base::DatagramRun& run, std::uint32_t last_sequence);

  Shared& shared_;
  base::WordArena& arena_;
  TransferSlots<SendState> sends_;  // listed: in progress, or failed with ABORT unacknowledged
  SendTags tags_;
  SendOrder order_;
  FlowControl flow_;
  MtuChecks mtu_checks_;
  ProbeSender probes_;
  EarlyDataLimit early_;
  ParitySender parity_;
  SlotSet aborts_due_;
  std::uint64_t posts_ = 0;
};

}  // namespace mlt::core
