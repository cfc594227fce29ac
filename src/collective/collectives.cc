#include "collective/collectives.h"

#include <algorithm>

#include "base/check.h"
#include "core/importance.h"

namespace mlt::collective {

namespace {

// How long a rank whose peer gave a transfer up waits to hear why: longer than a message takes, shorter than anybody
// waits for an answer.
constexpr base::DurationNs kExplanationNs = base::kSecond;
// Groups that only failures were heard of count too; a job has a handful.
constexpr std::size_t kMaxGroups = 1'024;
constexpr unsigned kStepBits = 22, kStreamBits = 17;  // and 17 for the slot
constexpr std::uint32_t kMaxSteps = 1U << kStepBits;
constexpr std::uint32_t kMaxStreams = 1U << kStreamBits;

// Only want of room is worth another try.
bool may_retry(core::PostStatus status) {
  return status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::uint64_t Collectives::group_id(const std::vector<std::uint16_t>& ranks) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const std::uint16_t rank : ranks) {
    for (const unsigned byte : {rank & 0xFFU, static_cast<unsigned>(rank) >> 8}) {
      hash = (hash ^ byte) * 0x100000001B3ULL;
    }
  }
  return hash & kMaxKey;
}

// Local id: slot, stream, step.
OperationId Collectives::operation(const Active& active, std::size_t stream, std::uint32_t step) const {
  return machine_operation(MachineId::kCollective, (std::uint64_t{active.slot} << (kStepBits + kStreamBits)) |
                                                       (static_cast<std::uint64_t>(stream) << kStepBits) | step);
}

std::string Collectives::name(const Active& active) const {
  return std::string(collective_name(active.request.kind)) + " number " + std::to_string(active.sequence) +
         " of its group";
}

Collectives::Group& Collectives::group_of(const CollectiveRequest& request) {
  const std::uint64_t id = group_id(request.ranks);
  Group& group = groups_[id];
  group.id = id;
  if (group.ranks.empty()) {
    group.ranks = request.ranks;
    group.own = static_cast<std::uint32_t>(std::ranges::find(request.ranks, rank_) - request.ranks.begin());
  }
  return group;
}

void Collectives::refuse(const CollectiveRequest& request, const std::string& text) {
  CollectiveDone done;
  done.operation = request.operation;
  done.status = core::CompletionStatus::kCancelled;
  done.failed_peer = rank_;
  done.error = text;
  finished_.push_back(std::move(done));
}

void Collectives::start(TimeNs now, CollectiveRequest request) {
  Group& group = group_of(request);
  if (group.ranks != request.ranks) {
    return refuse(request, "another group of this context has the same name; name its ranks in another order");
  }
  auto made = std::make_unique<Active>();
  Active& active = *made;
  if (free_slots_.empty()) {
    active.slot = static_cast<std::uint32_t>(slots_.size());
    slots_.push_back(std::move(made));
  } else {
    active.slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[active.slot] = std::move(made);
  }
  ++open_;
  active.group = &group;
  active.started_ns = now;
  active.done.operation = request.operation;
  active.done.total_bytes = std::max(request.input.size(), request.output.size());
  const base::DurationNs timeout_ns = request.timeout_ns > 0 ? request.timeout_ns : default_timeout_ns_;
  active.request = std::move(request);
  set_timer(active, base::after(now, timeout_ns));
  // PROTOCOL 22.1.1: The members of a group MUST call the same collectives in the same order; each call takes the
  //     group's next sequence number, from 0 ...
  active.sequence = group.next++;
  group.open.push_back(active.slot);
  if (group.broken && active.sequence >= group.broken_from) fail(now, active, group.cause, !group.is_told);
  settle(now);
}

// PROTOCOL 22.1.4: Up to 4 collectives of a group are under way; the next begins when the first of them has ended ...
void Collectives::begin(TimeNs now, Active& active) {
  Group& group = *active.group;
  active.collective = make_collective(active.request, {group.ranks, group.own});
  active.collective->begin();
  std::vector<Stream>& streams = active.collective->streams;
  MLT_CHECK(streams.size() < kMaxStreams);
  active.streams_left = streams.size();
  for (Stream& stream : streams) {
    MLT_CHECK(stream.steps < kMaxSteps);
    Shape shape;
    shape.kind = active.request.kind;
    shape.average = active.request.kind == CollectiveKind::kAllReduce && active.request.average;
    shape.root = active.request.kind == CollectiveKind::kGather ? active.request.root : std::uint16_t{0};
    shape.sequence = active.sequence;
    shape.bytes = stream.bytes;
    shape.loss_bound = active.request.loss_bound;
    shape.element = active.request.element;
    if (stream.is_send) stream.shape = encode(shape);
    if (stream.is_send && active.request.loss_bound > 0) stream.tags.resize(kMaxWindow);
  }
  // Receives first, in all collectives: what comes then finds its place.
  for (std::size_t i = 0; i < streams.size() && !active.stopping; ++i) advance(now, active, i);
}

// Posts what the stream's window and the order of things allow.
void Collectives::advance(TimeNs now, Active& active, std::size_t index) {
  Stream& stream = active.collective->streams[index];
  while (!active.stopping && stream.posted < stream.steps && stream.posted < stream.settled + stream.window) {
    const bool is_ready = !stream.is_send || stream.posted == 0 || active.collective->is_ready(stream, stream.posted);
    if (!is_ready) return;
    const core::PostStatus status =
        has_share(active, stream) ? post(now, active, index) : core::PostStatus::kTooManyOperations;
    if (may_retry(status)) {
      active.stalled = any_stalled_ = true;
      return;
    }
    if (status != core::PostStatus::kPosted) return on_post_refused(now, active, stream, status);
    ++stream.posted;
    ++active.outstanding;
    ++(stream.is_send ? sends_ : receives_);
  }
}

bool Collectives::has_share(const Active& active, const Stream& stream) const {
  const std::uint32_t posted = stream.is_send ? sends_ : receives_;
  if (posted < shared_transfers_) return true;
  if (active.group->open.front() != active.slot) return false;
  return posted < 2 * shared_transfers_ || stream.posted == stream.settled;
}

core::PostStatus Collectives::post(TimeNs now, Active& active, std::size_t index) {
  Stream& stream = active.collective->streams[index];
  const OperationId id = operation(active, index, stream.posted);
  return stream.is_send ? post_send(now, active, stream, id) : post_receive(now, active, stream, id);
}

core::PostStatus Collectives::post_send(TimeNs now, Active& active, Stream& stream, OperationId id) {
  core::SendRequest request;
  request.operation = id;
  request.peer = stream.peer;
  request.tag = lane_tag(active.group->id, active.sequence);
  request.order = active.request.order;
  request.uniform_tag = core::SegmentTag::important(active.request.traffic_class);
  request.timeout_ns = std::max<base::DurationNs>(1, active.expires_ns - now);
  if (stream.posted == 0) {
    request.data = stream.shape;
  } else {
    active.collective->fill(stream, stream.posted, request);
    if (active.collective->is_lossy(stream.posted)) tag_segments(active, stream, request);
  }
  return verbs_.post_send(now, request);
}

// What the network may lose first, as of any tensor; of partial sums only the rank that holds them can say.
void Collectives::tag_segments(Active& active, Stream& stream, core::SendRequest& request) {
  const std::uint32_t segment_bytes = verbs_.segment_bytes(stream.peer);
  if (segment_bytes == 0) return;  // the peer is gone: the post is refused
  const core::SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), segment_bytes);
  std::vector<core::SegmentTag>& tags = stream.tags[stream.posted % kMaxWindow];
  tags.resize(grid.count());
  core::tag_by_magnitude(request.data, request.element, grid, active.request.traffic_class,
                         (std::uint64_t{active.sequence} << 32) | stream.posted, sample_, tags);
  request.tags = tags;
}

core::PostStatus Collectives::post_receive(TimeNs now, Active& active, Stream& stream, OperationId id) {
  core::ReceiveRequest request;
  request.operation = id;
  request.peer = stream.peer;
  request.tag = lane_tag(active.group->id, active.sequence);
  request.timeout_ns = std::max<base::DurationNs>(1, active.expires_ns - now);
  if (stream.posted == 0) {
    request.data = stream.shape;
  } else {
    active.collective->fill(stream, stream.posted, request);
  }
  return verbs_.post_recv(now, request);
}

void Collectives::on_post_refused(TimeNs now, Active& active, const Stream& stream, core::PostStatus status) {
  if (status == core::PostStatus::kTooManyTags) {
    return fail(now, active,
                {core::CompletionStatus::kCancelled, rank_,
                 rank_text(rank_) + " has used too many distinct tags: reuse tags and groups"},
                true);
  }
  fail(now, active,
       {core::CompletionStatus::kPeerFailed, stream.peer,
        rank_text(stream.peer) + " is not connected with " + rank_text(rank_)},
       true);
}

void Collectives::on_completion(TimeNs now, const core::Completion& completion) {
  const std::uint64_t local = local_of(completion.operation);
  const auto step = static_cast<std::uint32_t>(local & (kMaxSteps - 1));
  const auto index = static_cast<std::size_t>((local >> kStepBits) & (kMaxStreams - 1));
  Active& active = *slots_[local >> (kStepBits + kStreamBits)];
  MLT_CHECK(active.collective != nullptr && active.outstanding > 0);
  --active.outstanding;
  Stream& stream = active.collective->streams[index];
  --(stream.is_send ? sends_ : receives_);
  active.done.repaired_segments += completion.repaired_segments;
  if (core::is_failure(completion.status)) {
    on_transfer_failed(now, active, completion);
    return settle(now);
  }
  stream.mark_done(step);
  if (stream.is_over()) --active.streams_left;
  if (!stream.is_send) {
    active.done.missing_bytes += completion.missing_bytes;
    if (step == 0) {
      check_shape(now, active, stream);
    } else {
      active.collective->on_received(stream, step, completion);
    }
  }
  advance(now, active, index);
  if (!stream.is_send) advance(now, active, active.collective->unlocks(index));
  settle(now);
}

// PROTOCOL 22.1.6: A member that receives another shape than its own MUST fail the collective as a size mismatch,
// naming
//     both.
void Collectives::check_shape(TimeNs now, Active& active, const Stream& stream) {
  Shape own;
  own.kind = active.request.kind;
  own.average = own.kind == CollectiveKind::kAllReduce && active.request.average;
  own.root = own.kind == CollectiveKind::kGather ? active.request.root : std::uint16_t{0};
  own.sequence = active.sequence;
  own.bytes = stream.bytes;
  own.loss_bound = active.request.loss_bound;
  own.element = active.request.element;
  const auto expected = encode(own);
  if (stream.shape == expected) return;
  fail(now, active,
       {core::CompletionStatus::kSizeMismatch, stream.peer,
        rank_text(stream.peer) + " called " + describe_shape(stream.shape) + "; " + rank_text(rank_) + " called " +
            describe_shape(expected) + ": every member must call the same"},
       true);
}

void Collectives::on_transfer_failed(TimeNs now, Active& active, const core::Completion& completion) {
  if (active.stopping) return;  // as asked for, or of no interest any more
  const std::string peer = rank_text(completion.peer);
  switch (completion.status) {
    case core::CompletionStatus::kPeerFailed:
      return fail(now, active, {completion.status, completion.peer, peer + " died or left"}, true);
    case core::CompletionStatus::kTimedOut:
      return fail(now, active,
                  {completion.status, completion.peer,
                   rank_text(rank_) + " ran out of time while it waited for " + peer + ": did " + peer +
                       " call the same collective?"},
                  true);
    case core::CompletionStatus::kCancelled:
      // PROTOCOL 22.1.8: A member whose transfer the other side gave up MUST cancel its own of that collective, and
      //     waits for failed 1 s at most ...
      active.given_up_by = completion.peer;
      stop(now, active);
      return set_timer(active, std::min(active.expires_ns, base::after(now, kExplanationNs)));
    default:
      return fail(now, active,
                  {completion.status, completion.peer,
                   peer + " called another collective, or one of another size, than " + rank_text(rank_) +
                       ": every member must call the same"},
                  true);
  }
}

void Collectives::fail(TimeNs now, Active& active, const Cause& cause, bool tell) {
  if (active.failed) return;
  active.failed = true;
  active.done.status = cause.status;
  active.done.failed_peer = cause.peer;
  active.done.error = cause.text;
  stop(now, active);
  Group& group = *active.group;
  if (tell) {
    // PROTOCOL 22.1.7: A member at which a collective fails MUST send failed to every other member, with the rank at
    //     fault and the cause, unless a member's failed was what it failed of ...
    encode(Failed{group.id, active.sequence, cause.peer, static_cast<std::uint8_t>(cause.status), cause.text},
           scratch_);
    for (const std::uint16_t rank : group.ranks) {
      if (rank != rank_) verbs_.send_message(rank, scratch_);  // one that is gone has nothing to hear
    }
    group.is_told = true;
  }
  break_group(now, group, active.sequence, cause);
}

// PROTOCOL 22.1.9: With a collective that fails, every later one of its group MUST fail, of the same cause ...
void Collectives::break_group(TimeNs now, Group& group, std::uint32_t from, const Cause& cause) {
  if (group.broken && group.broken_from <= from) return;
  group.broken = true;
  group.broken_from = from;
  group.cause = cause;
  for (const std::uint32_t slot : group.open) {
    Active& other = *slots_[slot];
    if (other.sequence >= from) fail(now, other, cause, false);
  }
}

void Collectives::stop(TimeNs now, Active& active) {
  if (active.stopping) return;
  active.stopping = true;
  active.stalled = false;
  if (!active.collective) return;
  for (std::size_t i = 0; i < active.collective->streams.size(); ++i) {
    const Stream& stream = active.collective->streams[i];
    for (std::uint32_t step = stream.settled; step < stream.posted; ++step) {
      if (stream.is_done(step)) continue;
      verbs_.cancel(now, operation(active, i, step),
                    stream.is_send ? core::CompletionKind::kSend : core::CompletionKind::kReceive);
    }
  }
}

void Collectives::cancel(TimeNs now, OperationId operation) {
  for (const auto& active : slots_) {
    if (!active || active->done.operation != operation) continue;
    fail(now, *active, {core::CompletionStatus::kCancelled, rank_, rank_text(rank_) + " cancelled it"}, true);
  }
  settle(now);
}

void Collectives::on_message(TimeNs now, std::uint16_t from, const Failed& failed) {
  const auto found = groups_.find(failed.group);
  if (found == groups_.end() && groups_.size() >= kMaxGroups) return;
  Group& group = groups_[failed.group];
  group.id = failed.group;
  if (!group.ranks.empty() && std::ranges::find(group.ranks, from) == group.ranks.end()) return;
  const auto status = static_cast<core::CompletionStatus>(failed.status);
  const bool is_known = core::is_failure(status) && status <= core::CompletionStatus::kCancelled;
  Cause cause{is_known ? status : core::CompletionStatus::kCancelled, failed.failed_rank, failed.text};
  if (cause.text.empty()) cause.text = rank_text(from) + " gave it up";
  // Also one that waits to hear why it was given up, and one that has not been called here yet.
  group.is_told = true;
  break_group(now, group, failed.sequence, cause);
  settle(now);
}

// Transfers that are posted end by themselves. What matters beside is what was still to be posted, and who waits to
// hear why a peer gave up.
void Collectives::on_peer_down(TimeNs now, std::uint16_t peer) {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot] || !slots_[slot]->collective) continue;
    Active& active = *slots_[slot];
    const auto& ranks = active.group->ranks;
    const bool is_waiting = active.given_up_by >= 0 && std::ranges::find(ranks, peer) != ranks.end();
    const bool is_needed = std::ranges::any_of(active.collective->streams, [&](const Stream& stream) {
      return stream.peer == peer && stream.posted < stream.steps;
    });
    if (!is_waiting && !is_needed) continue;
    fail(now, active, {core::CompletionStatus::kPeerFailed, peer, rank_text(peer) + " died or left"}, true);
  }
  // Later calls: the members beside the one that is gone see it by themselves, the others might wait for these.
  for (auto& [id, group] : groups_) {
    if (std::ranges::find(group.ranks, peer) == group.ranks.end()) continue;
    break_group(now, group, group.next, {core::CompletionStatus::kPeerFailed, peer, rank_text(peer) + " died or left"});
  }
  settle(now);
}

void Collectives::retry(TimeNs now) {
  if (!any_stalled_) return;
  any_stalled_ = false;
  for (auto& [id, group] : groups_) {
    for (std::size_t k = 0; k < group.open.size() && k < kLanes; ++k) {
      Active& active = *slots_[group.open[k]];
      if (!active.stalled) continue;
      active.stalled = false;
      for (std::size_t i = 0; i < active.collective->streams.size(); ++i) advance(now, active, i);
    }
  }
  settle(now);
}

void Collectives::on_timeout(TimeNs now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Active& active = *slots_[timers_.begin()->second];
    timers_.erase(timers_.begin());
    active.expires_ns = base::kNever;
    if (active.given_up_by >= 0) {
      fail(now, active,
           {core::CompletionStatus::kCancelled, active.given_up_by,
            rank_text(active.given_up_by) + " gave it up and did not say why"},
           true);
      continue;
    }
    // The one that nothing more came from; of several the first.
    int peer = -1;
    if (active.collective) {
      const auto& streams = active.collective->streams;
      const auto open = std::ranges::find_if(streams, [](const Stream& stream) { return !stream.is_over(); });
      if (open != streams.end()) peer = open->peer;
    }
    fail(now, active,
         {core::CompletionStatus::kTimedOut, peer,
          rank_text(rank_) + " ran out of time " +
              (peer < 0 ? "while it waited for the collectives before"
                        : "while it waited for " + rank_text(peer) + ": did it call the same collective?")},
         true);
  }
  settle(now);
}

void Collectives::set_timer(Active& active, TimeNs at) {
  timers_.erase({active.expires_ns, active.slot});
  active.expires_ns = at;
  timers_.emplace(at, active.slot);
}

bool Collectives::is_over(const Active& active) const {
  if (active.outstanding > 0) return false;
  if (active.failed) return true;
  return active.collective != nullptr && active.streams_left == 0 && active.given_up_by < 0;
}

void Collectives::settle(TimeNs now) {
  for (auto& [id, group] : groups_) {
    // Those that wait behind the lanes can only end with their group.
    for (std::size_t i = 0; i < group.open.size() && (i < kLanes || group.broken);) {
      Active& active = *slots_[group.open[i]];
      const bool may_begin = active.sequence < slots_[group.open.front()]->sequence + kLanes;
      if (!active.collective && !active.failed && may_begin) begin(now, active);
      if (!is_over(active)) {
        ++i;
        continue;
      }
      timers_.erase({active.expires_ns, active.slot});
      active.done.elapsed_ns = now - active.started_ns;
      if (!active.failed && active.done.missing_bytes > 0) active.done.status = core::CompletionStatus::kWithinBound;
      if (active.failed) active.done.error = name(active) + ": " + active.done.error;
      finished_.push_back(std::move(active.done));
      free_slots_.push_back(active.slot);
      slots_[active.slot].reset();
      --open_;
      group.open.erase(group.open.begin() + static_cast<std::ptrdiff_t>(i));
      i = 0;  // the next in line may begin, and end at once
    }
  }
}

bool Collectives::poll_done(CollectiveDone& done) {
  if (finished_.empty()) return false;
  done = std::move(finished_.front());
  finished_.pop_front();
  return true;
}

}  // namespace mlt::collective
