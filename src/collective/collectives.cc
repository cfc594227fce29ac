#include "collective/collectives.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"
#include "core/importance.h"

namespace mlt::collective {

std::uint64_t Collectives::group_id(const std::vector<std::uint16_t>& ranks, std::uint32_t stream) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  const auto add = [&hash](std::uint32_t two_bytes) {
    for (const std::uint32_t byte : {two_bytes & 0xFF, two_bytes >> 8 & 0xFF}) hash = (hash ^ byte) * 0x100000001B3ULL;
  };
  for (const std::uint16_t rank : ranks) add(rank);
  if (stream != 0) {
    add(0xFFFF);
    add(stream);
    add(stream >> 16);
  }
  return hash & kMaxKey;
}

// Local id: slot, stream, step.
OperationId Collectives::operation(const Active& active, std::size_t stream, std::uint32_t step) const {
  return machine_operation(MachineId::kCollective, (std::uint64_t{active.slot} << (kStepBits + kStreamBits)) |
                                                       (static_cast<std::uint64_t>(stream) << kStepBits) | step);
}

std::string Collectives::name(const Active& active) const {
  return std::string(collective_name(active.request.kind)) + " number " + std::to_string(active.sequence + 1) + " of ";
}

Collectives::Group* Collectives::group_of(TimeNs now, const CollectiveRequest& request) {
  const std::uint64_t id = group_id(request.ranks, request.stream);
  if (const auto found = groups_.find(id); found != groups_.end()) return &found->second;
  if (groups_.size() >= kMaxGroups) return nullptr;
  Group& group = groups_[id];
  group.id = id;
  group.ranks = request.ranks;
  group.stream = request.stream;
  group.own = static_cast<std::uint32_t>(std::ranges::find(request.ranks, rank_) - request.ranks.begin());
  group.rates = RateExchange(static_cast<std::uint32_t>(group.ranks.size()), group.own);
  for (const std::uint16_t rank : group.ranks) {
    const auto told = reported_failures_.find(rank);
    if (told == reported_failures_.end()) continue;
    const auto one = std::ranges::find(told->second, id, &ReportedFailure::group);
    if (one == told->second.end()) continue;
    const Failed failed = std::move(one->failed);
    told->second.erase(one);
    apply(now, group, rank, failed);
  }
  return &group;
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
  Group* const found = group_of(now, request);
  if (found == nullptr) {
    const std::string text = rank_text(rank_) + " has used " + std::to_string(kMaxGroups) +
                             " groups, the maximum, and this is another one: reuse groups";
    // PROTOCOL 22.1.12: ... It MUST send failed of the new group's first collective to its members, which never
    //     resumes.
    encode(Failed{group_id(request.ranks, request.stream), 0, rank_,
                  static_cast<std::uint8_t>(core::CompletionStatus::kCancelled), text, 0, kNeverResumes},
           scratch_);
    for (const std::uint16_t rank : request.ranks) {
      if (rank != rank_) verbs_.send_message(rank, scratch_);
    }
    return refuse(request, text);
  }
  Group& group = *found;
  if (group.ranks != request.ranks || group.stream != request.stream) {
    return refuse(request, "another group of this context has the same group id; give this one another stream");
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
  active.done.total_bytes = std::max(request.input_bytes(), request.output_bytes());
  const base::DurationNs timeout_ns = request.timeout_ns > 0 ? request.timeout_ns : default_timeout_ns_;
  active.request = std::move(request);
  set_timer(active, base::after(now, timeout_ns));
  // PROTOCOL 22.1.1: The members of a group MUST call the same collectives in the same order; each call takes the
  //     group's next sequence number, from 0, and names the collective.
  active.sequence = group.next++;
  active.epoch = group.epoch;
  group.open.push_back(active.slot);
  busy_.emplace(group.id, &group);
  if (active.sequence < group.failed_below) {
    mark_failed(now, active, group.last_cause);
  } else if (group.broken && active.sequence >= group.broken_from) {
    const bool is_held = !group.is_final && active.sequence >= group.resumes_at;
    if (is_held) ++active.epoch;
    if (!is_held) fail(now, active, group.cause, !group.is_told);
  }
  if (active.request.ends_group) {
    end_group(now, active);
  } else if (!active.request.fault.empty()) {
    fail(now, active, {core::CompletionStatus::kCancelled, rank_, active.request.fault}, true);
  }
  settle(now, group);
}

Shape Collectives::shape_of(const Active& active, const Stream& stream) const {
  const CollectiveRequest& request = active.request;
  Shape shape;
  shape.kind = request.kind;
  if (has_reduction(request.kind)) shape.reduction = request.reduction;
  if (has_root(request.kind)) shape.root = request.root;
  shape.sequence = active.sequence;
  shape.bytes = stream.bytes;
  shape.loss_bound = request.loss_bound;
  shape.lossy_results = request.lossy_results;
  shape.element = request.element;
  shape.algorithm = algorithm_of(request);
  if (shape.algorithm == CollectiveAlgorithm::kTwoLevel) shape.ranks_per_host = request.ranks_per_host;
  shape.rate = active.rate;
  shape.cut = active.cut;
  shape.checksums = has_checksums_;
  return shape;
}

// PROTOCOL 22.1.4: A member MUST NOT have more than 4 collectives of a group in progress; the next begins when the
//     first of them has ended.
void Collectives::begin(TimeNs now, Active& active) {
  Group& group = *active.group;
  const std::uint16_t next_rank = group.ranks[(group.own + 1) % group.ranks.size()];
  active.rate = group.rates.begin(active.epoch, active.sequence, [&] {
    return shares_by_rate_ ? rate_code(verbs_.port_rate(now, next_rank)) : kNoShares;
  });
  const std::vector<std::uint16_t>& shares = group.rates.shares();
  if (algorithm_of(active.request) == CollectiveAlgorithm::kRing) active.cut = cut_id(shares);
  if (active.cut != 0) ++rings_cut_by_rate_;
  active.collective = make_collective(active.request, {group.ranks, group.own}, shares);
  active.collective->begin();
  std::vector<Stream>& streams = active.collective->streams;
  MLT_CHECK(streams.size() < kMaxStreams);
  active.streams_left = streams.size();
  for (Stream& stream : streams) {
    MLT_CHECK(stream.steps + 1 < kMaxSteps);
    stream.segment_bytes = verbs_.segment_bytes(stream.peer);
    // PROTOCOL 22.9.1: Where the shape says so, a member MUST send, behind its last transfer to another, one more of
    //     uint8: the checksum of each of them from the shape on, 64 bits in little-endian order. If the shape is the
    //     only one, and nothing follows it in its transfer, there MUST NOT be any.
    const bool has_data = stream.steps > 1 || active.collective->opening(stream).size() > kShapeBytes;
    if (has_checksums_ && has_data) {
      stream.checksums = std::make_unique<StreamChecksums>(stream.steps, kMaxWindow, stream.segment_bytes);
    }
    if (stream.is_send) std::ranges::copy(encode(shape_of(active, stream)), active.collective->opening(stream).begin());
    if (stream.is_send && active.request.loss_bound > 0) stream.priorities.resize(kMaxWindow);
  }
  // Receives first, in all collectives: early data then needs no buffering.
  advance_all(now, active);
}

void Collectives::advance_all(TimeNs now, Active& active) {
  for (std::size_t i = 0; i < active.collective->streams.size() && active.may_post(); ++i) advance(now, active, i);
}

// Whether the next transfer of a stream need not wait for others.
bool Collectives::may_post(const Collective& collective, const Stream& stream) {
  if (stream.posted == 0) return true;
  if (stream.posted == stream.steps) return !stream.is_send || stream.checksums->is_complete();
  return stream.is_send ? collective.is_ready(stream, stream.posted) : collective.may_receive(stream, stream.posted);
}

// Posts the transfers that the stream's window and the dependencies allow.
void Collectives::advance(TimeNs now, Active& active, std::size_t index) {
  Stream& stream = active.collective->streams[index];
  while (active.may_post() && stream.posted < stream.all_steps() && stream.posted < stream.settled + stream.window) {
    if (!may_post(*active.collective, stream)) return;
    const core::PostStatus status =
        has_share(active, stream) ? post(now, active, index) : core::PostStatus::kTooManyOperations;
    if (core::may_retry(status)) {
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
  request.tag = lane_tag(active.group->id, active.epoch, active.sequence);
  request.order = active.request.order;
  request.uniform_priority = core::SegmentPriority::important(active.request.traffic_class);
  request.timeout_ns = std::max<base::DurationNs>(1, active.expires_ns - now);
  const bool is_checksums = stream.posted == stream.steps;
  if (stream.posted == 0) {
    request.data = active.collective->opening(stream);
    request.may_have_parity = true;
  } else if (is_checksums) {
    request.data = stream.checksums->carried();
  } else {
    request.may_have_parity = !active.collective->is_lossy(stream.posted);
    active.collective->fill(stream, stream.posted, request);
    if (active.collective->is_lossy(stream.posted)) tag_segments(active, stream, request);
  }
  const core::PostStatus status = verbs_.post_send(now, request);
  // Nothing leaves before this call returns.
  if (status == core::PostStatus::kPosted && stream.checksums && !is_checksums) {
    if (request.feed != nullptr) {
      stream.checksums->on_posted(stream.posted, active.collective->fed_checksum(stream.posted));
    } else {
      stream.checksums->on_posted(stream.posted, request.data);
    }
  }
  return status;
}

// Priorities by magnitude, as for any tensor. Only the rank that holds a partial sum can compute its priorities.
void Collectives::tag_segments(Active& active, Stream& stream, core::SendRequest& request) {
  const std::uint32_t segment_bytes = verbs_.segment_bytes(stream.peer);
  if (segment_bytes == 0) return;  // the peer is down: the post is rejected
  const core::SegmentGrid grid(static_cast<std::uint32_t>(request.data.size()), segment_bytes);
  std::vector<core::SegmentPriority>& priorities = stream.priorities[stream.posted % kMaxWindow];
  priorities.resize(grid.count());
  core::MagnitudeClassifier(request.data, request.element, grid, active.request.traffic_class,
                            (std::uint64_t{active.sequence} << 32) | stream.posted, priorities)
      .set(0, grid.count());
  request.priorities = priorities;
}

core::PostStatus Collectives::post_receive(TimeNs now, Active& active, Stream& stream, OperationId id) {
  core::ReceiveRequest request;
  request.operation = id;
  request.peer = stream.peer;
  request.tag = lane_tag(active.group->id, active.epoch, active.sequence);
  request.timeout_ns = std::max<base::DurationNs>(1, active.expires_ns - now);
  const bool is_checksums = stream.posted == stream.steps;
  if (stream.posted == 0) {
    request.data = active.collective->opening(stream);
  } else if (is_checksums) {
    request.data = stream.checksums->carried();
  } else {
    active.collective->fill(stream, stream.posted, request);
  }
  if (stream.checksums && !is_checksums) stream.checksums->watch(stream.posted, request);
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
    Group& group = *active.group;
    on_transfer_failed(now, active, completion);
    return settle(now, group);
  }
  stream.mark_done(step);
  if (stream.is_over()) --active.streams_left;
  const std::size_t unlocked = active.collective->unlocks(index);
  if (!stream.is_send) {
    active.done.missing_bytes += completion.missing_bytes;
    if (stream.checksums && step < stream.steps) stream.checksums->on_received(step, completion);
    if (step == 0) {
      const auto shape = active.collective->opening(stream).first<kShapeBytes>();
      check_shape(now, active, stream, shape);
      take_announced_rate(active, stream, shape);
    } else if (step < stream.steps) {
      active.collective->on_received(stream, step, completion);
    }
    if (Stream& next = active.collective->streams[unlocked]; next.is_send && next.checksums) {
      next.checksums->settle([&](std::uint32_t sent) { return active.collective->fed_checksum(sent); });
    }
    if (stream.checksums && stream.is_over()) compare_checksums(now, active, stream);
  }
  // Receives are the first streams: a send may pass on what one receives that is posted now.
  const auto [first, second] = std::minmax({index, unlocked});
  advance(now, active, first);
  if (second != first) advance(now, active, second);
  if (active.collective->unlocks_all(index)) advance_all(now, active);
  settle(now, *active.group);
}

// PROTOCOL 22.1.6: A member that receives another shape than its own, the rates aside, MUST fail the collective as a
//     size mismatch, naming both.
void Collectives::check_shape(TimeNs now, Active& active, const Stream& stream,
                              std::span<const std::byte, kShapeBytes> found) {
  const auto expected = encode(shape_of(active, stream));
  if (is_same_call(found, expected)) return;
  fail(now, active,
       {core::CompletionStatus::kSizeMismatch, stream.peer,
        rank_text(stream.peer) + " called " + describe_shape(found) + "; " + rank_text(rank_) + " called " +
            describe_shape(expected) + ": every member must call the same"},
       true);
}

// PROTOCOL 22.9.3: A member MUST compare the checksum of each transfer of which nothing is missing with that of what it
//     received, and fail the collective as cancelled, naming the sender, if they differ.
void Collectives::compare_checksums(TimeNs now, Active& active, const Stream& stream) {
  const std::uint32_t whole = stream.checksums->received_whole();
  checksum_counts_.compared += whole;
  checksum_counts_.incomplete += stream.steps - whole;
  const auto found = stream.checksums->difference();
  if (!found) return;
  ++checksum_counts_.different;
  fail(now, active,
       {core::CompletionStatus::kCancelled, stream.peer,
        damage_text(stream.peer, rank_,
                    "transfer " + std::to_string(found->step + 1) + " of " + std::to_string(stream.steps) + ", ",
                    found->sent, found->received, "results of this call"),
        true},
       true);
}

// Of a call that has not failed: those that follow are in order.
void Collectives::take_announced_rate(const Active& active, const Stream& stream,
                                      std::span<const std::byte, kShapeBytes> found) {
  Group& group = *active.group;
  const std::size_t members = group.ranks.size();
  if (active.failed || stream.peer != group.ranks[(group.own + members - 1) % members]) return;
  group.rates.on_announced(active.epoch, active.sequence, announced_rate(found));
}

void Collectives::retry(TimeNs now) {
  if (!any_stalled_) return;
  any_stalled_ = false;
  for (const auto& [id, group] : busy_) {
    for (std::size_t k = 0; k < group->open.size() && k < kLanes; ++k) {
      Active& active = *slots_[group->open[k]];
      if (!active.stalled) continue;
      active.stalled = false;
      advance_all(now, active);
    }
  }
  settle(now);
}

void Collectives::set_timer(Active& active, TimeNs at) {
  active.expires_ns = at;
  timers_.set(active.slot, at);
}

bool Collectives::is_over(const Active& active) const {
  if (active.outstanding > 0) return false;
  if (active.failed) return true;
  return active.collective != nullptr && active.streams_left == 0 && active.aborted_by < 0;
}

void Collectives::settle(TimeNs now) {
  for (auto next = busy_.begin(); next != busy_.end();) {
    Group& group = *next->second;
    ++next;  // removes a group that has become idle
    settle(now, group);
  }
}

void Collectives::settle(TimeNs now, Group& group) {
  resume(now, group);
  // Collectives beyond the lanes can end only if their group fails.
  for (std::size_t i = 0; i < group.open.size() && (i < kLanes || group.broken);) {
    Active& active = *slots_[group.open[i]];
    const bool may_begin = active.sequence < slots_[group.open.front()]->sequence + kLanes;
    if (!active.collective && !active.failed && may_begin && active.epoch <= group.epoch) begin(now, active);
    if (!is_over(active)) {
      ++i;
      continue;
    }
    if (!active.failed) active.collective->finish();
    timers_.clear(active.slot);
    active.done.elapsed_ns = now - active.started_ns;
    if (!active.failed && active.done.missing_bytes > 0) active.done.status = core::CompletionStatus::kWithinBound;
    // A cause that names the call does it alone.
    if (active.failed && active.done.error.find(name(active)) == std::string::npos) {
      active.done.error = name(active) + "its group: " + active.done.error;
    }
    finished_.push_back(std::move(active.done));
    free_slots_.push_back(active.slot);
    slots_[active.slot].reset();
    --open_;
    group.open.erase(group.open.begin() + static_cast<std::ptrdiff_t>(i));
    i = 0;  // the next in line may start, and may end at once
  }
  if (group.open.empty()) busy_.erase(group.id);
}

bool Collectives::poll_done(CollectiveDone& done) {
  if (finished_.empty()) return false;
  done = std::move(finished_.front());
  finished_.pop_front();
  return true;
}

}  // namespace mlt::collective
