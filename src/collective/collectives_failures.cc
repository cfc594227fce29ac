// Failures of collectives: the rank at fault, the members to notify, and when the memory is returned.
#include <algorithm>

#include "collective/collectives.h"

namespace mlt::collective {

namespace {

// Time that a rank waits for the cause after a peer aborted a transfer: longer than a frame takes, shorter than any
// reply timeout.
constexpr base::DurationNs kExplanationNs = base::kSecond;

// The engine appends the cause, which the control channel reports.
std::string down_text(int peer) {
  return "rank " + std::to_string(peer) + " is down: its process failed or left the job";
}

}  // namespace

void Collectives::on_transfer_failed(TimeNs now, Active& active, const core::Completion& completion) {
  if (active.stopping) return;  // expected, or no longer relevant
  const std::string peer = rank_text(completion.peer);
  switch (completion.status) {
    case core::CompletionStatus::kPeerFailed:
      return fail(now, active, {completion.status, completion.peer, down_text(completion.peer)}, true);
    case core::CompletionStatus::kTimedOut:
      return fail(now, active,
                  {completion.status, completion.peer,
                   rank_text(rank_) + " timed out waiting for " + peer + ": check that " + peer +
                       " called the same collective, or raise the timeout"},
                  true);
    case core::CompletionStatus::kCancelled:
      // PROTOCOL 22.1.8: A member whose transfer the other side gave up MUST cancel its own transfers of that
      //     collective, and wait for failed 1 s at most: the cause is the one that failed names.
      active.given_up_by = completion.peer;
      stop(now, active);
      return set_timer(active, std::min(active.expires_ns, base::after(now, kExplanationNs)));
    default:
      return on_mismatch(now, active, completion);
  }
}

// The shapes show the difference: one may still be in flight, one may be part of the transfer that did not fit.
// PROTOCOL 22.1.13: A member whose transfer ends as a size or type mismatch MUST send called, with its own shape, to
//     the other side, and wait for the other's shape, by transfer or by called, or for failed, 1 s at most.
void Collectives::on_mismatch(TimeNs now, Active& active, const core::Completion& completion) {
  if (active.differs_from >= 0) return;
  active.differs_from = completion.peer;
  const auto index = static_cast<std::size_t>((local_of(completion.operation) >> kStepBits) & (kMaxStreams - 1));
  encode(Called{active.group->id, active.sequence, encode(shape_of(active, active.collective->streams[index]))},
         scratch_);
  verbs_.send_message(completion.peer, scratch_);
  set_timer(active, std::min(active.expires_ns, base::after(now, kExplanationNs)));
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
    //     fault and the cause, unless it failed because of a member's failed.
    encode(Failed{group.id, active.sequence, cause.peer, static_cast<std::uint8_t>(cause.status), cause.text},
           scratch_);
    for (const std::uint16_t rank : group.ranks) {
      if (rank != rank_) verbs_.send_message(rank, scratch_);  // not to a rank that is down
    }
    group.is_told = true;
  }
  break_group(now, group, active.sequence, cause);
}

// PROTOCOL 22.1.9: With a collective that fails, every later one of its group MUST fail, of the same cause: transfers
//     can no longer be matched to calls.
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
    fail(now, *active, {core::CompletionStatus::kCancelled, rank_, rank_text(rank_) + " cancelled the collective"},
         true);
  }
  settle(now);
}

void Collectives::on_message(TimeNs now, std::uint16_t from, const Failed& failed) {
  const auto status = static_cast<core::CompletionStatus>(failed.status);
  const bool is_known = core::is_failure(status) && status <= core::CompletionStatus::kCancelled;
  Cause cause{is_known ? status : core::CompletionStatus::kCancelled, failed.failed_rank, failed.text};
  if (cause.text.empty()) cause.text = rank_text(from) + " aborted the collective without a cause";
  const auto found = groups_.find(failed.group);
  if (found == groups_.end()) return remember(from, failed, std::move(cause));
  apply(now, found->second, from, failed.sequence, std::move(cause));
  settle(now, found->second);
}

// PROTOCOL 22.1.13: A member MUST ignore a called of a collective that is not under way, or from no member.
void Collectives::on_message(TimeNs now, std::uint16_t from, const Called& called) {
  const auto found = groups_.find(called.group);
  if (found == groups_.end()) return;
  for (const std::uint32_t slot : found->second.open) {
    Active& active = *slots_[slot];
    if (active.sequence != called.sequence || active.failed || !active.collective) continue;
    const auto& streams = active.collective->streams;
    const auto stream = std::ranges::find(streams, from, &Stream::peer);
    if (stream != streams.end()) check_shape(now, active, *stream, called.shape);
    break;
  }
  settle(now, found->second);
}

// PROTOCOL 22.1.11: A rank keeps what it receives of a group that was not called here yet until it is called, for 64
//     groups of each sender, of which the oldest goes first.
void Collectives::remember(std::uint16_t from, const Failed& failed, Cause cause) {
  std::deque<Heard>& told = heard_[from];
  const auto before = std::ranges::find(told, failed.group, &Heard::group);
  if (before != told.end()) {
    if (before->sequence <= failed.sequence) return;
    told.erase(before);
  }
  if (told.size() >= kMaxHeard) told.pop_front();
  told.push_back({failed.group, failed.sequence, std::move(cause)});
}

// PROTOCOL 22.1.11: A member MUST ignore a failed that does not come from a member; a failed rank that is no member's
//     counts as the sender.
void Collectives::apply(TimeNs now, Group& group, std::uint16_t from, std::uint32_t sequence, Cause cause) {
  const auto is_member = [&](int rank) { return std::ranges::find(group.ranks, rank) != group.ranks.end(); };
  if (!is_member(from)) return;
  if (cause.peer != -1 && !is_member(cause.peer)) cause.peer = from;
  // Also those that wait for the cause of an abort, and those not called here yet.
  group.is_told = true;
  break_group(now, group, sequence, cause);
}

// Posted transfers end by themselves. This handles transfers not posted yet, and collectives that wait for the cause of
// an abort.
void Collectives::on_peer_down(TimeNs now, std::uint16_t peer) {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot] || !slots_[slot]->collective) continue;
    Active& active = *slots_[slot];
    const auto& ranks = active.group->ranks;
    const bool is_waiting =
        (active.given_up_by >= 0 || active.differs_from >= 0) && std::ranges::find(ranks, peer) != ranks.end();
    const bool is_needed = std::ranges::any_of(active.collective->streams, [&](const Stream& stream) {
      return stream.peer == peer && stream.posted < stream.steps;
    });
    if (!is_waiting && !is_needed) continue;
    fail(now, active, {core::CompletionStatus::kPeerFailed, peer, down_text(peer)}, true);
  }
  // Later calls: members that share a transfer with the peer detect its loss themselves; others might wait for these.
  for (auto& [id, group] : groups_) {
    if (std::ranges::find(group.ranks, peer) == group.ranks.end()) continue;
    break_group(now, group, group.next, {core::CompletionStatus::kPeerFailed, peer, down_text(peer)});
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
            rank_text(active.given_up_by) + " aborted the collective without a cause: look at its output"},
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
    // The peer of the first stream that has not ended.
    int peer = -1;
    if (active.collective) {
      const auto& streams = active.collective->streams;
      const auto open = std::ranges::find_if(streams, [](const Stream& stream) { return !stream.is_over(); });
      if (open != streams.end()) peer = open->peer;
    }
    fail(now, active,
         {core::CompletionStatus::kTimedOut, peer,
          rank_text(rank_) + " timed out waiting for " +
              (peer < 0 ? "the earlier collectives of its group"
                        : rank_text(peer) + ": check that it called the same collective, or raise the timeout")},
         true);
  }
  settle(now);
}

}  // namespace mlt::collective
