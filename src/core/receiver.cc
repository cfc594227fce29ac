#include "core/receiver.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace mlt::core {

namespace {

// Longest that an answer waits for packets that may only be late.
constexpr DurationNs kMaxGraceNs = 20 * base::kMillisecond;
// "Enough later packets on the same path": as many as TCP's three duplicate ACKs.
constexpr std::uint32_t kLaterPackets = 3;
// A sender repeats its probe every RttEstimator::kMaxTimeoutNs at least: after this long it has had its answer, or has
// gone over to the control connection.
constexpr DurationNs kRecentNs = 2 * base::kSecond;

wire::StopStatus stop_status(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kComplete:
      return wire::StopStatus::kComplete;
    case CompletionStatus::kWithinBound:
      return wire::StopStatus::kWithinBound;
    case CompletionStatus::kDeadline:
      return wire::StopStatus::kDeadline;
    case CompletionStatus::kSizeMismatch:
      return wire::StopStatus::kSizeMismatch;
    case CompletionStatus::kTypeMismatch:
      return wire::StopStatus::kTypeMismatch;
    case CompletionStatus::kPeerFailed:
    case CompletionStatus::kTimedOut:
    case CompletionStatus::kCancelled:
      return wire::StopStatus::kCancelled;
  }
  return wire::StopStatus::kCancelled;
}

}  // namespace

Receiver::Receiver(Shared& shared, base::WordArena& arena)
    : shared_(shared),
      arena_(arena),
      states_(shared.config.max_receives),
      free_(shared.config.max_receives),
      early_(shared.config.early_segments, shared.config.max_segment_bytes, shared.config.early_transfers,
             shared.config.early_segments_per_peer(), shared.config.peers),
      finished_(shared.config.finished_log),
      replies_(shared.config.reply_queue),
      control_replies_(shared.config.reply_queue),
      ack_words_(base::words_for_bits(shared.config.peers)),
      acks_due_(ack_words_.data(), shared.config.peers) {
  for (std::uint32_t slot = shared.config.max_receives; slot-- > 0;) free_.push(slot);
}

// ---- posting -------------------------------------------------------------------------------------------------------

PostStatus Receiver::post(TimeNs now, const ReceiveRequest& request) {
  if (const PostStatus status = shared_.check_peer(request.peer); status != PostStatus::kPosted) return status;
  if (request.data.size() > ~std::uint32_t{0}) return PostStatus::kTooLarge;
  const std::uint32_t element = wire::element_bytes(request.element);
  if (request.data.size() % element != 0) return PostStatus::kBadElementCount;
  if (!(request.loss_bound >= 0.0 && request.loss_bound < 1.0)) return PostStatus::kBadLossBound;
  if (request.loss_bound > 0.0 && !wire::is_floating_point(request.element)) return PostStatus::kLossyInteger;
  const Peer& peer = shared_.peers[request.peer];
  const SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), peer.segment_bytes);
  if (free_.empty()) return PostStatus::kTooManyOperations;
  TagEntry* entry = shared_.tags.find_or_insert(request.peer, request.tag);
  if (entry == nullptr) return PostStatus::kTooManyTags;
  const std::span<std::uint64_t> words = arena_.take(base::words_for_bits(grid.count()));
  if (words.empty()) return PostStatus::kOutOfBitmaps;

  const std::uint32_t slot = free_.pop();
  ReceiveState& state = states_[slot];
  state = ReceiveState{};
  state.phase = ReceivePhase::kActive;
  state.request = request;
  state.generation = entry->receive_generation++;
  state.grid = grid;
  state.words = words;
  state.received = base::BitmapView(words.data(), grid.count());
  state.received.clear_all();
  const double elements = static_cast<double>(request.data.size() / element);
  state.allowed_missing_bytes = static_cast<std::uint64_t>(std::floor(request.loss_bound * elements)) * element;
  state.posted_ns = now;
  const DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : shared_.config.operation_timeout_ns;
  state.expires_ns = base::after(now, timeout);
  if (request.deadline_ns > 0) state.deadline_ns = base::after(now, request.deadline_ns);
  state.next_same_tag = entry->receive_head;
  entry->receive_head = slot;
  arm(state);

  EarlyTransfer* early = early_.find(request.peer, state.transfer());
  if (early == nullptr) return PostStatus::kPosted;
  const bool aborted = early->aborted;
  const bool probed = early->probed;
  const wire::Probe probe = early->probe;
  early_.release(*early, [&](const wire::DataHeader& header, std::span<const std::byte> payload) {
    if (state.phase == ReceivePhase::kActive) place(now, state, header, payload);
  });
  if (state.phase != ReceivePhase::kActive) return PostStatus::kPosted;
  if (aborted) {  // the sender gave up before this receive was posted
    finish(now, state, CompletionStatus::kCancelled, false);
    return PostStatus::kPosted;
  }
  Reply ready;
  ready.kind = ReplyKind::kReady;
  ready.peer = request.peer;
  ready.transfer = state.transfer();
  if (probed && (probe.prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) == 0) {
    take_probe(now, state, probe, false);
  } else {
    replies_.push(ready);
    judge(now, state);
  }
  return PostStatus::kPosted;
}

bool Receiver::cancel(TimeNs now, OperationId operation) {
  for (ReceiveState& state : states_) {
    if (state.phase == ReceivePhase::kActive && state.request.operation == operation) {
      finish(now, state, CompletionStatus::kCancelled, true);
      return true;
    }
  }
  return false;
}

ReceiveState* Receiver::find(std::uint16_t peer, const wire::TransferId& transfer) {
  const TagEntry* entry = shared_.tags.find(peer, transfer.tag);
  if (entry == nullptr) return nullptr;
  for (std::uint32_t slot = entry->receive_head; slot != kNil; slot = states_[slot].next_same_tag) {
    if (states_[slot].generation == transfer.generation) return &states_[slot];
  }
  return nullptr;
}

// Was this transfer posted once? Asked only when it is not active: then it is over.
bool Receiver::is_over(std::uint16_t peer, const wire::TransferId& transfer) {
  const TagEntry* entry = shared_.tags.find(peer, transfer.tag);
  return entry != nullptr && is_after(entry->receive_generation, transfer.generation);
}

// ---- arrivals ------------------------------------------------------------------------------------------------------

void Receiver::count_arrival(TimeNs arrival_ns, std::uint16_t from, const wire::DataHeader& header, base::Ecn ecn,
                             bool posted) {
  Peer& peer = shared_.peers[from];
  const std::uint8_t path = header.prefix.path;
  PathIn& in = peer.in[path];
  if (in.received_packets == 0 || is_after(header.prefix.sequence, in.highest_sequence)) {
    in.highest_sequence = header.prefix.sequence;
    in.echo_timestamp_ns = header.timestamp_ns;
    in.echo_arrival_ns = arrival_ns;
    in.echo_fresh = true;
  } else {
    // Later than one sent after it: learn how late packets can be. Doubled, because the next may be later still.
    shared_.counters.add(Counter::k_reordered_packets);
    const DurationNs late = 2 * (arrival_ns - in.echo_arrival_ns) + 50 * base::kMicrosecond;
    peer.reorder_window_ns = std::clamp(late, peer.reorder_window_ns, kMaxGraceNs);
  }
  ++in.received_packets;
  if (ecn == base::Ecn::kCe) {
    ++in.ce_packets;
    shared_.counters.add(Counter::k_ce_marks_received);
  }
  peer.last_path = path;
  if (++in.since_ack >= shared_.config.packets_per_ack) {
    peer.acks_due |= 1U << path;
    peer.ack_transfer = {header.tag, header.generation};
    peer.ack_posted = posted;
    acks_due_.set(from);
  }
}

void Receiver::on_data(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::DataHeader& header,
                       std::span<const std::byte> payload, base::Ecn ecn) {
  shared_.counters.add(Counter::k_data_packets_received);
  shared_.counters.add(Counter::k_data_bytes_received, payload.size());
  const wire::TransferId transfer{header.tag, header.generation};
  ReceiveState* state = find(from, transfer);
  count_arrival(arrival_ns, from, header, ecn, state != nullptr);
  if (state != nullptr) {
    if (place(now, *state, header, payload)) judge(now, *state);
    return;
  }
  if (is_over(from, transfer)) {
    // Never touches a buffer: the memory of a completed transfer belongs to the application again.
    shared_.counters.add(Counter::k_stale_packets);
    if ((header.prefix.flags & MLT_FLAG_END_OF_ROUND) != 0) answer_finished(from, transfer, 0, false);
    return;
  }
  on_early_data(now, from, header, payload);
}

void Receiver::on_early_data(TimeNs now, std::uint16_t from, const wire::DataHeader& header,
                             std::span<const std::byte> payload) {
  (void)now;
  EarlyTransfer* early = early_.find_or_insert(from, {header.tag, header.generation});
  if (early != nullptr && early_.keep(*early, header, payload)) {
    shared_.counters.add(Counter::k_early_segments_kept);
  } else {
    shared_.counters.add(Counter::k_early_segments_dropped);
  }
  if (early != nullptr && (header.prefix.flags & MLT_FLAG_END_OF_ROUND) != 0 && !early->probed) {
    early->probed = true;
    early->probe = wire::Probe{};
    early->probe.prefix = header.prefix;
    early->probe.prefix.flags = 0;
    early->probe.transfer = early->transfer;
    early->probe.total_bytes = header.total_bytes;
  }
}

bool Receiver::matches(TimeNs now, ReceiveState& state, std::uint64_t total_bytes, wire::ElementType element) {
  if (total_bytes == state.grid.total_bytes() && element == state.request.element) return true;
  shared_.counters.add(Counter::k_drop_mismatch);
  state.remote_total_bytes = total_bytes;
  state.remote_element = element;
  finish(now, state,
         element != state.request.element ? CompletionStatus::kTypeMismatch : CompletionStatus::kSizeMismatch, true);
  return false;
}

bool Receiver::place(TimeNs now, ReceiveState& state, const wire::DataHeader& header,
                     std::span<const std::byte> payload) {
  if (!matches(now, state, header.total_bytes, header.prefix.element)) return false;
  if (!state.grid.fits(header.offset_bytes, payload.size())) {
    shared_.counters.add(Counter::k_drop_bad_segment);
    return true;
  }
  state.last_data_ns = now;
  const std::uint8_t flags = header.prefix.flags;
  state.has_critical = state.has_critical || (flags & MLT_FLAG_HAS_CRITICAL) != 0;
  const std::uint32_t segment = header.offset_bytes / state.grid.segment_bytes();
  if (state.received.test(segment)) {
    shared_.counters.add(Counter::k_duplicate_segments);
  } else {
    state.received.set(segment);
    ++state.received_segments;
    state.received_bytes += payload.size();
    if ((flags & MLT_FLAG_CRITICAL) != 0) ++state.critical_received;
    if ((flags & MLT_FLAG_REPAIR) != 0) ++state.repaired_segments;
    shared_.counters.add(Counter::k_segments_placed);
    if (state.request.place != nullptr) {
      state.request.place(state.request.place_context, header.offset_bytes, payload);
    } else if (!payload.empty()) {
      std::memcpy(state.request.data.data() + header.offset_bytes, payload.data(), payload.size());
    }
  }
  if ((flags & MLT_FLAG_END_OF_ROUND) != 0 &&
      (!state.round_over || static_cast<std::int8_t>(header.prefix.round - state.round) > 0)) {
    // The marker is the last packet of its round and stands in the same queue as the rest of it: what is not here by
    // now is lost, unless this path reorders.
    state.round_over = true;
    state.round_answered = false;
    state.round = header.prefix.round;
    state.round_over_ns = now;
    state.path_count = 0;
    state.probe_timestamp_ns = 0;
    state.answer_by_control = false;
    state.grace_ns = shared_.peers[state.request.peer].reorder_window_ns;
  }
  return true;
}

void Receiver::on_probe(TimeNs now, std::uint16_t from, const wire::Probe& probe, bool by_control) {
  shared_.counters.add(Counter::k_probes_received);
  if (by_control) shared_.counters.add(Counter::k_backstop_messages_received);
  ReceiveState* state = find(from, probe.transfer);
  if (state != nullptr) {
    if (matches(now, *state, probe.total_bytes, probe.prefix.element)) take_probe(now, *state, probe, by_control);
    return;
  }
  if (is_over(from, probe.transfer)) return answer_finished(from, probe.transfer, probe.timestamp_ns, by_control);
  if (EarlyTransfer* early = early_.find_or_insert(from, probe.transfer)) {
    early->probed = true;
    early->probe = probe;
  }
  Reply reply;
  reply.kind = ReplyKind::kNotPosted;
  reply.peer = from;
  reply.transfer = probe.transfer;
  reply.round = probe.prefix.round;
  reply.probe_timestamp_ns = probe.timestamp_ns;
  (by_control ? control_replies_ : replies_).push(reply);
}

void Receiver::on_abort(TimeNs now, std::uint16_t from, const wire::Abort& abort) {
  shared_.counters.add(Counter::k_aborts_received);
  if (ReceiveState* state = find(from, abort.transfer)) {
    return finish(now, *state, CompletionStatus::kCancelled, false);
  }
  if (is_over(from, abort.transfer)) return shared_.counters.add(Counter::k_stale_control);
  if (EarlyTransfer* early = early_.find_or_insert(from, abort.transfer)) early->aborted = true;
}

void Receiver::take_probe(TimeNs now, ReceiveState& state, const wire::Probe& probe, bool by_control) {
  if ((probe.prefix.flags & MLT_PROBE_FLAG_CRITICAL) != 0) {
    state.has_critical = true;
    state.critical_known = true;
    state.critical_total = probe.critical_segments;
  }
  if ((probe.prefix.flags & MLT_PROBE_FLAG_ACK_ONLY) != 0) {
    Reply reply;
    reply.kind = ReplyKind::kAck;
    reply.peer = state.request.peer;
    reply.transfer = state.transfer();
    reply.probe_timestamp_ns = probe.timestamp_ns;
    (by_control ? control_replies_ : replies_).push(reply);
    return judge(now, state);
  }
  const bool newer = !state.round_over || static_cast<std::int8_t>(probe.prefix.round - state.round) > 0;
  if (!newer && probe.prefix.round != state.round) return shared_.counters.add(Counter::k_stale_control);
  if (newer || !state.round_answered) {
    if (newer) state.round_over_ns = now;
    state.grace_ns = probe.path_count == 0 ? shared_.peers[state.request.peer].reorder_window_ns
                                           : std::min<DurationNs>(probe.grace_ns, kMaxGraceNs);
  }
  state.round_over = true;
  state.round = probe.prefix.round;
  state.round_answered = false;  // asked again: the answer may have been lost
  state.path_count = probe.path_count;
  std::copy_n(probe.last_sequence, probe.path_count, state.last_sequence.begin());
  state.probe_timestamp_ns = probe.timestamp_ns;
  state.answer_by_control = by_control;
  judge(now, state);
}

// ---- judgement -----------------------------------------------------------------------------------------------------

bool Receiver::critical_complete(const ReceiveState& state) const {
  if (!state.has_critical) return true;
  return state.critical_known && state.critical_received >= state.critical_total;
}

bool Receiver::within_bound(const ReceiveState& state) const {
  return state.missing_bytes() <= state.allowed_missing_bytes && critical_complete(state);
}

// From when on everything missing of the sender's round is known to be lost rather than on its way.
TimeNs Receiver::known_lost_ns(const ReceiveState& state) const {
  const Peer& peer = shared_.peers[state.request.peer];
  bool passed = state.path_count > 0;
  bool far_passed = passed;
  for (std::uint8_t path = 0; path < state.path_count; ++path) {
    const std::uint32_t last = state.last_sequence[path];
    const std::uint32_t highest = peer.in[path].highest_sequence;
    if (last == 0) continue;  // never used
    passed = passed && !is_after(last, highest);
    far_passed = far_passed && !is_after(last + kLaterPackets, highest);
  }
  if (far_passed) return state.round_over_ns;
  // Everything sent before the probe has been overtaken: only what this path was seen to reorder can still come.
  const DurationNs grace = passed ? std::min(state.grace_ns, peer.reorder_window_ns) : state.grace_ns;
  return base::after(std::max(state.last_data_ns, state.round_over_ns), grace);
}

void Receiver::judge(TimeNs now, ReceiveState& state) {
  // Of an empty tensor nothing can be missing, not even when its one packet was lost.
  if (state.missing_bytes() == 0) return finish(now, state, CompletionStatus::kComplete, true);
  if (state.request.stop == StopPolicy::kEager && state.allowed_missing_bytes > 0 && within_bound(state)) {
    return finish(now, state, CompletionStatus::kWithinBound, true);
  }
  if (!state.round_over || state.round_answered) return;
  if (now < known_lost_ns(state)) return arm(state);
  if (state.missing_bytes() <= state.allowed_missing_bytes && state.has_critical && !state.critical_known) {
    // A marker tells that there are critical segments but not how many; the probe that follows it does.
    state.round_answered = true;
    return arm(state);
  }
  if (within_bound(state)) return finish(now, state, CompletionStatus::kWithinBound, true);
  Reply reply;
  reply.kind = ReplyKind::kBitmap;
  reply.peer = state.request.peer;
  reply.transfer = state.transfer();
  reply.round = state.round;
  reply.probe_timestamp_ns = now == state.round_over_ns ? state.probe_timestamp_ns : 0;
  // If the queue is full the answer is lost like any datagram, and the sender's next probe asks again.
  (state.answer_by_control ? control_replies_ : replies_).push(reply);
  state.round_answered = true;
  arm(state);
}

void Receiver::on_receive_timer(TimeNs now, std::uint32_t slot) {
  ReceiveState& state = states_[slot];
  if (state.phase != ReceivePhase::kActive) return;
  if (now >= state.deadline_ns) return finish(now, state, CompletionStatus::kDeadline, true);
  if (now >= state.expires_ns) return finish(now, state, CompletionStatus::kTimedOut, true);
  judge(now, state);
  if (state.phase == ReceivePhase::kActive) arm(state);
}

void Receiver::arm(ReceiveState& state) {
  TimeNs at = std::min(state.expires_ns, state.deadline_ns);
  if (state.round_over && !state.round_answered) at = std::min(at, known_lost_ns(state));
  shared_.timers.set(shared_.receive_timer(slot_of(state)), at);
}

void Receiver::fill_missing(ReceiveState& state) {
  if (state.request.fill != Fill::kZero || state.request.place != nullptr) return;
  for (std::size_t i = state.received.find_clear(0); i < state.grid.count(); i = state.received.find_clear(i + 1)) {
    const auto segment = static_cast<std::uint32_t>(i);
    std::memset(state.request.data.data() + state.grid.offset(segment), 0, state.grid.length(segment));
  }
}

void Receiver::finish(TimeNs now, ReceiveState& state, CompletionStatus status, bool tell_sender) {
  MLT_CHECK(state.phase == ReceivePhase::kActive);
  const std::uint32_t slot = slot_of(state);
  TagEntry* entry = shared_.tags.find(state.request.peer, state.request.tag);
  MLT_CHECK(entry != nullptr);
  std::uint32_t* link = &entry->receive_head;
  while (*link != slot) link = &states_[*link].next_same_tag;
  *link = state.next_same_tag;
  shared_.timers.cancel(shared_.receive_timer(slot));
  if (!is_failure(status) && state.missing_bytes() > 0) {
    fill_missing(state);
    shared_.counters.add(Counter::k_segments_lost_within_bound, state.grid.count() - state.received_segments);
  }
  state.phase = ReceivePhase::kDone;
  state.status = status;
  state.elapsed_ns = now - state.posted_ns;
  shared_.peers[state.request.peer].reorder_window_ns -= shared_.peers[state.request.peer].reorder_window_ns / 16;
  shared_.counters.add(is_failure(status) ? Counter::k_operations_failed : Counter::k_receives_completed);
  shared_.completions.push({CompletionKind::kReceive, slot});
  if (!tell_sender) return;
  FinishedReceive finished;
  finished.used = true;
  finished.peer = state.request.peer;
  finished.transfer = state.transfer();
  finished.status = stop_status(status);
  finished.element = state.request.element;
  finished.missing_bytes = static_cast<std::uint32_t>(state.missing_bytes());
  finished.total_bytes = state.grid.total_bytes();
  finished.finished_ns = now;
  finished_.put(finished);
  entry->has_outcome = true;
  entry->outcome_generation = state.generation;
  entry->outcome_status = finished.status;
  entry->outcome_element = finished.element;
  entry->outcome_missing_bytes = finished.missing_bytes;
  entry->outcome_total_bytes = finished.total_bytes;
  const bool prompt = state.round_over && now == state.round_over_ns;
  answer_finished(state.request.peer, state.transfer(), prompt ? state.probe_timestamp_ns : 0, state.answer_by_control);
}

void Receiver::answer_finished(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t probe_timestamp_ns,
                               bool by_control) {
  Reply reply;
  reply.kind = ReplyKind::kStop;
  reply.peer = peer;
  reply.transfer = transfer;
  reply.probe_timestamp_ns = probe_timestamp_ns;
  reply.status = wire::StopStatus::kFinishedBefore;
  const TagEntry* entry = shared_.tags.find(peer, transfer.tag);
  if (entry != nullptr && entry->has_outcome && entry->outcome_generation == transfer.generation) {
    reply.status = entry->outcome_status;
    reply.element = entry->outcome_element;
    reply.missing_bytes = entry->outcome_missing_bytes;
    reply.total_bytes = entry->outcome_total_bytes;
  } else if (const FinishedReceive* finished = finished_.find(peer, transfer)) {
    reply.status = finished->status;
    reply.element = finished->element;
    reply.missing_bytes = finished->missing_bytes;
    reply.total_bytes = finished->total_bytes;
  }
  (by_control ? control_replies_ : replies_).push(reply);
}

// A STOP lost now would never be sent again, and the sender would take a finished transfer for a failed one: say over
// the control connection, which is closed in order, how the latest receives ended.
void Receiver::on_closing(TimeNs now) {
  finished_.each_since(now - kRecentNs, [&](const FinishedReceive& finished) {
    answer_finished(finished.peer, finished.transfer, 0, true);
  });
}

void Receiver::on_peer_down(TimeNs now, std::uint16_t peer) {
  for (ReceiveState& state : states_) {
    if (state.phase == ReceivePhase::kActive && state.request.peer == peer) {
      finish(now, state, CompletionStatus::kPeerFailed, false);
    }
  }
  early_.forget(peer);
  finished_.forget(peer);
  replies_.forget(peer);
  control_replies_.forget(peer);
  acks_due_.clear(peer);
}

void Receiver::complete(std::uint32_t slot, Completion& completion) const {
  const ReceiveState& state = states_[slot];
  completion.operation = state.request.operation;
  completion.kind = CompletionKind::kReceive;
  completion.status = state.status;
  completion.peer = state.request.peer;
  completion.tag = state.request.tag;
  completion.total_bytes = state.grid.total_bytes();
  completion.missing_bytes = state.missing_bytes();
  completion.allowed_missing_bytes = state.allowed_missing_bytes;
  completion.repaired_segments = state.repaired_segments;
  completion.remote_total_bytes = state.remote_total_bytes;
  completion.remote_element = state.remote_element;
  completion.elapsed_ns = state.elapsed_ns;
  completion.segment_count = state.grid.count();
  completion.segment_bytes = state.grid.segment_bytes();
  completion.received_bitmap = {};
  if (state.missing_bytes() > 0) {
    completion.received_bitmap = state.words.first(base::words_for_bits(state.grid.count()));
  }
}

void Receiver::release(std::uint32_t slot) {
  arena_.give(states_[slot].words);
  states_[slot].phase = ReceivePhase::kFree;
  free_.push(slot);
}

// ---- what goes out -------------------------------------------------------------------------------------------------

wire::AckBlock Receiver::block_of(TimeNs now, std::uint16_t rank, std::uint8_t path, bool& fresh) {
  PathIn& in = shared_.peers[rank].in[path];
  wire::AckBlock block;
  block.highest_sequence = in.highest_sequence;
  block.received_packets = in.received_packets;
  block.ce_packets = in.ce_packets;
  block.echo_timestamp_ns = in.echo_timestamp_ns;
  block.hold_ns = static_cast<std::uint32_t>(std::clamp<DurationNs>(now - in.echo_arrival_ns, 0, 0xFFFF'FFFFLL));
  fresh = in.echo_fresh;
  in.echo_fresh = false;
  in.since_ack = 0;
  // Whatever carries this block is an ACK of the path.
  Peer& peer = shared_.peers[rank];
  peer.acks_due &= ~(1U << path);
  if (peer.acks_due == 0) acks_due_.clear(rank);
  return block;
}

std::size_t Receiver::encode_ack_of(TimeNs now, std::uint16_t rank, std::byte* out) {
  Peer& peer = shared_.peers[rank];
  wire::Ack ack;
  ack.prefix.type = wire::PacketType::kAck;
  ack.prefix.path = static_cast<std::uint8_t>(std::countr_zero(peer.acks_due));
  ack.prefix.cookie = peer.remote_cookie;
  bool fresh = false;
  ack.block = block_of(now, rank, ack.prefix.path, fresh);
  if (fresh) ack.prefix.flags |= MLT_ACK_FLAG_ECHO;
  if (peer.ack_posted) ack.prefix.flags |= MLT_ACK_FLAG_POSTED;
  ack.transfer = peer.ack_transfer;
  shared_.counters.add(Counter::k_acks_sent);
  return wire::encode_ack(ack, out);
}

// Encodes one datagram of the answer; `more` tells that a bitmap has further chunks. 0: nothing to say any more.
std::size_t Receiver::encode_reply(TimeNs now, Reply& reply, std::byte* out, bool& more) {
  more = false;
  Peer& peer = shared_.peers[reply.peer];
  bool fresh = false;
  const std::uint8_t path = peer.last_path;
  if (reply.kind == ReplyKind::kStop) {
    wire::Stop stop;
    stop.prefix.type = wire::PacketType::kStop;
    stop.prefix.path = path;
    stop.prefix.element = reply.element;
    stop.prefix.cookie = peer.remote_cookie;
    stop.block = block_of(now, reply.peer, path, fresh);
    if (fresh) stop.prefix.flags |= MLT_STOP_FLAG_ECHO;
    stop.transfer = reply.transfer;
    stop.probe_timestamp_ns = reply.probe_timestamp_ns;
    stop.status = reply.status;
    stop.missing_bytes = reply.missing_bytes;
    stop.receiver_total_bytes = reply.total_bytes;
    shared_.counters.add(Counter::k_stops_sent);
    return wire::encode_stop(stop, out);
  }
  if (reply.kind == ReplyKind::kAck) {
    wire::Ack ack;
    ack.prefix.type = wire::PacketType::kAck;
    ack.prefix.path = path;
    ack.prefix.flags = MLT_ACK_FLAG_POSTED;
    ack.prefix.cookie = peer.remote_cookie;
    ack.block = block_of(now, reply.peer, path, fresh);
    if (fresh) ack.prefix.flags |= MLT_ACK_FLAG_ECHO;
    ack.transfer = reply.transfer;
    ack.probe_timestamp_ns = reply.probe_timestamp_ns;
    shared_.counters.add(Counter::k_acks_sent);
    return wire::encode_ack(ack, out);
  }
  wire::BitmapMessage bitmap;
  bitmap.prefix.type = wire::PacketType::kBitmap;
  bitmap.prefix.path = path;
  bitmap.prefix.round = reply.round;
  bitmap.prefix.cookie = peer.remote_cookie;
  bitmap.transfer = reply.transfer;
  bitmap.probe_timestamp_ns = reply.probe_timestamp_ns;
  std::array<std::byte, MLT_BITMAP_CHUNK_SEGMENTS / 8> bits;
  if (reply.kind == ReplyKind::kNotPosted) bitmap.prefix.flags |= MLT_BITMAP_FLAG_NOT_POSTED;
  if (reply.kind == ReplyKind::kReady) bitmap.prefix.flags |= MLT_BITMAP_FLAG_READY;
  if (reply.kind == ReplyKind::kBitmap) {
    const ReceiveState* state = find(reply.peer, reply.transfer);
    if (state == nullptr || state->round != reply.round) return 0;  // ended, or went on, since
    // Only chunks in which something is missing are worth a datagram.
    const std::size_t missing = state->received.find_clear(reply.next_segment);
    if (missing >= state->grid.count()) return 0;
    bitmap.first_segment = static_cast<std::uint32_t>(missing) / MLT_BITMAP_CHUNK_SEGMENTS * MLT_BITMAP_CHUNK_SEGMENTS;
    bitmap.segment_count = std::min(MLT_BITMAP_CHUNK_SEGMENTS, state->grid.count() - bitmap.first_segment);
    for (std::size_t w = 0; w < base::words_for_bits(bitmap.segment_count); ++w) {
      base::store_le64(bits.data() + 8 * w, state->received.words()[bitmap.first_segment / 64 + w]);
    }
    bitmap.bits = std::span<const std::byte>(bits).first((bitmap.segment_count + 7) / 8);
    reply.next_segment = bitmap.first_segment + bitmap.segment_count;
    reply.probe_timestamp_ns = 0;
    more = state->received.find_clear(reply.next_segment) < state->grid.count();
  }
  bitmap.block = block_of(now, reply.peer, path, fresh);
  if (fresh) bitmap.prefix.flags |= MLT_BITMAP_FLAG_ECHO;
  shared_.counters.add(Counter::k_bitmaps_sent);
  return wire::encode_bitmap(bitmap, out);
}

void Receiver::fill_control_run(std::uint16_t peer, std::size_t size, base::DatagramRun& run) const {
  run.peer = peer;
  run.path = shared_.peers[peer].last_path;
  run.dscp = shared_.config.dscp.control;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 1;
  run.slice_count = 1;
  run.slices[0] = {run.scratch.data(), size};
  run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
}

bool Receiver::fill_answer(TimeNs now, base::DatagramRun& run) {
  while (Reply* reply = replies_.front()) {
    bool more = false;
    const std::uint16_t peer = reply->peer;
    const std::size_t size = encode_reply(now, *reply, run.scratch.data(), more);
    if (!more) replies_.pop();
    if (size == 0) continue;
    fill_control_run(peer, size, run);
    return true;
  }
  const std::size_t rank = acks_due_.find_set(0);
  if (rank >= shared_.config.peers) return false;
  const auto peer = static_cast<std::uint16_t>(rank);
  fill_control_run(peer, encode_ack_of(now, peer, run.scratch.data()), run);
  return true;
}

bool Receiver::fill_backstop(TimeNs now, ControlOutput& output) {
  while (Reply* reply = control_replies_.front()) {
    bool more = false;
    output.peer = reply->peer;
    output.size = encode_reply(now, *reply, output.bytes, more);
    if (!more) control_replies_.pop();
    if (output.size == 0) continue;
    shared_.counters.add(Counter::k_backstop_messages_sent);
    return true;
  }
  return false;
}

}  // namespace mlt::core
