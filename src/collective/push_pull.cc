#include "collective/push_pull.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "collective/collective.h"
#include "core/segmenter.h"

namespace mlt::collective {

namespace {

std::string use_text(std::size_t elements, double loss_bound, bool average) {
  return std::to_string(elements) + " elements, loss bound " + in_short(loss_bound) +
         (average ? ", averaged" : ", summed");
}

}  // namespace

PushPull::PushPull(const PushPullConfig& config, Verbs& verbs)
    : services_(config.services, config.max_dead_services),
      verbs_(verbs),
      default_timeout_ns_(config.default_timeout_ns) {
  // PROTOCOL 14.2.9: The services MUST be the ranks that follow the workers: a job whose services are not decides
  //     nothing together.
  const auto count = static_cast<std::uint16_t>(config.services.size());
  if (count < 2) return;
  const auto [first, last] = std::ranges::minmax(config.services);
  if (last - first + 1 != count) return;
  survivors_.emplace(Survivors::Config{config.rank, first, count, config.max_undecided_ns}, verbs);
  survivors_->set_limits(0, config.max_dead_services);
}

std::string PushPull::abort_text(std::uint64_t key, int failed_rank) const {
  const std::string text =
      "key " + std::to_string(key) + " cannot be summed without worker rank " + std::to_string(failed_rank);
  const std::string error = verbs_.peer_error(static_cast<std::uint16_t>(failed_rank));
  std::string others;
  for (const std::uint16_t rank : gone_) {
    if (rank == failed_rank) continue;
    const std::string cause = verbs_.peer_error(rank);
    others += "; before it " + (cause.empty() ? "rank " + std::to_string(rank) + " failed or left the job" : cause);
  }
  return (error.empty() ? text + ", which failed or left the job" : error + " (" + text + ")") + others;
}

void PushPull::on_gone(std::uint16_t from, const Gone& gone) {
  // PROTOCOL 14.1.18: A worker MUST ignore gone from a rank that is none of its services, and of a rank that is no
  //     worker.
  if (!services_.is_worker(gone.rank) || !services_.contains(from)) return;
  const auto rank = static_cast<std::uint16_t>(gone.rank);
  if (!gone_.insert(rank).second) return;
  const std::string error = verbs_.peer_error(rank);
  verbs_.notice((error.empty() ? "worker rank " + std::to_string(rank) + " failed or left the job" : error) +
                ": the services sum without it (" + std::to_string(gone_.size()) + " of at most " +
                std::to_string(gone.max_dead_workers) + " workers gone)");
}

std::string PushPull::down_text(std::uint16_t service) const {
  const std::string error = verbs_.peer_error(service);
  if (error.empty() && survivors_ && !survivors_->is_lost(service)) {
    return service_text(service) + " was left behind: connections of others with it broke";
  }
  return error.empty() ? service_text(service) + " is down: its process failed or left the job"
                       : error + " (" + service_text(service) + ")";
}

OperationId PushPull::operation(const Key& key, std::uint32_t partition, bool is_send) const {
  return machine_operation(MachineId::kPushPull,
                           (std::uint64_t{key.index} << 17) | (std::uint64_t{partition} << 1) | (is_send ? 1U : 0U));
}

void PushPull::fail_at_once(const PushPullRequest& request, core::CompletionStatus status, int peer,
                            const std::string& text) {
  PushPullDone done;
  done.operation = request.operation;
  done.key = request.key;
  done.total_bytes = request.input.size_bytes();
  done.status = status;
  done.failed_peer = peer;
  done.error = text;
  finished_.push_back(std::move(done));
}

PushPull::Key& PushPull::key_of(const PushPullRequest& request) {
  auto [found, is_new] = by_key_.try_emplace(request.key, static_cast<std::uint32_t>(keys_.size()));
  if (!is_new) return *keys_[found->second];
  auto key = std::make_unique<Key>();
  key->index = found->second;
  key->key = request.key;
  key->elements = request.input.size();
  key->loss_bound = request.loss_bound;
  key->average = request.average;
  const PartitionGrid grid(request.input.size(), services_.count());
  std::size_t segment = 0;
  for (std::size_t i = 0; i < grid.count(); ++i) {
    Partition partition;
    const auto index = static_cast<std::uint32_t>(i);
    partition.service = services_.service_of(request.key, index);
    partition.record = TakeoverRecord(verbs_.grid_bytes(partition.service), services_.may_move());
    partition.first = grid.first(i);
    partition.count = grid.elements(i);
    partition.first_segment = segment;
    // The caller's priorities are of the segments to the service that the key says, also where that is gone.
    const std::uint16_t own = services_.own_service(request.key, index);
    partition.segments =
        core::SegmentGrid(static_cast<std::uint32_t>(partition.count * sizeof(float)), verbs_.segment_bytes(own))
            .count();
    segment += partition.segments;
    key->partitions.push_back(std::move(partition));
  }
  keys_.push_back(std::move(key));
  return *keys_.back();
}

void PushPull::start(TimeNs now, const PushPullRequest& request) {
  if (survivors_ && !survivors_->out_text().empty()) {
    return fail_at_once(request, core::CompletionStatus::kPeerFailed, -1, survivors_->out_text());
  }
  Key& key = key_of(request);
  if (!key.broken.empty()) {
    return fail_at_once(request, core::CompletionStatus::kPeerFailed, key.broken_by,
                        "key " + std::to_string(request.key) + " failed before: " + key.broken);
  }
  if (key.active) {
    return fail_at_once(request, core::CompletionStatus::kCancelled, -1,
                        "a push-pull of key " + std::to_string(request.key) + " is in progress: wait for it first");
  }
  if (key.elements != request.input.size() || key.loss_bound != request.loss_bound || key.average != request.average) {
    return fail_at_once(request, core::CompletionStatus::kSizeMismatch, -1,
                        "key " + std::to_string(request.key) + " was used with " +
                            use_text(key.elements, key.loss_bound, key.average) + " before, now with " +
                            use_text(request.input.size(), request.loss_bound, request.average) + ": use another key");
  }
  key.active = true;
  key.posted = false;
  key.request = request;
  key.started_ns = now;
  key.expires_ns = base::after(now, request.timeout_ns > 0 ? request.timeout_ns : default_timeout_ns_);
  timers_.emplace(key.expires_ns, key.index);
  key.done = PushPullDone{};
  key.done.operation = request.operation;
  key.done.key = request.key;
  key.done.total_bytes = request.input.size_bytes();
  key.outstanding = 0;
  if (!std::exchange(key.was_registered, true)) {
    register_partitions(key);
  } else if (key.unregistered == 0) {
    post_all(now, key);
  }
  finish_if_over(now, key);
}

Register PushPull::shape_of(const Key& key, std::uint32_t index) const {
  Register shape;
  shape.key = key.key;
  shape.partition = index;
  shape.elements = static_cast<std::uint32_t>(key.partitions[index].count);
  shape.segment_bytes = verbs_.grid_bytes(key.partitions[index].service);
  shape.loss_bound = key.loss_bound;
  shape.average = key.average;
  shape.order = key.request.order;
  shape.traffic_class = key.request.traffic_class;
  shape.tensor_elements = key.elements;
  shape.services = static_cast<std::uint32_t>(services_.count());
  shape.max_dead_services = services_.max_dead();
  return shape;
}

void PushPull::register_partitions(Key& key) {
  key.unregistered = key.partitions.size();
  for (std::uint32_t i = 0; i < key.partitions.size(); ++i) {
    const Partition& partition = key.partitions[i];
    encode(shape_of(key, i), scratch_);
    // Where services may die, on_peer_down() asks the next one.
    if (!verbs_.send_message(partition.service, scratch_) && !services_.may_move()) {
      key.broken = down_text(partition.service);
      key.broken_by = partition.service;
      key.done.status = core::CompletionStatus::kPeerFailed;
      key.done.failed_peer = partition.service;
      key.done.error = key.broken;
      return;
    }
  }
}

void PushPull::post_all(TimeNs now, Key& key) {
  key.posted = true;
  key.outstanding = 2 * key.partitions.size();
  for (Partition& partition : key.partitions) {
    partition.pushing = partition.pulling = true;
    partition.push_posted = partition.pull_posted = false;
    partition.missing_bytes = 0;
    partition.record.begin_round(key.request.input.subspan(partition.first, partition.count),
                                 key.request.output.subspan(partition.first, partition.count));
  }
  for (std::uint32_t i = 0; i < key.partitions.size() && key.broken.empty(); ++i) post_partition(now, key, i);
}

void PushPull::post_partition(TimeNs now, Key& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  const PushPullRequest& request = key.request;
  // Time left of the whole operation.
  const base::DurationNs timeout_ns =
      key.expires_ns == base::kNever ? base::kNever : std::max<base::DurationNs>(1, key.expires_ns - now);
  core::PostStatus status = core::PostStatus::kPosted;
  if (partition.must_replay) status = post_replay(now, key, index);
  const bool is_for_later = partition.replaying || !partition.registered || !key.active || !key.posted ||
                            !partition.pushing || partition.push_posted;
  if (status == core::PostStatus::kPosted && is_for_later) return;
  // PROTOCOL 14.1.6: A worker MUST post the receive of the result before the send of its push, so that the result never
  //     arrives early.
  if (status == core::PostStatus::kPosted && !partition.pull_posted) {
    core::ReceiveRequest pull;
    pull.operation = operation(key, index, false);
    pull.peer = partition.service;
    pull.tag = partition_tag(key.key, index);
    pull.data = std::as_writable_bytes(request.output.subspan(partition.first, partition.count));
    pull.element = wire::ElementType::kFloat32;
    if (request.lossy_results) pull.loss_bound = request.loss_bound;
    pull.fill = core::Fill::kKeep;  // stand_in()
    pull.timeout_ns = timeout_ns;
    if (services_.may_move()) {
      pull.place = &TakeoverRecord::place;
      pull.place_context = &partition.record;
    }
    status = verbs_.post_recv(now, pull);
    partition.pull_posted = status == core::PostStatus::kPosted;
  }
  if (status == core::PostStatus::kPosted) {
    core::SendRequest push;
    push.operation = operation(key, index, true);
    push.peer = partition.service;
    push.tag = partition_tag(key.key, index);
    push.data = std::as_bytes(request.input.subspan(partition.first, partition.count));
    if (!partition.record.again().empty()) push.data = std::as_bytes(std::span(partition.record.again()));
    push.element = wire::ElementType::kFloat32;
    push.order = request.order;
    push.uniform_priority = core::SegmentPriority::important(request.traffic_class);
    const core::SegmentGrid grid(static_cast<std::uint32_t>(push.data.size()), verbs_.segment_bytes(partition.service));
    if (request.priorities != nullptr && grid.count() == partition.segments)
      push.priorities = {request.priorities + partition.first_segment, partition.segments};
    push.timeout_ns = timeout_ns;
    status = verbs_.post_send(now, push);
    partition.push_posted = status == core::PostStatus::kPosted;
    if (partition.push_posted && partition.on_demand) {
      // PROTOCOL 14.1.7: A worker whose registration or move got the reply "on demand" MUST send ready with each push.
      // The
      //     service MUST post the receive then, and not before.
      encode(Ready{key.key, index}, scratch_);
      // Without it the push would wait for a receive that the service does not post.
      if (!verbs_.send_message(partition.service, scratch_) && !services_.may_move())
        status = core::PostStatus::kPeerNotConnected;
    }
  }
  switch (status) {
    case core::PostStatus::kPosted:
      return;
    case core::PostStatus::kTooManyOperations:
    case core::PostStatus::kOutOfBitmaps:
      unposted_.push_back({key.index, index});
      return;
    case core::PostStatus::kTooManyTags:
      return break_key(now, key, core::CompletionStatus::kCancelled, -1,
                       "too many distinct keys: reuse keys from iteration to iteration");
    default:
      return break_key(now, key, core::CompletionStatus::kPeerFailed, partition.service,
                       service_text(partition.service) + " is not connected");
  }
}

void PushPull::retry(TimeNs now) {
  if (unposted_.empty()) return;
  std::vector<Unposted> waiting;
  waiting.swap(unposted_);
  for (const Unposted& one : waiting) {
    Key& key = *keys_[one.key];
    if (key.broken.empty()) post_partition(now, key, one.partition);
    finish_if_over(now, key);
  }
}

TimeNs PushPull::next_timeout() const {
  const TimeNs key = timers_.empty() ? base::kNever : timers_.begin()->first;
  return survivors_ ? std::min(key, survivors_->next_timeout()) : key;
}

// Otherwise a service that never replies would block the key forever: nothing with a timeout is posted yet.
void PushPull::on_timeout(TimeNs now) {
  if (survivors_) survivors_->on_timeout(now);
  apply_exclusions(now);
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Key& key = *keys_[timers_.begin()->second];
    timers_.erase(timers_.begin());
    if (key.unregistered > 0) {
      const auto silent = std::find_if(key.partitions.begin(), key.partitions.end(),
                                       [](const Partition& partition) { return !partition.registered; });
      MLT_CHECK(silent != key.partitions.end());
      const std::string what =
          " partition " + std::to_string(silent - key.partitions.begin()) + " of key " + std::to_string(key.key);
      break_key(now, key, core::CompletionStatus::kTimedOut, silent->service,
                silent->undecided ? "the connection with " + service_text(silent->service) +
                                        " is lost, and the job did not decide in time which of both goes on"
                : silent->taken_over
                    ? service_text(silent->service) + " did not take over" + what +
                          " in time: other workers may still be connected to the service that is gone here"
                    : service_text(silent->service) + " never confirmed" + what +
                          " in time: check that `mlt serve` is running there");
    } else if (std::any_of(unposted_.begin(), unposted_.end(),
                           [&](const Unposted& one) { return one.key == key.index; })) {
      break_key(now, key, core::CompletionStatus::kTimedOut, -1,
                "key " + std::to_string(key.key) +
                    " timed out waiting for a free operation slot: push fewer keys at once, or raise the timeout");
    } else if (const auto cancelled = std::ranges::find_if(
                   key.partitions, [](const Partition& one) { return one.pulling && !one.pull_posted; });
               cancelled != key.partitions.end()) {
      break_key(now, key, core::CompletionStatus::kTimedOut, cancelled->service,
                service_text(cancelled->service) + " cancelled the sum of partition " +
                    std::to_string(cancelled - key.partitions.begin()) + " of key " + std::to_string(key.key) +
                    " and did not report which worker failed: check the service's log");
    }
    finish_if_over(now, key);
  }
}

PushPull::Key* PushPull::find(std::uint64_t key, std::uint32_t partition) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  Key& state = *keys_[found->second];
  return partition < state.partitions.size() ? &state : nullptr;
}

// PROTOCOL 14.1.12: A worker MUST ignore messages about a partition from another rank than its service.
void PushPull::on_message(TimeNs now, std::uint16_t from, const Message& message) {
  if (const auto* gone = std::get_if<Gone>(&message)) return on_gone(from, *gone);
  if (const auto* excluded = std::get_if<Excluded>(&message)) {
    if (survivors_) survivors_->on_message(now, from, *excluded);
    return apply_exclusions(now);
  }
  Key* key = nullptr;
  if (const auto* registered = std::get_if<Registered>(&message)) {
    key = find(registered->key, registered->partition);
    if (key == nullptr) return;
    Partition& partition = key->partitions[registered->partition];
    if (partition.registered || partition.service != from) return;
    partition.on_demand = registered->on_demand;
    on_confirmed(now, *key, registered->partition, partition.record.rounds());
  } else if (const auto* moved = std::get_if<Moved>(&message)) {
    key = find(moved->key, moved->partition);
    if (key == nullptr) return;
    Partition& partition = key->partitions[moved->partition];
    if (partition.registered || partition.service != from) return;
    partition.on_demand = moved->on_demand;
    on_confirmed(now, *key, moved->partition, moved->rounds);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    key = find(refused->key, refused->partition);
    if (key == nullptr || key->partitions[refused->partition].service != from) return;
    if (key->partitions[refused->partition].taken_over) {
      break_key(now, *key, core::CompletionStatus::kPeerFailed, from,
                service_text(from) + " can't take over key " + std::to_string(key->key) +
                    " from a service that is gone: " + refused->text);
    } else {
      break_key(now, *key, core::CompletionStatus::kSizeMismatch, -1,
                service_text(from) + " rejected key " + std::to_string(key->key) + ": " + refused->text);
    }
  } else if (const auto* aborted = std::get_if<Aborted>(&message)) {
    key = find(aborted->key, aborted->partition);
    if (key == nullptr || key->partitions[aborted->partition].service != from) return;
    abort(now, *key, *aborted);
  } else if (const auto* overdue = std::get_if<Overdue>(&message)) {
    // PROTOCOL 14.1.19: A worker that receives overdue MUST fail the key as timed out, naming the rank.
    key = find(overdue->key, overdue->partition);
    if (key == nullptr || key->partitions[overdue->partition].service != from) return;
    break_key(now, *key, core::CompletionStatus::kTimedOut, overdue->rank,
              service_text(from) + " stopped waiting: " + overdue->text);
  }
  if (key != nullptr) finish_if_over(now, *key);
}

// A service sums the partition, from the round after so many on.
void PushPull::on_confirmed(TimeNs now, Key& key, std::uint32_t index, std::uint64_t rounds) {
  Partition& partition = key.partitions[index];
  partition.registered = true;
  partition.must_replay = partition.record.rounds() > rounds;
  const bool are_all = --key.unregistered == 0;
  if (!key.broken.empty()) return;
  if (partition.must_replay || key.posted) post_partition(now, key, index);
  // PROTOCOL 14.1.4: A worker MUST register every partition before its first push, and push when all are registered.
  if (are_all && key.active && !key.posted && key.broken.empty()) post_all(now, key);
}

// The service reports this per partition, once the results still in flight have arrived. A partition with a complete
// result is not affected; the others of this round may still be in flight.
void PushPull::abort(TimeNs now, Key& key, const Aborted& aborted) {
  // PROTOCOL 14.1.11: A worker that receives aborted MUST fail the key, naming the rank, unless the partition's result
  //     of this iteration has arrived: then the iteration completes, and the key fails after it.
  if (key.active && key.posted && !key.partitions[aborted.partition].pulling) {
    key.next_broken_by = aborted.failed_rank;
    return;
  }
  break_key(now, key, core::CompletionStatus::kPeerFailed, aborted.failed_rank,
            abort_text(key.key, aborted.failed_rank));
}

void PushPull::on_completion(TimeNs now, const core::Completion& completion) {
  const std::uint64_t local = local_of(completion.operation);
  Key& key = *keys_[local >> 17];
  Partition& partition = key.partitions[(local >> 1) & 0xFFFF];
  const bool is_send = (local & 1U) != 0;
  const auto index = static_cast<std::uint32_t>((local >> 1) & 0xFFFF);
  const bool is_over = completion.status == core::CompletionStatus::kPeerFailed ||
                       completion.status == core::CompletionStatus::kCancelled;
  if (is_send && partition.replaying) {
    partition.replaying = false;
    if (!key.broken.empty()) return finish_if_over(now, key);
    if (partition.moving) {
      ask_next_service(key, index);
    } else if (completion.status == core::CompletionStatus::kCancelled) {
      // Its message names the cause, as after a cancelled result.
    } else if (core::is_failure(completion.status)) {
      break_key(now, key, completion.status, partition.service,
                "the result of partition " + std::to_string(index) + " of key " + std::to_string(key.key) + " that " +
                    service_text(partition.service) + " needed did not reach it");
    } else {
      post_partition(now, key, index);
    }
    return finish_if_over(now, key);
  }
  // Its service is gone: the next one repeats the round.
  if (partition.moving && is_over && key.broken.empty()) {
    (is_send ? partition.push_posted : partition.pull_posted) = false;
    ask_next_service(key, index);
    return finish_if_over(now, key);
  }
  bool& in_progress = is_send ? partition.pushing : partition.pulling;
  MLT_CHECK(in_progress);
  // PROTOCOL 14.1.15: A worker whose receive of a result is cancelled by its service MUST wait for aborted, which names
  //     the cause, until the key's timeout.
  if (!is_send && completion.status == core::CompletionStatus::kCancelled && key.broken.empty()) {
    partition.pull_posted = false;
    return;
  }
  in_progress = false;
  --key.outstanding;
  key.done.repaired_segments += completion.repaired_segments;
  // A push that its service ended early counts whole: how much of it arrived is not known here.
  const bool is_cut = is_send && completion.status == core::CompletionStatus::kCancelled;
  if (is_send) {
    // A repeated round keeps what the result had lost of the first push.
    const std::uint64_t missing = is_cut ? partition.count * sizeof(float) : completion.missing_bytes;
    partition.missing_bytes = std::max(partition.missing_bytes, missing);
  }
  if (!is_send) key.done.missing_bytes += completion.missing_bytes;
  if (!is_send && !core::is_failure(completion.status)) stand_in(key, partition, completion);
  // A service cancels a push because it came too late, and still sends the result, or because a worker failed, and
  // names it in a separate message: report that cause. Until it arrives, or the pull ends for another reason, the pull
  // is still in progress.
  if (core::is_failure(completion.status) && !is_cut) {
    std::string text = is_send ? "the push of partition " : "the pull of partition ";
    text += std::to_string(index) + " of key " + std::to_string(key.key) + " with " + service_text(partition.service);
    const std::string error = verbs_.peer_error(partition.service);
    if (completion.status == core::CompletionStatus::kPeerFailed) {
      text += " failed";
      text = error.empty() ? text + ": the service is down, its process failed or left" : error + " (" + text + ")";
    } else if (completion.status == core::CompletionStatus::kTimedOut) {
      text += " timed out" + (error.empty() ? "" : ": " + error);
    } else {
      text += " was cancelled";
    }
    break_key(now, key, completion.status, partition.service, text);
  } else if (!is_send) {
    partition.record.on_result();
  }
  if (partition.moving) ask_next_service(key, index);
  finish_if_over(now, key);
}

// PROTOCOL 14.1.8: ... Such a worker MUST take its own term in the place of an element that it misses.
void PushPull::stand_in(const Key& key, const Partition& partition, const core::Completion& completion) {
  const auto own = key.request.input.subspan(partition.first, partition.count);
  const auto result = key.request.output.subspan(partition.first, partition.count);
  if (completion.received_bitmap.empty() || own.data() == result.data()) return;
  const std::size_t each = completion.segment_bytes / sizeof(float);
  for (std::size_t i = 0; i < completion.segment_count; ++i) {
    if (((completion.received_bitmap[i / 64] >> (i % 64)) & 1U) != 0) continue;
    const std::size_t first = std::min(i * each, own.size());
    std::ranges::copy(own.subspan(first, std::min(each, own.size() - first)), result.subspan(first).begin());
  }
}

void PushPull::on_service_down(TimeNs now, std::uint16_t service) {
  const std::string error = verbs_.peer_error(service);
  const bool is_lost = !survivors_ || survivors_->is_lost(service);
  const std::string cause =
      is_lost ? " failed or left the job" : " was left behind: connections of others with it broke";
  verbs_.notice((error.empty() ? service_text(service) + cause : error) + ": its keys move to the other services (" +
                std::to_string(services_.dead_count()) + " of at most " + std::to_string(services_.max_dead()) +
                " services gone)");
  // A message for each partition, of some 80 bytes and a bit for each segment: far below what may wait for a peer.
  for (const auto& key : keys_) {
    for (std::uint32_t i = 0; i < key->partitions.size() && key->broken.empty(); ++i) {
      if (key->partitions[i].service == service) move_partition(now, *key, i);
    }
    finish_if_over(now, *key);
  }
}

void PushPull::suspend_partitions(std::uint16_t service) {
  for (const auto& key : keys_) {
    if (!key->broken.empty()) continue;
    for (std::uint32_t i = 0; i < key->partitions.size(); ++i) {
      Partition& partition = key->partitions[i];
      if (partition.service != service) continue;
      if (partition.registered) ++key->unregistered;
      partition.registered = partition.must_replay = false;
      partition.moving = partition.undecided = true;
      std::erase_if(unposted_, [&](const Unposted& one) { return one.key == key->index && one.partition == i; });
    }
  }
}

void PushPull::apply_exclusions(TimeNs now) {
  if (!survivors_) return;
  while (const auto rank = survivors_->poll_excluded()) {
    if (!survivors_->out_text().empty()) return end(now);
    if (!services_.contains(*rank) || services_.is_dead(*rank)) continue;
    services_.add_dead(*rank);
    if (services_.is_within_bound()) {
      on_service_down(now, *rank);
    } else {
      break_keys_of(now, *rank);
    }
  }
}

void PushPull::end(TimeNs now) {
  verbs_.excluded(survivors_->out_text());
  for (const auto& key : keys_) {
    break_key(now, *key, core::CompletionStatus::kPeerFailed, -1, survivors_->out_text());
    finish_if_over(now, *key);
  }
}

void PushPull::move_partition(TimeNs now, Key& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  if (partition.registered) ++key.unregistered;
  partition.registered = partition.must_replay = partition.undecided = false;
  partition.moving = true;
  if (survivors_ && !survivors_->is_lost(partition.service)) {  // others lost it: this worker leaves it
    if (partition.replaying || (partition.pushing && partition.push_posted)) {
      verbs_.cancel(now, operation(key, index, true), core::CompletionKind::kSend);
    }
    if (partition.pulling && partition.pull_posted) {
      verbs_.cancel(now, operation(key, index, false), core::CompletionKind::kReceive);
    }
  }
  partition.service = services_.service_of(key.key, index);
  if (verbs_.grid_bytes(partition.service) != partition.record.cell_bytes()) {
    return break_key(now, key, core::CompletionStatus::kPeerFailed, partition.service,
                     "partition " + std::to_string(index) + " of key " + std::to_string(key.key) + " cannot move to " +
                         service_text(partition.service) +
                         ", whose packets have another size: give all interfaces "
                         "the same MTU");
  }
  std::erase_if(unposted_, [&](const Unposted& one) { return one.key == key.index && one.partition == index; });
  ask_next_service(key, index);
}

// When nothing is posted to the service that is gone any more.
void PushPull::ask_next_service(Key& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  const bool is_posted = (partition.pushing && partition.push_posted) || (partition.pulling && partition.pull_posted);
  if (!partition.moving || partition.undecided || is_posted || partition.replaying) return;
  partition.moving = false;
  partition.taken_over = true;
  const bool is_repeated = key.active && key.posted && partition.pulling;
  if (is_repeated && !partition.pushing) ++key.outstanding;
  if (!is_repeated && partition.pushing) --key.outstanding;  // its result is here
  partition.pushing = is_repeated;
  partition.push_posted = false;
  // PROTOCOL 14.1.23: A worker that has had one result more than moved says MUST push that result first, and no other
  //     data than the segments of the result that it has for those of its tensor.
  // PROTOCOL 14.1.21: A worker whose service of a partition is gone MUST send move to the one that takes over: how many
  //     results of it it has had whole, and which segments of the next. A service MUST NOT receive a push before every
  //     worker has sent move or register.
  encode(partition.record.report(shape_of(key, index), is_repeated), scratch_);
  verbs_.send_message(partition.service, scratch_);  // if that is down too, on_peer_down() asks the next one
}

core::PostStatus PushPull::post_replay(TimeNs now, Key& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  core::SendRequest replay;
  replay.operation = operation(key, index, true);
  replay.peer = partition.service;
  replay.tag = partition_tag(key.key, index);
  replay.data = std::as_bytes(std::span(partition.record.last()));
  replay.element = wire::ElementType::kFloat32;
  replay.order = key.request.order;
  replay.uniform_priority = core::SegmentPriority::important(key.request.traffic_class);
  replay.timeout_ns = default_timeout_ns_;
  const core::PostStatus status = verbs_.post_send(now, replay);
  partition.must_replay = status != core::PostStatus::kPosted;
  partition.replaying = status == core::PostStatus::kPosted;
  if (partition.replaying && partition.on_demand) {
    encode(Ready{key.key, index}, scratch_);
    verbs_.send_message(partition.service, scratch_);
  }
  return status;
}

void PushPull::on_peer_down(TimeNs now, std::uint16_t peer) {
  if (services_.contains(peer) && !services_.is_dead(peer)) {
    if (!survivors_ || !services_.may_move()) {
      services_.add_dead(peer);
      if (services_.is_within_bound()) {
        on_service_down(now, peer);
      } else {
        break_keys_of(now, peer);
      }
    } else {
      suspend_partitions(peer);
    }
  }
  if (survivors_) survivors_->on_lost(now, peer);
  apply_exclusions(now);
  if (!survivors_ || survivors_->has_decider() || !services_.contains(peer)) return;
  // Nobody is left to decide.
  services_.add_all_dead();
  break_keys_of(now, peer);
  for (const std::uint16_t service : services_.ranks()) break_keys_of(now, service);
}

void PushPull::break_keys_of(TimeNs now, std::uint16_t service) {
  for (const auto& key : keys_) {
    const bool uses = std::any_of(key->partitions.begin(), key->partitions.end(),
                                  [&](const Partition& partition) { return partition.service == service; });
    if (!uses) continue;
    break_key(now, *key, core::CompletionStatus::kPeerFailed, service, down_text(service));
    finish_if_over(now, *key);
  }
}

// Only the first cause counts. Cancels operations in progress and waits for them, so that the buffers are unused.
void PushPull::break_key(TimeNs now, Key& key, core::CompletionStatus status, int peer, const std::string& text) {
  if (!key.broken.empty()) return;
  key.broken = text;
  key.broken_by = peer;
  if (!key.active) return;
  key.done.status = status;
  key.done.failed_peer = peer;
  key.done.error = text;
  std::erase_if(unposted_, [&](const Unposted& one) { return one.key == key.index; });
  if (!key.posted) return;
  for (std::uint32_t i = 0; i < key.partitions.size(); ++i) {
    Partition& partition = key.partitions[i];
    partition.moving = partition.undecided = false;
    if (partition.pushing && !partition.push_posted) {
      partition.pushing = false;
      --key.outstanding;
    } else if (partition.pushing) {
      verbs_.cancel(now, operation(key, i, true), core::CompletionKind::kSend);
    }
    if (partition.pulling && !partition.pull_posted) {
      partition.pulling = false;
      --key.outstanding;
    } else if (partition.pulling) {
      verbs_.cancel(now, operation(key, i, false), core::CompletionKind::kReceive);
    }
  }
}

void PushPull::finish_if_over(TimeNs now, Key& key) {
  if (!key.active || key.outstanding > 0) return;
  if (key.broken.empty() && !key.posted) return;  // waiting for registrations
  key.active = false;
  timers_.erase({key.expires_ns, key.index});
  key.done.elapsed_ns = now - key.started_ns;
  for (const Partition& partition : key.partitions) {
    if (key.posted) key.done.missing_bytes += partition.missing_bytes;
  }
  if (key.broken.empty() && key.done.missing_bytes > 0) key.done.status = core::CompletionStatus::kWithinBound;
  finished_.push_back(std::move(key.done));
  if (key.next_broken_by >= 0) {
    break_key(now, key, core::CompletionStatus::kPeerFailed, key.next_broken_by,
              abort_text(key.key, key.next_broken_by));
  }
}

bool PushPull::poll_done(PushPullDone& done) {
  if (finished_.empty()) return false;
  done = std::move(finished_.front());
  finished_.pop_front();
  return true;
}

}  // namespace mlt::collective
