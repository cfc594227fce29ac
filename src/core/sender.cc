#include "core/sender.h"

#include <algorithm>

#include "base/check.h"

namespace mlt::core {

namespace {

// A probe that stays unanswered this often is also sent over TCP: something eats datagrams, or one class of them.
constexpr std::uint32_t kBackstopAfterProbes = 6;

CompletionStatus completion_status(wire::StopStatus status) {
  switch (status) {
    case wire::StopStatus::kComplete:
      return CompletionStatus::kComplete;
    case wire::StopStatus::kWithinBound:
      return CompletionStatus::kWithinBound;
    case wire::StopStatus::kDeadline:
      return CompletionStatus::kDeadline;
    case wire::StopStatus::kSizeMismatch:
      return CompletionStatus::kSizeMismatch;
    case wire::StopStatus::kTypeMismatch:
      return CompletionStatus::kTypeMismatch;
    case wire::StopStatus::kCancelled:
    case wire::StopStatus::kFinishedBefore:  // it may have failed or lost something: no success is claimed
      return CompletionStatus::kCancelled;
  }
  return CompletionStatus::kCancelled;
}

std::uint32_t nonzero_timestamp(TimeNs now) {
  const auto low = static_cast<std::uint32_t>(now);
  return low == 0 ? 1 : low;
}

}  // namespace

Sender::Sender(Shared& shared, base::WordArena& arena)
    : shared_(shared),
      arena_(arena),
      states_(shared.config.max_sends),
      free_(shared.config.max_sends),
      work_words_(base::words_for_bits(shared.config.peers)),
      peers_with_work_(work_words_.data(), shared.config.peers),
      probe_words_(base::words_for_bits(shared.config.max_sends)),
      probes_due_(probe_words_.data(), shared.config.max_sends),
      backstop_words_(base::words_for_bits(shared.config.max_sends)),
      backstops_due_(backstop_words_.data(), shared.config.max_sends),
      aborts_(shared.config.max_sends) {
  for (std::uint32_t slot = shared.config.max_sends; slot-- > 0;) free_.push(slot);
}

PostStatus Sender::post(TimeNs now, const SendRequest& request) {
  if (const PostStatus status = shared_.check_peer(request.peer); status != PostStatus::kPosted) return status;
  if (request.data.size() > ~std::uint32_t{0}) return PostStatus::kTooLarge;
  if (request.data.size() % wire::element_bytes(request.element) != 0) return PostStatus::kBadElementCount;
  const Peer& peer = shared_.peers[request.peer];
  const SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), peer.segment_bytes);
  if (grid.count() > kMaxBitmapChunks * MLT_BITMAP_CHUNK_SEGMENTS) return PostStatus::kTooLarge;
  if (!request.tags.empty() && request.tags.size() != grid.count()) return PostStatus::kBadTagCount;
  if (free_.empty()) return PostStatus::kTooManyOperations;
  TagEntry* entry = shared_.tags.find_or_insert(request.peer, request.tag);
  if (entry == nullptr) return PostStatus::kTooManyTags;
  const std::span<std::uint64_t> words = arena_.take(base::words_for_bits(grid.count()));
  if (words.empty()) return PostStatus::kOutOfBitmaps;

  const std::uint32_t slot = free_.pop();
  SendState& state = states_[slot];
  state = SendState{};
  state.phase = SendPhase::kSending;
  state.request = request;
  state.generation = entry->send_generation++;
  state.grid = grid;
  state.words = words;
  state.pending = base::BitmapView(words.data(), grid.count());
  state.pending.set_all();
  state.pending_count = grid.count();
  if (request.tags.empty()) {
    state.critical_segments = request.uniform_tag.is_critical() ? grid.count() : 0;
  } else {
    for (const SegmentTag tag : request.tags) state.critical_segments += tag.is_critical() ? 1U : 0U;
  }
  state.posted_ns = now;
  const DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : shared_.config.operation_timeout_ns;
  state.expires_ns = base::after(now, timeout);
  state.post_number = posts_++;
  state.next_same_tag = entry->send_head;
  entry->send_head = slot;
  link_work(state);
  arm(state);
  return PostStatus::kPosted;
}

bool Sender::cancel(TimeNs now, OperationId operation) {
  for (SendState& state : states_) {
    if ((state.phase == SendPhase::kSending || state.phase == SendPhase::kAwaiting) &&
        state.request.operation == operation) {
      give_up(now, state, CompletionStatus::kCancelled);
      return true;
    }
  }
  return false;
}

SendState* Sender::find(std::uint16_t peer, const wire::TransferId& transfer) {
  const TagEntry* entry = shared_.tags.find(peer, transfer.tag);
  if (entry == nullptr) return nullptr;
  for (std::uint32_t slot = entry->send_head; slot != kNil; slot = states_[slot].next_same_tag) {
    if (states_[slot].generation == transfer.generation) return &states_[slot];
  }
  return nullptr;
}

// ---- answers -------------------------------------------------------------------------------------------------------

void Sender::on_ack_block(TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::uint8_t path,
                          const wire::AckBlock& block, bool fresh, std::uint32_t probe_timestamp_ns) {
  Peer& peer = shared_.peers[from];
  PathOut& out = peer.out[path];
  bool progress = false;
  // Never trust a number beyond what was sent.
  if (is_after(block.highest_sequence, out.resolved) && !is_after(block.highest_sequence, out.last_sequence)) {
    out.resolved = block.highest_sequence;
    progress = true;
  }
  const auto now_low = static_cast<std::uint32_t>(now);
  if (fresh) {
    // Two round trips: how long an answer takes, both hosts' threads included, for the timers; and how long the network
    // takes, from arrival stamps, for the rate. A host that is slow to look is no congestion; the window bounds it.
    const std::uint32_t answer = now_low - block.echo_timestamp_ns;
    const std::uint32_t network = static_cast<std::uint32_t>(arrival_ns) - block.echo_timestamp_ns - block.hold_ns;
    if (answer < 0x8000'0000U && network < 0x8000'0000U) {  // else a stale echo, or a clock that jumped
      peer.rtt.on_sample(answer);
      peer.rate->on_rtt_sample(now, std::max<DurationNs>(1, network));
    }
  }
  if (probe_timestamp_ns != 0) {
    const std::uint32_t rtt = now_low - probe_timestamp_ns;
    if (rtt < 0x8000'0000U && rtt > 0) peer.rtt.on_sample(rtt);
    if (peer.stall_probe_ns != base::kNever && rtt <= static_cast<std::uint64_t>(now - peer.stall_probe_ns)) {
      // The window was full for a whole timeout, nothing was sent since, and the peer answers a question asked after
      // that: what it has not seen by now is lost.
      for (PathOut& path_out : peer.out) path_out.resolved = path_out.last_sequence;
      progress = true;
    }
  }
  if (progress) {
    peer.stall_repeats = 0;
    peer.stall_probe_ns = base::kNever;
    if (peer.window_blocked) {
      peer.window_blocked = false;
      shared_.timers.cancel(shared_.peer_timer(from));
    }
  }
}

void Sender::on_alive(SendState& state) {
  state.unanswered_probes = 0;
  // A question that is not out yet may be the wrong one by now: a round that goes on must not be asked for its end.
  backstops_due_.clear(slot_of(state));
}

void Sender::mark_ready(TimeNs now, SendState& state) {
  if (state.receiver_ready) return;
  state.receiver_ready = true;
  if (state.phase == SendPhase::kSending) {
    state.probe_ns = base::kNever;  // it asked because it might not be posted
    state.probe_due = false;
    probes_due_.clear(slot_of(state));
    link_work(state);
    arm(state);
  }
  (void)now;
}

void Sender::on_ack(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Ack& ack) {
  shared_.counters.add(Counter::k_acks_received);
  on_ack_block(now, arrival_ns, from, ack.prefix.path, ack.block, (ack.prefix.flags & MLT_ACK_FLAG_ECHO) != 0,
               ack.probe_timestamp_ns);
  SendState* state = find(from, ack.transfer);
  if (state == nullptr) return;  // ACKs are per peer: the transfer that made this one due may be over
  on_alive(*state);
  if ((ack.prefix.flags & MLT_ACK_FLAG_POSTED) != 0) mark_ready(now, *state);
}

void Sender::on_bitmap(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::BitmapMessage& bitmap) {
  shared_.counters.add(Counter::k_bitmaps_received);
  on_ack_block(now, arrival_ns, from, bitmap.prefix.path, bitmap.block,
               (bitmap.prefix.flags & MLT_BITMAP_FLAG_ECHO) != 0, bitmap.probe_timestamp_ns);
  SendState* found = find(from, bitmap.transfer);
  if (found == nullptr) return shared_.counters.add(Counter::k_stale_control);
  SendState& state = *found;
  on_alive(state);
  if ((bitmap.prefix.flags & MLT_BITMAP_FLAG_NOT_POSTED) != 0) {
    // It will speak up when it is posted; until then ask ever more slowly, in case that word is lost.
    const DurationNs wait = shared_.peers[from].rtt.timeout_ns(++state.not_posted_answers);
    state.probe_ns = base::after(now, wait);
    return arm(state);
  }
  mark_ready(now, state);
  if (bitmap.segment_count == 0) return;
  const bool starts_repair = state.phase == SendPhase::kAwaiting && bitmap.prefix.round == state.round;
  const bool adds_to_repair =
      state.phase == SendPhase::kSending && bitmap.prefix.round == static_cast<std::uint8_t>(state.round - 1);
  if (!starts_repair && !adds_to_repair) return shared_.counters.add(Counter::k_stale_control);
  if (bitmap.first_segment >= state.grid.count() || bitmap.segment_count > state.grid.count() - bitmap.first_segment) {
    return shared_.counters.add(Counter::k_drop_bad_segment);
  }
  const std::uint32_t chunk = bitmap.first_segment / MLT_BITMAP_CHUNK_SEGMENTS;
  base::BitmapView merged(state.merged_chunks.data(), kMaxBitmapChunks);
  if (starts_repair) merged.clear_all();
  if (merged.test(chunk)) return;  // the answer to a repeated probe
  std::uint32_t added = 0;
  for (std::uint32_t i = 0; i < bitmap.segment_count; ++i) {
    const bool received = ((std::to_integer<std::uint32_t>(bitmap.bits[i / 8]) >> (i % 8)) & 1U) != 0;
    if (received || state.pending.test(bitmap.first_segment + i)) continue;
    state.pending.set(bitmap.first_segment + i);
    ++added;
  }
  if (added == 0) return;
  merged.set(chunk);
  state.pending_count += added;
  state.cursor = 0;
  state.pass = 0;
  if (starts_repair) {
    ++state.round;
    state.phase = SendPhase::kSending;
    state.probe_ns = base::kNever;
    state.probe_due = false;
    probes_due_.clear(slot_of(state));
  }
  link_work(state);
  arm(state);
}

void Sender::on_stop(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::Stop& stop) {
  shared_.counters.add(Counter::k_stops_received);
  on_ack_block(now, arrival_ns, from, stop.prefix.path, stop.block, (stop.prefix.flags & MLT_STOP_FLAG_ECHO) != 0,
               stop.probe_timestamp_ns);
  SendState* state = find(from, stop.transfer);
  if (state == nullptr) return shared_.counters.add(Counter::k_stale_control);
  state->missing_bytes = stop.missing_bytes;
  state->remote_total_bytes = stop.receiver_total_bytes;
  state->remote_element = stop.prefix.element;
  finish(now, *state, completion_status(stop.status));
}

// ---- timers and ends -----------------------------------------------------------------------------------------------

void Sender::arm(SendState& state) {
  shared_.timers.set(shared_.send_timer(slot_of(state)), std::min(state.expires_ns, state.probe_ns));
}

void Sender::ask(SendState& state, bool ack_only) {
  state.probe_due = true;
  state.probe_ack_only = ack_only;
  probes_due_.set(slot_of(state));
}

void Sender::await_answer(TimeNs now, SendState& state) {
  const Peer& peer = shared_.peers[state.request.peer];
  // The last run still has to leave at the current rate before an answer can be expected.
  const TimeNs leaves = std::max(now, peer.pacer.next_ns());
  state.probe_ns = base::after(leaves, peer.rtt.timeout_ns(state.unanswered_probes));
  arm(state);
}

void Sender::on_send_timer(TimeNs now, std::uint32_t slot) {
  SendState& state = states_[slot];
  if (state.phase != SendPhase::kSending && state.phase != SendPhase::kAwaiting) return;
  if (now >= state.expires_ns) return give_up(now, state, CompletionStatus::kTimedOut);
  if (now < state.probe_ns) return arm(state);
  if (state.unanswered_probes > 0) shared_.counters.add(Counter::k_control_resent);
  ask(state, state.phase == SendPhase::kSending);
  ++state.unanswered_probes;
  if (state.unanswered_probes > kBackstopAfterProbes) {
    backstops_due_.set(slot);
  }
  await_answer(now, state);
}

void Sender::on_peer_timer(TimeNs now, std::uint16_t rank) {
  Peer& peer = shared_.peers[rank];
  if (!peer.up || !peer.window_blocked) return;  // a pacing timer: poll_transmit does the rest
  if (peer.work_head == kNil) {
    // Whoever waited for the window is gone, and nobody asks for it any more: the next send finds out for itself.
    peer.window_blocked = false;
    peer.stall_repeats = 0;
    peer.stall_probe_ns = base::kNever;
    return;
  }
  shared_.counters.add(Counter::k_window_stalls);
  ask(states_[peer.work_head], true);
  if (++peer.stall_repeats > kBackstopAfterProbes) backstops_due_.set(peer.work_head);
  shared_.timers.set(shared_.peer_timer(rank), base::after(now, peer.rtt.timeout_ns(peer.stall_repeats)));
}

void Sender::on_peer_down(TimeNs now, std::uint16_t rank) {
  for (SendState& state : states_) {
    if ((state.phase == SendPhase::kSending || state.phase == SendPhase::kAwaiting) && state.request.peer == rank) {
      finish(now, state, CompletionStatus::kPeerFailed);
    }
  }
  shared_.timers.cancel(shared_.peer_timer(rank));
  aborts_.forget(rank);
}

// The receiver would otherwise wait for its own timeout, and the next transfer of this tag would meet the wrong
// receive.
void Sender::give_up(TimeNs now, SendState& state, CompletionStatus status) {
  Reply abort;
  abort.kind = ReplyKind::kAbort;
  abort.peer = state.request.peer;
  abort.transfer = state.transfer();
  aborts_.push(abort);
  finish(now, state, status);
}

void Sender::finish(TimeNs now, SendState& state, CompletionStatus status) {
  MLT_CHECK(state.phase == SendPhase::kSending || state.phase == SendPhase::kAwaiting);
  const std::uint32_t slot = slot_of(state);
  unlink_work(state);
  probes_due_.clear(slot);
  backstops_due_.clear(slot);
  shared_.timers.cancel(shared_.send_timer(slot));
  TagEntry* entry = shared_.tags.find(state.request.peer, state.request.tag);
  MLT_CHECK(entry != nullptr);
  std::uint32_t* link = &entry->send_head;
  while (*link != slot) link = &states_[*link].next_same_tag;
  *link = state.next_same_tag;
  state.phase = SendPhase::kDone;
  state.status = status;
  state.elapsed_ns = now - state.posted_ns;
  arena_.give(state.words);
  shared_.counters.add(is_failure(status) ? Counter::k_operations_failed : Counter::k_sends_completed);
  shared_.completions.push({CompletionKind::kSend, slot});
}

void Sender::complete(std::uint32_t slot, Completion& completion) const {
  const SendState& state = states_[slot];
  completion.operation = state.request.operation;
  completion.kind = CompletionKind::kSend;
  completion.status = state.status;
  completion.peer = state.request.peer;
  completion.tag = state.request.tag;
  completion.total_bytes = state.grid.total_bytes();
  completion.missing_bytes = state.missing_bytes;
  completion.allowed_missing_bytes = 0;
  completion.repaired_segments = state.repaired_segments;
  completion.remote_total_bytes = state.remote_total_bytes;
  completion.remote_element = state.remote_element;
  completion.elapsed_ns = state.elapsed_ns;
  completion.received_bitmap = {};
  completion.segment_count = state.grid.count();
  completion.segment_bytes = state.grid.segment_bytes();
}

void Sender::release(std::uint32_t slot) {
  states_[slot].phase = SendPhase::kFree;
  free_.push(slot);
}

// ---- what goes out -------------------------------------------------------------------------------------------------

// Front layers before back layers across tensors; the order of posting breaks ties.
void Sender::link_work(SendState& state) {
  if (state.in_work || state.pending_count == 0) return;
  Peer& peer = shared_.peers[state.request.peer];
  std::uint32_t* link = &peer.work_head;
  while (*link != kNil) {
    const SendState& other = states_[*link];
    if (state.request.order < other.request.order) break;
    if (state.request.order == other.request.order && state.post_number < other.post_number) break;
    link = &states_[*link].next_work;
  }
  state.next_work = *link;
  *link = slot_of(state);
  state.in_work = true;
  peers_with_work_.set(state.request.peer);
}

void Sender::unlink_work(SendState& state) {
  if (!state.in_work) return;
  Peer& peer = shared_.peers[state.request.peer];
  std::uint32_t* link = &peer.work_head;
  while (*link != slot_of(state)) link = &states_[*link].next_work;
  *link = state.next_work;
  state.next_work = kNil;
  state.in_work = false;
  if (peer.work_head == kNil) peers_with_work_.clear(state.request.peer);
}

std::uint64_t Sender::in_flight_bytes(std::uint16_t rank) const {
  const Peer& peer = shared_.peers[rank];
  std::uint64_t packets = 0;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    packets += peer.out[path].last_sequence - peer.out[path].resolved;
  }
  return packets * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
}

// The next segment in send order: critical, then important, then the rest. Leaves the cursor on it.
bool Sender::next_segment(SendState& state, std::uint32_t& segment) {
  while (state.pass < kPasses) {
    std::size_t i = state.pending.find_set(state.cursor);
    while (i < state.grid.count() && state.tag_of(static_cast<std::uint32_t>(i)).pass() != state.pass) {
      // With one tag for all, the pass decides for every segment at once.
      i = state.request.tags.empty() ? state.grid.count() : state.pending.find_set(i + 1);
    }
    if (i < state.grid.count()) {
      segment = state.cursor = static_cast<std::uint32_t>(i);
      return true;
    }
    ++state.pass;
    state.cursor = 0;
  }
  return false;
}

// How many datagrams may leave now for this send: 0 if window or blindness forbid.
std::uint32_t Sender::datagrams_allowed(TimeNs now, std::uint16_t rank, const SendState& state,
                                        const TransmitCapabilities& capabilities) {
  Peer& peer = shared_.peers[rank];
  const std::uint32_t datagram = peer.segment_bytes + MLT_DATA_HEADER_BYTES;
  std::uint64_t limit = std::min<std::uint64_t>(capabilities.max_run_segments, base::kMaxRunSegments);
  limit = std::min<std::uint64_t>(limit, capabilities.max_run_bytes / datagram);
  limit = std::min(limit, Pacer::run_bytes(peer.rate->rate_bytes_per_second()) / datagram);
  limit = std::max<std::uint64_t>(limit, 1);
  const std::uint64_t in_flight = in_flight_bytes(rank);
  const std::uint64_t room = peer.window_bytes > in_flight ? peer.window_bytes - in_flight : 0;
  if (in_flight > 0) {
    // Runs are cheap only when they are long: wait for a quarter of the window rather than dribble.
    const std::uint64_t worthwhile = std::min<std::uint64_t>(limit * datagram, peer.window_bytes / 4);
    if (room < datagram || room < worthwhile) {
      if (!peer.window_blocked) {
        peer.window_blocked = true;
        shared_.timers.set(shared_.peer_timer(rank), base::after(now, peer.rtt.timeout_ns(peer.stall_repeats)));
      }
      return 0;
    }
  }
  // One datagram at least, even into a window that is smaller than it.
  limit = std::max<std::uint64_t>(1, std::min(limit, room / datagram));
  if (!state.receiver_ready) {
    const std::uint32_t blind = std::max<std::uint32_t>(peer.early_segments, 1);
    if (state.blind_segments >= blind) return 0;
    limit = std::min<std::uint64_t>(limit, blind - state.blind_segments);
  }
  return static_cast<std::uint32_t>(limit);
}

bool Sender::fill_data(TimeNs now, const TransmitCapabilities& capabilities, base::DatagramRun& run) {
  const std::uint16_t peers = shared_.config.peers;
  std::size_t rank = peers_with_work_.find_set(next_peer_);
  bool wrapped = false;
  while (true) {
    if (rank >= peers) {
      if (wrapped) return false;
      wrapped = true;
      rank = peers_with_work_.find_set(0);
      if (rank >= next_peer_) return false;
    }
    if (wrapped && rank >= next_peer_) return false;
    if (fill_from_peer(now, static_cast<std::uint16_t>(rank), capabilities, run)) {
      next_peer_ = static_cast<std::uint16_t>((rank + 1) % peers);
      return true;
    }
    rank = peers_with_work_.find_set(rank + 1);
  }
}

bool Sender::fill_from_peer(TimeNs now, std::uint16_t rank, const TransmitCapabilities& capabilities,
                            base::DatagramRun& run) {
  Peer& peer = shared_.peers[rank];
  if (peer.window_blocked) return false;
  if (!peer.pacer.may_send(now)) {
    shared_.timers.set(shared_.peer_timer(rank), peer.pacer.next_ns());
    return false;
  }
  for (std::uint32_t slot = peer.work_head; slot != kNil;) {
    SendState& state = states_[slot];
    slot = state.next_work;
    const std::uint32_t limit = datagrams_allowed(now, rank, state, capabilities);
    if (peer.window_blocked) return false;
    if (limit == 0) {  // sent all it may send blindly: ask, and let others go on
      unlink_work(state);
      ask(state, true);
      await_answer(now, state);
      continue;
    }
    fill_run(now, state, limit, run);
    return true;
  }
  return false;
}

void Sender::fill_run(TimeNs now, SendState& state, std::uint32_t limit, base::DatagramRun& run) {
  Peer& peer = shared_.peers[state.request.peer];
  const std::uint8_t path = peer.next_path;
  peer.next_path = static_cast<std::uint8_t>((peer.next_path + 1) % shared_.config.paths);
  PathOut& out = peer.out[path];

  std::uint32_t segment = 0;
  MLT_CHECK(next_segment(state, segment));
  const SegmentTag first_tag = state.tag_of(segment);
  const std::uint8_t pass = state.pass;
  run.peer = state.request.peer;
  run.path = path;
  run.dscp = shared_.config.dscp.data[first_tag.traffic_class()];
  run.ecn = first_tag.ecn();
  run.datagram_bytes = MLT_DATA_HEADER_BYTES + state.grid.length(segment);
  run.datagram_count = 0;
  run.slice_count = 0;
  run.total_bytes = 0;

  wire::DataHeader header;
  header.prefix.type = wire::PacketType::kData;
  header.prefix.path = path;
  header.prefix.element = state.request.element;
  header.prefix.round = state.round;
  header.prefix.cookie = peer.remote_cookie;
  header.tag = state.request.tag;
  header.generation = state.generation;
  header.total_bytes = state.grid.total_bytes();
  header.timestamp_ns = static_cast<std::uint32_t>(now);
  std::uint8_t common_flags = state.round > 0 || state.repaired_segments > 0 ? MLT_FLAG_REPAIR : 0;
  if (state.critical_segments > 0) common_flags |= MLT_FLAG_HAS_CRITICAL;

  // One class, one mark, one length (the last datagram may be shorter): then the kernel cuts the run for us.
  while (run.datagram_count < limit) {
    const SegmentTag tag = state.tag_of(segment);
    const std::uint32_t length = state.grid.length(segment);
    if (state.pass != pass || tag.traffic_class() != first_tag.traffic_class()) break;
    if (MLT_DATA_HEADER_BYTES + length > run.datagram_bytes) break;
    state.pending.clear(segment);
    --state.pending_count;
    header.prefix.sequence = ++out.last_sequence;
    header.prefix.flags = common_flags;
    if (tag.is_critical()) header.prefix.flags |= MLT_FLAG_CRITICAL;
    // Seen on one path the marker says nothing about the others: with several, a probe names the newest packet of each.
    if (state.pending_count == 0 && shared_.config.paths == 1) header.prefix.flags |= MLT_FLAG_END_OF_ROUND;
    header.offset_bytes = state.grid.offset(segment);
    std::byte* at = run.scratch.data() + std::size_t{run.datagram_count} * MLT_DATA_HEADER_BYTES;
    wire::encode_data_header(header, at);
    run.slices[run.slice_count++] = {at, MLT_DATA_HEADER_BYTES};
    if (length > 0) run.slices[run.slice_count++] = {state.request.data.data() + header.offset_bytes, length};
    run.total_bytes += MLT_DATA_HEADER_BYTES + length;
    ++run.datagram_count;
    if (state.pending_count == 0 || MLT_DATA_HEADER_BYTES + length < run.datagram_bytes) break;
    if (!next_segment(state, segment)) break;
  }

  peer.pacer.on_sent(now, run.total_bytes, peer.rate->rate_bytes_per_second());
  if (!state.receiver_ready) state.blind_segments += run.datagram_count;
  if (common_flags & MLT_FLAG_REPAIR) {
    state.repaired_segments += run.datagram_count;
    shared_.counters.add(Counter::k_segments_repaired, run.datagram_count);
  }
  shared_.counters.add(Counter::k_runs_sent);
  shared_.counters.add(Counter::k_data_packets_sent, run.datagram_count);
  shared_.counters.add(Counter::k_data_bytes_sent,
                       run.total_bytes - std::uint64_t{run.datagram_count} * MLT_DATA_HEADER_BYTES);
  if (state.pending_count == 0) {
    unlink_work(state);
    state.phase = SendPhase::kAwaiting;
    // The marker in the last packet asks already. Critical segments need their number told, which only a probe does.
    if (state.critical_segments > 0 || shared_.config.paths > 1) ask(state, false);
    await_answer(now, state);
  }
}

std::size_t Sender::encode_probe_of(TimeNs now, SendState& state, std::byte* out) {
  Peer& peer = shared_.peers[state.request.peer];
  wire::Probe probe;
  probe.prefix.type = wire::PacketType::kProbe;
  probe.prefix.element = state.request.element;
  probe.prefix.round = state.round;
  probe.prefix.cookie = peer.remote_cookie;
  if (state.probe_ack_only) probe.prefix.flags |= MLT_PROBE_FLAG_ACK_ONLY;
  if (state.critical_segments > 0) probe.prefix.flags |= MLT_PROBE_FLAG_CRITICAL;
  probe.transfer = state.transfer();
  probe.total_bytes = state.grid.total_bytes();
  probe.critical_segments = state.critical_segments;
  probe.timestamp_ns = nonzero_timestamp(now);
  probe.grace_ns = static_cast<std::uint32_t>(peer.rtt.grace_ns());
  probe.path_count = shared_.config.paths;
  for (std::uint8_t path = 0; path < probe.path_count; ++path) probe.last_sequence[path] = peer.out[path].last_sequence;
  if (state.probe_ack_only && peer.window_blocked && peer.stall_repeats > 0 && peer.stall_probe_ns == base::kNever) {
    peer.stall_probe_ns = now;
  }
  shared_.counters.add(Counter::k_probes_sent);
  return wire::encode_probe(probe, out);
}

bool Sender::fill_probe(TimeNs now, base::DatagramRun& run) {
  const std::size_t slot = probes_due_.find_set(0);
  if (slot >= states_.size()) return false;
  probes_due_.clear(slot);
  SendState& state = states_[slot];
  state.probe_due = false;
  const std::size_t size = encode_probe_of(now, state, run.scratch.data());
  run.peer = state.request.peer;
  run.path = 0;
  run.dscp = shared_.config.dscp.control;
  run.ecn = base::Ecn::kEct0;
  run.datagram_count = 1;
  run.slice_count = 1;
  run.slices[0] = {run.scratch.data(), size};
  run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
  return true;
}

bool Sender::fill_backstop(TimeNs now, ControlOutput& output) {
  if (const Reply* due = aborts_.front()) {
    wire::Abort abort;
    abort.prefix.type = wire::PacketType::kAbort;
    abort.prefix.cookie = shared_.peers[due->peer].remote_cookie;
    abort.transfer = due->transfer;
    output.peer = due->peer;
    output.size = wire::encode_abort(abort, output.bytes);
    aborts_.pop();
    shared_.counters.add(Counter::k_aborts_sent);
    return true;
  }
  const std::size_t slot = backstops_due_.find_set(0);
  if (slot >= states_.size()) return false;
  backstops_due_.clear(slot);
  SendState& state = states_[slot];
  output.peer = state.request.peer;
  output.size = encode_probe_of(now, state, output.bytes);
  shared_.counters.add(Counter::k_backstop_messages_sent);
  return true;
}

}  // namespace mlt::core
