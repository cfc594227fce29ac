// The sending half of an endpoint: segments, rounds, probes, repair, rate. Paper sections 4.2.1 to 4.2.3.
//
// Absent on purpose: sockets, clocks, threads, allocation after set-up. Owned by the endpoint, used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/datagram.h"
#include "base/fixed_stack.h"
#include "base/lazy_array.h"
#include "base/word_arena.h"
#include "core/peer.h"
#include "core/reply_queue.h"
#include "core/send_state.h"
#include "core/slot_set.h"
#include "core/usage.h"

namespace mlt::core {

// What the driver's datapath can take in one run.
struct TransmitCapabilities {
  std::uint32_t max_run_segments = base::kMaxRunSegments;
  std::uint32_t max_run_bytes = base::kMaxRunBytes;
  // Whether data for a peer finds room now; nullptr: for every peer, always. A peer without room is passed over, and
  // the driver calls again when there is some. Replies and probes do not wait for this: they are few and small.
  bool (*has_room_for)(void* context, std::uint16_t peer) = nullptr;
  void* room_context = nullptr;
};

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
  void on_peer_down(TimeNs now, std::uint16_t peer);
  void on_path_limit(TimeNs now, std::uint16_t rank, std::uint32_t payload_bytes);
  void on_mtu_reply(TimeNs now, std::uint16_t from, const wire::MtuReply& reply);
  void on_mtu_timer(TimeNs now, std::uint16_t rank);

  // Builds the next probe, or the next run of data; false if there is none at `now`.
  bool fill_probe(TimeNs now, base::DatagramRun& run);
  bool fill_mtu_probe(TimeNs now, base::DatagramRun& run);
  bool fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run);
  bool fill_backstop(TimeNs now, ControlOutput& output);

  void complete(std::uint32_t slot, Completion& completion) const;
  void release(std::uint32_t slot);

  void add_usage(Usage& usage) const;
  std::uint64_t in_flight_bytes(std::uint16_t peer) const;
  std::uint32_t path_limit_bytes(std::uint16_t peer) const;

 private:
  SendState* find(std::uint16_t peer, const wire::TransferId& transfer);
  std::uint32_t slot_of(const SendState& state) const { return static_cast<std::uint32_t>(&state - states_.data()); }
  // What the acknowledgement blocks of one datagram bring about.
  struct Report {
    std::uint32_t reply_path = wire::kNoReplyPath;  // by which the datagram came
    bool first = true;                              // no block was taken yet
    bool progress = false;                          // something left the window
    DurationNs rate_sample_ns = 0;                  // for the rate controller: one per datagram; 0: none
  };
  void take_block(TimeNs now, TimeNs arrival_ns, Peer& peer, std::uint8_t path, const wire::AckBlock& block, bool fresh,
                  Report& report);
  void take_report(TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::uint32_t probe_timestamp_ns, Report report);
  void on_answer(SendState& state);
  void forget_blind(SendState& state);
  void mark_ready(SendState& state);
  void merge(SendState& state, const wire::BitmapMessage& bitmap);
  void slow_down_if_lost(SendState& state, std::uint32_t added);
  // `event` is what ends it. False, and counted, if the transfer is not under way.
  bool finish(TimeNs now, SendState& state, SendEvent event, CompletionStatus status);
  void give_up(TimeNs now, SendState& state, SendEvent event, CompletionStatus status);
  void say_abort(TimeNs now, SendState& state);
  // What was given up is over for the receiver too, or never will be: `event` says which.
  void settle(SendState& state, SendEvent event, bool is_matched = false);
  void free_slot(std::uint32_t slot);
  SendTag* tag_for_post(std::uint16_t peer, std::uint64_t tag);
  // A send of the tag is over, or its ABORT answered. `is_matched`: its receive has ended too.
  void leave_tag(const SendState& state, bool is_matched);
  // The receive of the transfer was posted.
  void note_posted(std::uint16_t peer, const wire::TransferId& transfer);
  // Whatever changes a tag's use goes through here: what is held is counted.
  template <typename Change>
  void change_tag(SendTag& entry, Change&& change);
  std::uint32_t take_generation(SendTag& entry);
  void retire_if_due(std::uint16_t peer);
  void retire_tags(std::uint16_t peer);
  bool fill_retirement(ControlOutput& output);
  void arm(SendState& state);
  void await_reply(TimeNs now, SendState& state);
  bool waits_for_turn(TimeNs now, SendState& state);
  DurationNs repeat_after(const SendState& state, std::uint32_t repeats) const;
  void wait_blind(TimeNs now, SendState& state);
  void stop_waiting_blind(SendState& state);
  void wake_blind(Peer& peer);
  void schedule_probe(SendState& state, bool ack_only);
  void schedule_trailing_probes(SendState& state);
  void link_work(SendState& state);
  void unlink_work(SendState& state);

  void take_feeds();
  void end_feed(const SendState& state);
  std::optional<std::uint32_t> find_of_pass(SendState& state);
  bool next_segment(SendState& state, std::uint32_t& segment);
  void defer_classification(TimeNs now, std::uint16_t peer);
  std::uint32_t datagrams_allowed(TimeNs now, std::uint16_t peer, const SendState& state,
                                  const TransmitCapabilities& capabilities);
  bool fill_from_peer(TimeNs now, std::uint16_t peer, const TransmitCapabilities& capabilities, base::DatagramRun& run);
  // `segment`: the first, which next_segment() gave.
  void fill_run(TimeNs now, SendState& state, std::uint32_t segment, std::uint32_t limit, base::DatagramRun& run);
  // `trailing_path`: kNoPath for a probe in the control class.
  std::size_t encode_probe_of(TimeNs now, SendState& state, std::uint8_t trailing_path, std::byte* out);
  std::uint8_t probe_path(TimeNs now, SendState& state);

  // A run of data is about to leave.
  void check_mtu(TimeNs now, const base::DatagramRun& run);
  void start_mtu_search(std::uint16_t rank, std::uint8_t path);
  void take_mtu_outcome(TimeNs now, std::uint16_t rank, std::uint8_t path, MtuSearch::Outcome outcome);
  void arm_mtu(std::uint16_t rank);

  Shared& shared_;
  base::WordArena& arena_;
  base::LazyArray<SendState> states_;
  base::FixedStack<std::uint32_t> free_;  // slots that were used before
  SlotIndex by_transfer_;                 // under way, or given up and not yet answered
  SlotIndex by_operation_;                // until the slot is free
  std::vector<std::uint64_t> work_words_;
  base::BitmapView peers_with_work_;
  SlotSet probes_due_;
  SlotSet backstops_due_;
  SlotSet aborts_due_;
  std::vector<std::uint64_t> mtu_words_;
  base::BitmapView mtu_probes_due_;  // peers
  SlotSet retirements_due_;          // peers
  std::vector<std::uint32_t> fed_;   // slots of sends with segments that are not ready yet, `fed_count_` of them
  std::uint32_t fed_count_ = 0;
  std::uint16_t next_peer_ = 0;           // where the round robin over peers goes on
  std::uint32_t blocks_to_classify_ = 0;  // in this fill_data()
  std::uint64_t posts_ = 0;
};

}  // namespace mlt::core
