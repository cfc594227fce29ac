// Failures of collectives: the rank at fault, the members to notify, and when the memory is returned.
#include <algorithm>
#include <iterator>

#include "collective/collectives.h"

namespace mlt::collective {

namespace {

// Time that a rank waits for the cause after a peer aborted a transfer: longer than a frame takes, shorter than any
// reply timeout.
constexpr base::DurationNs kExplanationNs = base::kSecond;
// The same of a rank whose own time is up: shorter, so that it speaks before those whose transfers it aborted give up.
constexpr base::DurationNs kLateNs = kExplanationNs / 2;
// The same of a rank that is asked by one whose time is up: shorter again.
constexpr base::DurationNs kAskedNs = kLateNs / 2;

// Of two reports of a member the first call that fails counts, and the next call as it was first named, unless the
// group never resumes.
void keep_first(Failed& kept, const Failed& failed) {
  const std::uint32_t next = failed.next == kNeverResumes ? failed.next : kept.next;
  if (failed.sequence < kept.sequence) kept = failed;
  kept.next = next;
}

}  // namespace

// The cause that this rank knows; the other members, to which it is reported, may know none.
std::string Collectives::down_text(int peer) const {
  const std::string error = verbs_.peer_error(static_cast<std::uint16_t>(peer));
  return error.empty() ? rank_text(peer) + " is down: its process failed or left the job" : error;
}

// `late`: whose time is up; this rank waits for `peer`.
std::string Collectives::late_text(std::uint16_t late, int peer) const {
  const std::string error = verbs_.peer_error(static_cast<std::uint16_t>(peer));
  const std::string own = late == rank_ ? "" : ", and " + rank_text(rank_) + " is";
  return rank_text(late) + " timed out" + own + " waiting for " + rank_text(peer) + ": " +
         (error.empty() ? "check that " + rank_text(peer) + " called the same collective, or raise the timeout"
                        : error);
}

void Collectives::on_transfer_failed(TimeNs now, Active& active, const core::Completion& completion) {
  if (active.stopping) return;  // expected, or no longer relevant
  switch (completion.status) {
    case core::CompletionStatus::kPeerFailed:
      return fail(now, active, {completion.status, completion.peer, down_text(completion.peer)}, true);
    case core::CompletionStatus::kTimedOut:
      return on_late(now, active, completion.peer);
    case core::CompletionStatus::kCancelled:
      return on_aborted(now, active, completion.peer);
    default:
      return on_mismatch(now, active, completion);
  }
}

// PROTOCOL 22.1.8: A member whose transfer the other side aborted MUST cancel its own transfers of that collective, and
//     wait for failed for at most 1 s: the cause is the one that failed names.
void Collectives::on_aborted(TimeNs now, Active& active, int peer) {
  if (active.late_from >= 0) return;  // it waits for the cause already
  active.aborted_by = peer;
  stop(now, active);
  // Also where its own time is up before: then that of the others is too, and who knows more is about to speak.
  set_timer(active, base::after(now, kExplanationNs));
}

int Collectives::absent_member(const Active& active, int besides) {
  if (!active.collective) return -1;
  const auto& streams = active.collective->streams;
  const auto one = std::ranges::find_if(
      streams, [&](const Stream& s) { return !s.is_send && s.settled == 0 && int{s.peer} != besides; });
  return one == streams.end() ? -1 : one->peer;
}

int Collectives::awaited_member(const Active& active) {
  const auto& streams = active.collective->streams;
  const auto open = std::ranges::find_if(streams, [](const Stream& stream) { return !stream.is_over(); });
  return open == streams.end() ? -1 : open->peer;
}

bool Collectives::has_all_shapes(const Active& active) {
  std::set<std::uint16_t> arrived;
  for (const Stream& stream : active.collective->streams) {
    if (!stream.is_send && stream.settled > 0) arrived.insert(stream.peer);
  }
  return arrived.size() + 1 == active.group->ranks.size();
}

// PROTOCOL 22.1.17: A member whose time for a collective is up MUST fail it, naming a member whose shape it lacks, else
//     the one that it awaits.
// PROTOCOL 22.1.18: It MUST first send called to every other member, post nothing more, and wait for failed for at most
//     0.5 s, unless it has received the shape of every member, or knows the cause, or lacks a shape of one of the first
//     4 collectives of its group: whom it awaits may wait for another.
void Collectives::on_late(TimeNs now, Active& active, int peer) {
  if (active.late_from >= 0) return;
  const int absent = absent_member(active);
  const int awaited = absent >= 0 ? absent : peer;
  const bool is_cause_known = !verbs_.peer_error(static_cast<std::uint16_t>(awaited)).empty();
  if ((absent >= 0 && never_waits(active)) || has_all_shapes(active) || is_cause_known) {
    return fail_late(now, active, rank_, awaited);
  }
  await_cause(now, active, rank_, awaited, kLateNs);
  const auto& streams = active.collective->streams;
  for (const std::uint16_t rank : active.group->ranks) {
    if (rank == rank_) continue;
    const auto shared = std::ranges::find(streams, rank, &Stream::peer);
    send_called(active, shared == streams.end() ? streams.front() : *shared, rank);
  }
}

// PROTOCOL 22.1.19: A member that receives called with its own shape and lacks the shape of a third MUST fail the
//     collective too, naming that one: at once if the collective is one of the first 4 of its group, else if no failed
//     arrives within 0.25 s. One whose own call waits for earlier ones (22.1.4) MUST fail it at once if it lacks the
//     shape of a third in the first of these, naming that one.
void Collectives::on_asked(TimeNs now, Active& active, std::uint16_t from) {
  const Active& first = *slots_[active.group->open.front()];
  const int absent = absent_member(active.collective ? active : first, from);
  if (active.failed || active.late_from >= 0 || active.differs_from >= 0 || absent < 0) return;
  if (!active.collective || never_waits(active)) return fail_late(now, active, from, absent);
  await_cause(now, active, from, absent, kAskedNs);
}

void Collectives::await_cause(TimeNs now, Active& active, std::uint16_t late, int peer, base::DurationNs duration) {
  active.late_from = peer;
  active.late = late;
  set_timer(active, base::after(now, duration));
}

void Collectives::fail_late(TimeNs now, Active& active, std::uint16_t late, int peer) {
  fail(now, active, {core::CompletionStatus::kTimedOut, peer, late_text(late, peer)}, true);
}

// It has no lane yet. What the first of its group awaits is the cause, which that member may be about to receive.
void Collectives::on_late_in_line(TimeNs now, Active& active) {
  const Active& first = *slots_[active.group->open.front()];
  const bool is_about_to_hear = first.late_from >= 0 || first.aborted_by >= 0 || first.differs_from >= 0;
  if (is_about_to_hear && first.expires_ns != base::kNever) return set_timer(active, base::after(first.expires_ns, 1));
  const int absent = absent_member(first);
  const int awaited = absent < 0 && first.collective ? awaited_member(first) : absent;
  const std::string text = rank_text(rank_) + " timed out waiting for the earlier collectives of its group" +
                           (awaited < 0 ? "" : ", which are waiting for " + rank_text(awaited));
  fail(now, active, {core::CompletionStatus::kTimedOut, awaited, text}, true);
}

void Collectives::send_called(const Active& active, const Stream& stream, std::uint16_t peer) {
  encode(Called{active.group->id, active.sequence, encode(shape_of(active, stream))}, scratch_);
  verbs_.send_message(peer, scratch_);
}

// The shapes show the difference: one may still be in flight, one may be part of the transfer that did not fit.
// PROTOCOL 22.1.13: A member whose transfer ends as a size or type mismatch MUST send called, with its own shape, to
//     the other side, and wait for the other's shape, by transfer or by called, or for failed, for at most 1 s.
void Collectives::on_mismatch(TimeNs now, Active& active, const core::Completion& completion) {
  if (active.differs_from >= 0) return;
  active.differs_from = completion.peer;
  const auto index = static_cast<std::size_t>((local_of(completion.operation) >> kStepBits) & (kMaxStreams - 1));
  send_called(active, active.collective->streams[index], completion.peer);
  set_timer(active, std::min(active.expires_ns, base::after(now, kExplanationNs)));
}

void Collectives::mark_failed(TimeNs now, Active& active, const Cause& cause) {
  if (active.failed) return;
  active.failed = true;
  active.done.status = cause.status;
  active.done.failed_peer = cause.peer;
  active.done.error = cause.text;
  stop(now, active);
}

void Collectives::fail(TimeNs now, Active& active, const Cause& cause, bool tell) {
  if (active.failed) return;
  mark_failed(now, active, cause);
  Group& group = *active.group;
  if (active.epoch > group.epoch) {
    // The others learn of it once the group has resumed: only then is it certain that the call is not one of those that
    // fail anyway.
    group.held_failures.emplace(active.sequence, cause);
    return;
  }
  if (active.epoch == group.epoch) {
    break_group(now, group, active.sequence, group.broken ? group.own_next : group.next, cause);
  } else {
    fail_open(now, group, active.epoch, active.sequence, cause);
  }
  if (tell) report(now, group, active.epoch, active.sequence, cause);
}

// Also where the group waits to resume, or the call is one of those that fail anyway.
void Collectives::end_group(TimeNs now, Active& active) {
  Group& group = *active.group;
  const Cause cause{core::CompletionStatus::kCancelled, rank_, active.request.fault, false, true};
  mark_failed(now, active, cause);
  break_group(now, group, active.sequence, group.next, cause);
  report(now, group, group.epoch, active.sequence, cause);
}

// PROTOCOL 22.1.7: A member at which a collective fails MUST send failed to every other member, with the rank at fault
//     and the cause, the group's epoch, which is the number of failures that it has resumed after, and the sequence of
//     the call that the member makes next, which is the same in every failed of an epoch.
void Collectives::report(TimeNs now, Group& group, std::uint32_t epoch, std::uint32_t sequence, const Cause& cause) {
  encode_failed(group, epoch, sequence, cause);
  int down = -1;
  for (const std::uint16_t rank : group.ranks) {
    if (rank == rank_ || verbs_.send_message(rank, scratch_)) continue;
    // PROTOCOL 22.1.20: Where a job connects on first use (3.10), a member MUST send failed of the group's epoch also
    //     to a member that connects later. It MUST connect with all members if the group may resume.
    if (!connects_on_use_) {
      down = rank;
    } else if (!group.is_final) {
      verbs_.use(now, rank);
    }
  }
  if (epoch == group.epoch) group.is_told = true;
  // A member that is down will not report, so that the group cannot resume. on_peer_down() has ended the groups of
  // which there was a call already.
  if (down < 0 || group.is_final || !group.broken) return;
  break_group(now, group, group.next, group.next, {core::CompletionStatus::kPeerFailed, down, down_text(down)});
  report(now, group, group.epoch, group.broken_from, group.cause);
}

void Collectives::encode_failed(const Group& group, std::uint32_t epoch, std::uint32_t sequence, const Cause& cause) {
  const std::uint8_t status = cause.is_damage ? kDamage : static_cast<std::uint8_t>(cause.status);
  encode(Failed{group.id, sequence, cause.peer, status, cause.text, epoch,
                group.is_final ? kNeverResumes : group.own_next},
         scratch_);
}

void Collectives::on_peer_up(std::uint16_t peer) {
  for (const auto& [id, group] : groups_) {
    if (!group.is_told || std::ranges::find(group.ranks, peer) == group.ranks.end()) continue;
    encode_failed(group, group.epoch, group.broken_from, group.cause);
    verbs_.send_message(peer, scratch_);
  }
}

// PROTOCOL 22.1.9: With a collective that fails, every later one of its group MUST fail that any member called before
//     it noticed, of the same cause: transfers can no longer be matched to calls.
void Collectives::break_group(TimeNs now, Group& group, std::uint32_t from, std::uint32_t next, const Cause& cause,
                              bool fails_next) {
  // PROTOCOL 22.1.15: ... A group MUST NOT resume after the failure of a peer, or where a member's failed says so.
  const bool is_final =
      cause.status == core::CompletionStatus::kPeerFailed || cause.ends_group || next == kNeverResumes;
  // Members that learn of the failure from this one only do not know of these calls.
  if (connects_on_use_ && is_final && group.broken && from < group.broken_from) group.is_told = false;
  if (!group.broken || from < group.broken_from || (is_final && !group.is_final)) {
    group.cause = cause;
    group.broken_from = group.broken ? std::min(group.broken_from, from) : from;
  }
  if (!group.broken) group.own_next = group.resumes_at = group.next + (fails_next ? 1U : 0U);
  group.broken = true;
  if (is_final && !group.is_final) {
    group.is_final = true;
    group.is_told = false;  // the members may expect it to resume
  }
  group.resumes_at = std::max({group.resumes_at, next, from == kNeverResumes ? from : from + 1});
  fail_open(now, group, group.epoch, group.broken_from, group.cause);
}

void Collectives::fail_open(TimeNs now, Group& group, std::uint32_t epoch, std::uint32_t from, const Cause& cause) {
  for (const std::uint32_t slot : group.open) {
    Active& active = *slots_[slot];
    const bool is_held = active.epoch > group.epoch;
    const bool is_hit = is_held ? group.is_final || active.sequence < group.resumes_at
                                : active.epoch <= epoch && active.sequence >= from;
    if (is_hit) mark_failed(now, active, cause);
  }
}

// PROTOCOL 22.1.15: A member that has received failed of the group's epoch from every other member, and made all calls
//     before the first that failed, MUST raise the epoch by one, and begin with the call whose sequence is the highest
//     that any of them named as its next; every failed names a call below it. Calls before that fail; calls from there
//     on wait until then. A group MUST NOT resume after the failure of a peer, or where a member's failed says so.
void Collectives::resume(TimeNs now, Group& group) {
  if (!group.broken || group.is_final || !group.is_told || group.reported.size() + 1 < group.ranks.size()) return;
  // Calls before the one that failed belong to this epoch, also those that this member has not made yet.
  if (group.next < group.broken_from) return;
  ++group.epoch;
  group.broken = group.is_told = false;
  group.reported.clear();
  group.failed_below = group.resumes_at;
  group.last_cause = std::move(group.cause);
  const auto early = std::exchange(group.early, {});
  // PROTOCOL 22.1.15: ... Of the calls from there on that failed while they waited, a member that has resumed MUST send
  //     failed of the first.
  const auto held = std::exchange(group.held_failures, {});
  if (const auto first = held.lower_bound(group.failed_below); first != held.end()) {
    break_group(now, group, first->first, group.next, first->second);
    report(now, group, group.epoch, first->first, first->second);
  }
  for (const auto& [from, failed] : early) apply(now, group, from, failed);
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

void Collectives::cancel(TimeNs now, OperationId operation, const std::string& reason) {
  const std::string text = rank_text(rank_) + " cancelled the collective" + (reason.empty() ? "" : ": " + reason);
  for (const auto& active : slots_) {
    if (!active || active->done.operation != operation) continue;
    fail(now, *active, {core::CompletionStatus::kCancelled, rank_, text}, true);
  }
  settle(now);
}

void Collectives::on_message(TimeNs now, std::uint16_t from, const Failed& failed) {
  const auto found = groups_.find(failed.group);
  if (found == groups_.end()) return remember(from, failed);
  apply(now, found->second, from, failed);
  settle(now, found->second);
}

// PROTOCOL 22.1.13: A member MUST ignore a called of a collective that is not in progress, or from no member.
void Collectives::on_message(TimeNs now, std::uint16_t from, const Called& called) {
  const auto found = groups_.find(called.group);
  if (found == groups_.end() || std::ranges::find(found->second.ranks, from) == found->second.ranks.end()) return;
  for (const std::uint32_t slot : found->second.open) {
    Active& active = *slots_[slot];
    if (active.sequence != called.sequence || active.failed) continue;
    if (active.collective) {
      const auto& streams = active.collective->streams;
      const auto stream = std::ranges::find(streams, from, &Stream::peer);
      if (stream != streams.end()) check_shape(now, active, *stream, called.shape);
    }
    on_asked(now, active, from);
    break;
  }
  settle(now, found->second);
}

// PROTOCOL 22.1.11: A rank keeps what it receives of a group that was not called here yet until it is called, for 64
//     groups of each sender, of which the oldest goes first.
void Collectives::remember(std::uint16_t from, const Failed& failed) {
  std::deque<ReportedFailure>& told = reported_failures_[from];
  const auto before = std::ranges::find(told, failed.group, &ReportedFailure::group);
  if (before != told.end()) {
    return keep_first(before->failed, failed);
  }
  if (told.size() >= kMaxHeard) told.pop_front();
  told.push_back({failed.group, failed});
}

// PROTOCOL 22.9.4: A member that receives failed with the status damage of a collective that it has completed, and has
//     made no later call, MUST name as its next the one after it (22.1.15): so its next call fails, of the same cause.
bool Collectives::has_missed(const Group& group, std::uint32_t failed) const {
  if (group.broken || failed >= group.next) return false;
  return std::ranges::none_of(group.open, [&](std::uint32_t slot) { return slots_[slot]->sequence >= failed; });
}

// PROTOCOL 22.1.11: A member MUST ignore a failed that does not come from a member; a failed rank that is no member's
//     counts as the sender.
void Collectives::apply(TimeNs now, Group& group, std::uint16_t from, const Failed& failed) {
  const auto is_member = [&](int rank) { return std::ranges::find(group.ranks, rank) != group.ranks.end(); };
  if (!is_member(from) || from == rank_) return;
  const auto status = static_cast<core::CompletionStatus>(failed.status);
  const bool is_known = core::is_failure(status) && status <= core::CompletionStatus::kCancelled;
  Cause cause{is_known ? status : core::CompletionStatus::kCancelled, failed.failed_rank, failed.text,
              failed.status == kDamage};
  if (cause.text.empty()) cause.text = rank_text(from) + " aborted the collective without a cause";
  if (cause.peer != -1 && !is_member(cause.peer)) cause.peer = from;
  // PROTOCOL 22.1.16: A failed of an earlier epoch MUST fail only calls of that epoch, unless the group never resumes.
  // A
  //     member that has not resumed yet keeps one of the next epoch until it has, and MUST ignore those of later ones.
  if (failed.epoch < group.epoch && failed.next != kNeverResumes) {
    return fail_open(now, group, failed.epoch, failed.sequence, cause);
  }
  if (failed.epoch > group.epoch) {
    if (failed.epoch != group.epoch + 1 || !group.broken) return;
    return keep_first(group.early.emplace(from, failed).first->second, failed);
  }
  const bool is_first = group.reported.insert(from).second;
  break_group(now, group, failed.sequence, is_first || failed.next == kNeverResumes ? failed.next : 0, cause,
              cause.is_damage && has_missed(group, failed.sequence));
  // Also those that wait for the cause of an abort, and those not called here yet.
  // PROTOCOL 22.1.20: ... A member that learns from another that its group never resumes MUST send failed as well:
  //     members may have no connection with the one that did.
  if (group.is_final && !connects_on_use_) group.is_told = true;
  if (!group.is_told) report(now, group, group.epoch, group.broken_from, group.cause);
}

// Posted transfers end by themselves. This handles transfers not posted yet, and collectives that wait for the cause of
// an abort.
void Collectives::on_peer_down(TimeNs now, std::uint16_t peer) {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot] || !slots_[slot]->collective) continue;
    Active& active = *slots_[slot];
    const auto& ranks = active.group->ranks;
    const bool is_waiting = (active.aborted_by >= 0 || active.differs_from >= 0 || active.late_from >= 0) &&
                            std::ranges::find(ranks, peer) != ranks.end();
    const bool is_needed = std::ranges::any_of(active.collective->streams, [&](const Stream& stream) {
      return stream.peer == peer && stream.posted < stream.all_steps();
    });
    if (!is_waiting && !is_needed) continue;
    fail(now, active, {core::CompletionStatus::kPeerFailed, peer, down_text(peer)}, true);
  }
  // Later calls: members that share a transfer with the peer detect its loss themselves; others might wait for these.
  for (auto& [id, group] : groups_) {
    if (std::ranges::find(group.ranks, peer) == group.ranks.end()) continue;
    break_group(now, group, group.next, group.next, {core::CompletionStatus::kPeerFailed, peer, down_text(peer)});
    // The others may have no connection with the peer, and wait for this rank in their next call.
    if (connects_on_use_ && !group.is_told) report(now, group, group.epoch, group.broken_from, group.cause);
  }
  settle(now);
}

std::vector<std::uint16_t> Collectives::awaited(OperationId operation) const {
  const auto found = std::ranges::find_if(
      slots_, [&](const auto& slot) { return slot && slot->request.operation == operation && !slot->failed; });
  if (found == slots_.end()) return {};
  const Group& group = *(*found)->group;
  std::vector<std::uint16_t> ranks;
  if ((*found)->epoch > group.epoch) {
    std::ranges::copy_if(group.ranks, std::back_inserter(ranks),
                         [&](std::uint16_t rank) { return rank != rank_ && !group.reported.contains(rank); });
    return ranks;
  }
  // One that waits for a lane waits for what the first of its group waits for.
  const Active& active = (*found)->collective ? **found : *slots_[group.open.front()];
  if (!active.collective) return {};
  for (const bool is_send : {false, true}) {
    for (const Stream& stream : active.collective->streams) {
      if (stream.is_send == is_send && !stream.is_over()) ranks.push_back(stream.peer);
    }
    if (!ranks.empty()) break;
  }
  std::ranges::sort(ranks);
  return ranks;
}

void Collectives::on_timeout(TimeNs now) {
  while (const auto slot = timers_.poll(now)) {
    Active& active = *slots_[*slot];
    active.expires_ns = base::kNever;
    if (active.failed) continue;  // its transfers are ending
    if (active.late_from >= 0) {
      fail_late(now, active, active.late, active.late_from);
      continue;
    }
    if (active.aborted_by >= 0) {
      fail(now, active,
           {core::CompletionStatus::kCancelled, active.aborted_by,
            rank_text(active.aborted_by) + " aborted the collective without a cause: look at its output"},
           true);
      continue;
    }
    if (active.differs_from >= 0) {
      const std::string peer = rank_text(active.differs_from);
      fail(now, active,
           {core::CompletionStatus::kSizeMismatch, active.differs_from,
            peer + " called another collective, or one of another size, than " + rank_text(rank_) +
                ": every member must call the same"},
           true);
      continue;
    }
    const Group& group = *active.group;
    if (active.epoch > group.epoch) {
      const auto silent = std::ranges::find_if(
          group.ranks, [&](std::uint16_t rank) { return rank != rank_ && !group.reported.contains(rank); });
      const int peer = silent == group.ranks.end() ? -1 : *silent;
      fail(now, active,
           {core::CompletionStatus::kTimedOut, peer,
            rank_text(rank_) + " timed out waiting for " + rank_text(peer) +
                ", which has not reported since a collective of the group failed: check that it calls the group"},
           true);
      continue;
    }
    if (!active.collective) {
      on_late_in_line(now, active);
      continue;
    }
    on_late(now, active, awaited_member(active));
  }
  settle(now);
}

}  // namespace mlt::collective
