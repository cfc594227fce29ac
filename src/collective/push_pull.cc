#include "collective/push_pull.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace mlt::collective {

namespace {

// Of a partition: its service has two buffers, the results of both of which may be on their way.
constexpr std::size_t kMaxResultChecksums = 2;

// How long before its timeout a key asks which pushes are missing: time for the reply of a service that is busy.
base::DurationNs question_ns(base::DurationNs timeout_ns) { return std::min(timeout_ns / 4, base::kSecond); }

// Data of `sender` arrived changed.
KeyFailure damage_failure(std::uint16_t sender, const std::string& text) {
  return {core::CompletionStatus::kCancelled, sender, text, core::CompletionStatus::kCancelled};
}

}  // namespace

PushPull::PushPull(const PushPullConfig& config, Verbs& verbs)
    : services_(config.services, config.max_dead_services, config.loads.value_or(ServiceLoads(config.services.size()))),
      verbs_(verbs),
      default_timeout_ns_(config.default_timeout_ns),
      rank_(config.rank),
      has_checksums_(config.checksums),
      gone_(services_, verbs),
      posts_(services_, verbs, config.default_timeout_ns),
      moves_(services_, survivors_, posts_, verbs) {
  // PROTOCOL 14.2.9: The services MUST be the ranks that follow the workers: a job whose services are not decides
  //     nothing together.
  const auto count = static_cast<std::uint16_t>(config.services.size());
  if (count < 2) return;
  const auto [first, last] = std::ranges::minmax(config.services);
  if (last - first + 1 != count) return;
  survivors_.emplace(Survivors::Config{config.rank, first, count, config.max_undecided_ns}, verbs);
  survivors_->set_limits(0, config.max_dead_services);
}

PushPull::Key& PushPull::key_of(const PushPullRequest& request) {
  const auto [found, is_new] = by_key_.try_emplace(request.key, static_cast<std::uint32_t>(keys_.size()));
  if (is_new) {
    keys_.push_back(std::make_unique<Key>(found->second, request, services_, verbs_));
    keys_.back()->checksums = has_checksums_;
  }
  return *keys_[found->second];
}

void PushPull::fail_at_once(const PushPullRequest& request, CompletionStatus status, int peer,
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

void PushPull::start(TimeNs now, const PushPullRequest& request) {
  if (survivors_ && !survivors_->out_text().empty()) {
    return fail_at_once(request, CompletionStatus::kPeerFailed, -1, survivors_->out_text());
  }
  Key& key = key_of(request);
  if (key.is_broken()) {
    return fail_at_once(request, key.broken_status, key.broken_by,
                        "key " + std::to_string(request.key) + " failed before: " + key.broken);
  }
  if (key.active) {
    return fail_at_once(request, CompletionStatus::kCancelled, -1,
                        "a push-pull of key " + std::to_string(request.key) + " is in progress: wait for it first");
  }
  if (!key.fits(request)) {
    return fail_at_once(request, CompletionStatus::kSizeMismatch, -1, key.misfit_text(request));
  }
  key.begin(now, request, base::after(now, request.timeout_ns > 0 ? request.timeout_ns : default_timeout_ns_));
  key.late.reset();
  deadlines_.set(key.index, base::after(now, (key.expires_ns - now) - question_ns(key.expires_ns - now)));
  if (!std::exchange(key.was_registered, true)) {
    register_partitions(now, key);
  } else if (key.unregistered == 0) {
    post_all(now, key);
  }
  finish_if_over(now, key);
}

void PushPull::send_loads() {
  // PROTOCOL 14.1.24: A worker of a job with several services MUST send loads to every service before its first
  //     registration. ...
  // All of them: where loads differ, so may the services at which two workers register the same partition.
  if (services_.count() < 2) return;
  encode(Loads{services_.loads().units()}, scratch_);
  for (const std::uint16_t service : services_.ranks()) verbs_.send_message(service, scratch_);
}

void PushPull::register_partitions(TimeNs now, Key& key) {
  if (!std::exchange(has_sent_loads_, true)) send_loads();
  key.unregistered = key.partitions.size();
  for (std::uint32_t i = 0; i < key.partitions.size(); ++i) {
    const std::uint16_t service = key.partitions[i].service;
    encode(key.shape_of(i, services_, verbs_), scratch_);
    // Where services may die, on_peer_down() asks the next one.
    if (verbs_.send_message(service, scratch_) || services_.may_move()) continue;
    return break_key(now, key, {CompletionStatus::kPeerFailed, service, down_text(service)});
  }
}

void PushPull::post_all(TimeNs now, Key& key) {
  key.begin_round();
  for (const std::uint32_t i : key.post_order) {
    if (!key.is_broken()) post(now, key, i);
  }
}

void PushPull::post(TimeNs now, Key& key, std::uint32_t index) {
  if (const auto failure = posts_.post(now, key, index)) break_key(now, key, *failure);
}

void PushPull::retry(TimeNs now) {
  for (const PushPullPosts::Waiting& one : posts_.take_waiting()) {
    Key& key = *keys_[one.key];
    if (!key.is_broken()) post(now, key, one.partition);
    finish_if_over(now, key);
  }
}

TimeNs PushPull::next_timeout() const {
  return survivors_ ? std::min(deadlines_.next(), survivors_->next_timeout()) : deadlines_.next();
}

// Otherwise a service that never replies would block the key forever: nothing with a timeout is posted yet.
void PushPull::on_timeout(TimeNs now) {
  if (survivors_) survivors_->on_timeout(now);
  apply_exclusions(now);
  while (const auto due = deadlines_.poll(now)) {
    Key& key = *keys_[*due];
    if (now < key.expires_ns) {
      deadlines_.set(key.index, key.expires_ns);
      ask_who_is_late(key);
      continue;
    }
    if (const auto failure = timeout_failure(key)) break_key(now, key, *failure);
    finish_if_over(now, key);
  }
}

// PROTOCOL 14.1.28: A worker that waits for a result shortly before the key's timeout SHOULD register the partition
//     again.
void PushPull::ask_who_is_late(Key& key) {
  if (!key.posted || key.is_broken()) return;
  // One partition: who has not posted the push-pull is missing from all.
  const auto awaited = std::ranges::find_if(key.partitions, [](const Partition& one) {
    return one.registered && one.pulling && !one.moving && !one.unchecked;
  });
  if (awaited == key.partitions.end()) return;
  // The reply to an earlier question would be taken for that to this one.
  if (key.question && key.partitions[key.question->partition].service == key.question->service) return;
  const auto index = static_cast<std::uint32_t>(awaited - key.partitions.begin());
  encode(key.shape_of(index, services_, verbs_), scratch_);
  if (verbs_.send_message(awaited->service, scratch_)) key.question = {index, awaited->service, key.started_ns};
}

bool PushPull::is_reply(const Key& key, std::uint16_t from, std::uint32_t partition) {
  return key.question && key.question->service == from && key.question->partition == partition;
}

std::optional<KeyFailure> PushPull::timeout_failure(const Key& key) const {
  const std::string text = "key " + std::to_string(key.key);
  const auto what = [&](auto partition) {
    return "partition " + std::to_string(partition - key.partitions.begin()) + " of " + text;
  };
  if (key.unregistered > 0) {
    const auto silent = std::ranges::find(key.partitions, false, &Partition::registered);
    MLT_CHECK(silent != key.partitions.end());
    const std::string service = service_text(silent->service);
    const std::string error =
        silent->undecided ? "the connection with " + service +
                                " is lost, and the job did not decide in time which of the two continues"
        : silent->taken_over
            ? service + " did not take over " + what(silent) +
                  " in time: other workers may still be connected to the service that is gone here"
            : service + " never confirmed " + what(silent) + " in time: check that `mlt serve` is running there";
    return KeyFailure{CompletionStatus::kTimedOut, silent->service, error};
  }
  if (posts_.is_waiting(key)) {
    return KeyFailure{
        CompletionStatus::kTimedOut, -1,
        text + " timed out waiting for a free operation slot: push fewer keys at once, or raise the timeout"};
  }
  // PROTOCOL 14.3.7: A worker that has waited for the checksum of a result until the key's timeout MUST fail the key as
  //     timed out.
  const auto unchecked =
      std::ranges::find_if(key.partitions, [](const Partition& one) { return one.unchecked.has_value(); });
  if (unchecked != key.partitions.end()) {
    // The service sends it with the end of the sum: who is late may be any worker.
    return KeyFailure{CompletionStatus::kTimedOut, -1,
                      "the result of " + what(unchecked) + " arrived, but not the checksum of " +
                          service_text(unchecked->service) + ": another worker's push or its checksum may be late"};
  }
  const auto cancelled =
      std::ranges::find_if(key.partitions, [](const Partition& one) { return one.pulling && !one.pull_posted; });
  if (cancelled == key.partitions.end()) return std::nullopt;
  return KeyFailure{CompletionStatus::kTimedOut, cancelled->service,
                    service_text(cancelled->service) + " cancelled the sum of " + what(cancelled) +
                        " and did not report which worker failed: check the service's log"};
}

// PROTOCOL 14.1.12: A worker MUST ignore messages about a partition from another rank than its service.
PushPull::Key* PushPull::find(std::uint16_t from, std::uint64_t key, std::uint32_t partition) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  Key& state = *keys_[found->second];
  if (partition >= state.partitions.size() || state.partitions[partition].service != from) return nullptr;
  return &state;
}

void PushPull::on_message(TimeNs now, std::uint16_t from, const Message& message) {
  if (const auto* gone = std::get_if<Gone>(&message)) return gone_.on_message(from, *gone);
  if (const auto* excluded = std::get_if<Excluded>(&message)) {
    if (survivors_) survivors_->on_message(now, from, *excluded);
    return apply_exclusions(now);
  }
  Key* key = nullptr;
  if (const auto* registered = std::get_if<Registered>(&message)) {
    key = find(from, registered->key, registered->partition);
    if (key == nullptr) return;
    if (is_reply(*key, from, registered->partition)) key->question.reset();  // nothing is missing
    const std::uint64_t rounds = key->partitions[registered->partition].record.rounds();
    on_confirmed(now, *key,
                 {registered->key, registered->partition, rounds, registered->on_demand, registered->checksums});
  } else if (const auto* moved = std::get_if<Moved>(&message)) {
    key = find(from, moved->key, moved->partition);
    if (key != nullptr) on_confirmed(now, *key, *moved);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    key = find(from, refused->key, refused->partition);
    if (key != nullptr) on_refused(now, *key, *refused);
  } else if (const auto* aborted = std::get_if<Aborted>(&message)) {
    key = find(from, aborted->key, aborted->partition);
    if (key != nullptr) on_aborted(now, *key, *aborted);
  } else if (const auto* overdue = std::get_if<Overdue>(&message)) {
    key = find(from, overdue->key, overdue->partition);
    if (key == nullptr) return;
    // PROTOCOL 14.1.29: A worker that receives overdue as that reply, with a rank that is not its own, MUST NOT fail
    //     the key before its timeout, and then name the rank.
    if (overdue->rank != rank_ && is_reply(*key, from, overdue->partition)) {
      const bool is_of_this = key->active && key->question->started_ns == key->started_ns;
      key->question.reset();
      if (is_of_this) key->late = {from, *overdue};
      return;
    }
    // PROTOCOL 14.1.19: A worker that receives overdue MUST fail the key as timed out, naming the rank.
    break_key(now, *key,
              {CompletionStatus::kTimedOut, overdue->rank, service_text(from) + " stopped waiting: " + overdue->text});
  } else if (const auto* checksum = std::get_if<Checksum>(&message)) {
    key = find(from, checksum->key, checksum->partition);
    if (key == nullptr || !key->checksums || key->is_broken()) return;
    std::vector<std::uint64_t>& waiting = key->partitions[checksum->partition].result_checksums;
    if (waiting.size() >= kMaxResultChecksums) return;
    waiting.push_back(checksum->checksum);
    check_result(now, *key, checksum->partition);
  } else if (const auto* damaged = std::get_if<Damaged>(&message)) {
    key = find(from, damaged->key, damaged->partition);
    if (key != nullptr) on_damaged(now, *key, *damaged);
  }
  if (key != nullptr) finish_if_over(now, *key);
}

void PushPull::on_confirmed(TimeNs now, Key& key, const Moved& moved) {
  const std::uint32_t index = moved.partition;
  Partition& partition = key.partitions[index];
  if (partition.registered) return;
  partition.on_demand = moved.on_demand;
  partition.registered = true;
  partition.must_replay = partition.record.rounds() > moved.rounds;
  const bool are_all = --key.unregistered == 0;
  if (key.is_broken()) return;
  // PROTOCOL 14.3.1: ... A service with checksums MUST say so in registered and moved. A worker with checksums MUST
  //     fail the key where its service does not.
  if (key.checksums && !moved.checksums) {
    return break_key(now, key,
                     {CompletionStatus::kSizeMismatch, partition.service,
                      "rank " + std::to_string(partition.service) +
                          " has no checksums for push-pull, and this rank takes them (MLT_CHECKSUMS): install the " +
                          "same release of mlt on all ranks"});
  }
  if (partition.must_replay || key.posted) post(now, key, index);
  // PROTOCOL 14.1.4: A worker MUST register every partition before its first push, and push when all are registered.
  if (are_all && key.active && !key.posted && !key.is_broken()) post_all(now, key);
}

void PushPull::on_refused(TimeNs now, Key& key, const Refused& refused) {
  const Partition& partition = key.partitions[refused.partition];
  const std::string service = service_text(partition.service);
  if (partition.taken_over) {
    break_key(now, key,
              {CompletionStatus::kPeerFailed, partition.service,
               service + " can't take over key " + std::to_string(key.key) +
                   " from a service that is gone: " + refused.text});
  } else {
    break_key(now, key,
              {CompletionStatus::kSizeMismatch, -1,
               service + " rejected key " + std::to_string(key.key) + ": " + refused.text});
  }
}

// The service reports this per partition, once the results still in flight have arrived. A partition with a complete
// result is not affected; the others of this round may still be in flight.
void PushPull::on_aborted(TimeNs now, Key& key, const Aborted& aborted) {
  // PROTOCOL 14.1.11: A worker that receives aborted MUST fail the key, naming the rank, unless the partition's result
  //     of this iteration has arrived: then the iteration completes, and the key fails after it.
  const KeyFailure failure{CompletionStatus::kPeerFailed, aborted.failed_rank,
                           gone_.abort_text(key.key, aborted.failed_rank)};
  if (!key.has_result(aborted.partition)) return break_key(now, key, failure);
  if (!key.next_failure) key.next_failure = failure;
}

void PushPull::on_damaged(TimeNs now, Key& key, const Damaged& damaged) {
  // PROTOCOL 14.3.6: A worker that receives damaged MUST fail the key as cancelled, naming the rank, unless the
  //     partition's result of this iteration has arrived, as in 14.1.11: what was damaged is of a later one, or another
  //     worker's.
  const KeyFailure failure = damage_failure(damaged.rank, damaged.text);
  if (!key.has_result(damaged.partition)) return break_key(now, key, failure);
  if (!key.next_failure) key.next_failure = failure;
}

void PushPull::on_completion(TimeNs now, const core::Completion& completion) {
  const auto [key_index, index, is_send] = PushPullPosts::Id::of(completion.operation);
  Key& key = *keys_[key_index];
  Partition& partition = key.partitions[index];
  if (is_send && partition.replaying) {
    on_replayed(now, key, index, completion.status);
    return finish_if_over(now, key);
  }
  const bool is_over =
      completion.status == CompletionStatus::kPeerFailed || completion.status == CompletionStatus::kCancelled;
  // Its service is gone: the next one repeats the round.
  if (partition.moving && is_over && !key.is_broken()) {
    (is_send ? partition.push_posted : partition.pull_posted) = false;
    moves_.ask_next_service(key, index);
    return finish_if_over(now, key);
  }
  bool& in_progress = is_send ? partition.pushing : partition.pulling;
  MLT_CHECK(in_progress);
  // PROTOCOL 14.1.15: A worker whose receive of a result is cancelled by its service MUST wait for aborted, which names
  //     the cause, until the key's timeout.
  if (!is_send && completion.status == CompletionStatus::kCancelled && !key.is_broken()) {
    partition.pull_posted = false;
    return;
  }
  if (!is_send && key.checksums && !core::is_failure(completion.status) && !key.is_broken()) {
    hold_result(now, key, index, completion);
    return finish_if_over(now, key);
  }
  in_progress = false;
  --key.outstanding;
  key.done.repaired_segments += completion.repaired_segments;
  // A push that its service ended early counts whole: how much of it arrived is not known here.
  const bool is_cut = is_send && completion.status == CompletionStatus::kCancelled;
  if (is_send) {
    // A repeated round keeps what the result had lost of the first push.
    const std::uint64_t missing = is_cut ? partition.count * sizeof(float) : completion.missing_bytes;
    partition.missing_bytes = std::max(partition.missing_bytes, missing);
  }
  if (!is_send) key.done.missing_bytes += completion.missing_bytes;
  if (!is_send && !core::is_failure(completion.status)) key.stand_in(partition, completion);
  // A service cancels a push because it came too late, and still sends the result, or because a worker failed, and
  // names it in a separate message: report that cause. Until it arrives, or the pull ends for another reason, the pull
  // is still in progress.
  if (core::is_failure(completion.status) && !is_cut) {
    break_key(now, key, transfer_failure(key, index, is_send, completion.status));
  } else if (!is_send) {
    partition.record.on_result();
  }
  if (partition.moving) moves_.ask_next_service(key, index);
  finish_if_over(now, key);
}

void PushPull::hold_result(TimeNs now, Key& key, std::uint32_t index, const core::Completion& completion) {
  Partition& partition = key.partitions[index];
  partition.pull_posted = false;
  // Its service is gone before it confirmed the result: the next one repeats it.
  if (partition.moving) return moves_.ask_next_service(key, index);
  key.done.repaired_segments += completion.repaired_segments;
  partition.unchecked.emplace();
  partition.unchecked->missing_bytes = completion.missing_bytes;
  if (completion.missing_bytes == 0) {
    const auto result = std::as_bytes(key.request.output.subspan(partition.first, partition.count));
    partition.unchecked->checksum = transfer_checksum(result, std::max(1U, verbs_.segment_bytes(partition.service)));
  }
  key.stand_in(partition, completion);
  // The endpoint's timer does not apply any more.
  if (!deadlines_.has(key.index)) deadlines_.set(key.index, std::max(now, key.expires_ns));
  check_result(now, key, index);
}

// PROTOCOL 14.3.5: A worker MUST NOT complete a partition before it has the checksum of its result, and MUST compare it
//     with that of what arrived, if nothing is missing. Where they differ, it MUST fail the key as cancelled, and send
//     damaged to the service, naming the service, which then does as in 14.3.3.
void PushPull::check_result(TimeNs now, Key& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  if (!partition.unchecked || partition.result_checksums.empty()) return;
  const std::uint64_t sent = partition.result_checksums.front();
  partition.result_checksums.erase(partition.result_checksums.begin());
  const Partition::Unchecked result = *std::exchange(partition.unchecked, std::nullopt);
  ++(result.checksum ? checksum_counts_.compared : checksum_counts_.incomplete);
  if (result.checksum && *result.checksum != sent) {
    ++checksum_counts_.different;
    const std::string text =
        damage_text(partition.service, rank_,
                    "pull of partition " + std::to_string(index) + " of key " + std::to_string(key.key) + ", ", sent,
                    *result.checksum, "the result");
    encode(Damaged{key.key, index, partition.service, text}, scratch_);
    verbs_.send_message(partition.service, scratch_);
    return break_key(now, key, damage_failure(partition.service, text));
  }
  partition.pulling = false;
  --key.outstanding;
  key.done.missing_bytes += result.missing_bytes;
  partition.record.on_result();
}

void PushPull::on_replayed(TimeNs now, Key& key, std::uint32_t index, CompletionStatus status) {
  Partition& partition = key.partitions[index];
  partition.replaying = false;
  if (key.is_broken()) return;
  if (partition.moving) {
    moves_.ask_next_service(key, index);
  } else if (status == CompletionStatus::kCancelled) {
    // Its message names the cause, as after a cancelled result.
  } else if (core::is_failure(status)) {
    break_key(now, key,
              {status, partition.service,
               "the result of partition " + std::to_string(index) + " of key " + std::to_string(key.key) + " that " +
                   service_text(partition.service) + " needed did not reach it"});
  } else {
    post(now, key, index);
  }
}

KeyFailure PushPull::transfer_failure(const Key& key, std::uint32_t index, bool is_send,
                                      CompletionStatus status) const {
  const std::uint16_t service = key.partitions[index].service;
  // Once the result of the partition in question is here, another cause has held up the others.
  const bool is_late = key.late && (key.partitions[key.late->reply.partition].pulling ||
                                    (key.late->reply.partition == index && !is_send));
  if (status == CompletionStatus::kTimedOut && is_late) {
    return {status, key.late->reply.rank,
            "key " + std::to_string(key.key) + " timed out, as " + service_text(key.late->service) + " reports for " +
                key.late->reply.text + ": check that every rank posts this push-pull, or raise the timeout"};
  }
  std::string text = is_send ? "the push of partition " : "the pull of partition ";
  text += std::to_string(index) + " of key " + std::to_string(key.key) + " with " + service_text(service);
  const std::string error = verbs_.peer_error(service);
  if (status == CompletionStatus::kPeerFailed) {
    text += " failed";
    text = error.empty() ? text + ": the service is down, its process failed or left" : error + " (" + text + ")";
  } else if (status == CompletionStatus::kTimedOut) {
    text += " timed out" + (error.empty() ? "" : ": " + error);
  } else {
    text += " was cancelled";
  }
  return {status, service, text};
}

void PushPull::break_key(TimeNs now, Key& key, const KeyFailure& failure) {
  if (key.is_broken()) return;
  key.broken = failure.text;
  key.broken_by = failure.peer;
  key.broken_status = failure.later_status;
  if (!key.active) return;
  key.done.status = failure.status;
  key.done.failed_peer = failure.peer;
  key.done.error = failure.text;
  posts_.forget(key);
  if (!key.posted) return;
  key.end_unposted();
  for (std::uint32_t i = 0; i < key.partitions.size(); ++i) {
    Partition& partition = key.partitions[i];
    partition.moving = partition.undecided = false;
    if (partition.pushing) posts_.cancel_push(now, key, i);
    if (partition.pulling) posts_.cancel_pull(now, key, i);
  }
}

void PushPull::finish_if_over(TimeNs now, Key& key) {
  if (!key.is_over()) return;
  deadlines_.clear(key.index);
  finished_.push_back(key.finish(now));
  if (key.next_failure) break_key(now, key, *key.next_failure);
}

bool PushPull::poll_done(PushPullDone& done) {
  if (finished_.empty()) return false;
  done = std::move(finished_.front());
  finished_.pop_front();
  return true;
}

void PushPull::on_peer_up(TimeNs now, std::uint16_t peer) {
  if (survivors_) survivors_->on_peer_up(now, peer);
}

void PushPull::on_peer_down(TimeNs now, std::uint16_t peer) {
  if (services_.contains(peer) && !services_.is_dead(peer)) {
    if (!survivors_ || !services_.may_move()) {
      on_dead(now, peer);
    } else {
      for (const auto& key : keys_) {
        for (std::uint32_t i = 0; i < key->partitions.size() && !key->is_broken(); ++i) {
          if (key->partitions[i].service == peer) moves_.suspend(*key, i);
        }
      }
    }
  }
  if (survivors_) survivors_->on_lost(now, peer);
  apply_exclusions(now);
  if (!survivors_ || survivors_->has_decider() || !services_.contains(peer)) return;
  // No service is left to decide.
  services_.add_all_dead();
  break_keys_of(now, peer);
  for (const std::uint16_t service : services_.ranks()) break_keys_of(now, service);
}

void PushPull::apply_exclusions(TimeNs now) {
  if (!survivors_) return;
  while (const auto rank = survivors_->poll_excluded()) {
    if (!survivors_->out_text().empty()) return end(now);
    if (services_.contains(*rank) && !services_.is_dead(*rank)) on_dead(now, *rank);
  }
}

void PushPull::on_dead(TimeNs now, std::uint16_t service) {
  services_.add_dead(service);
  if (services_.is_within_bound()) {
    move_partitions(now, service);
  } else {
    break_keys_of(now, service);
  }
}

void PushPull::move_partitions(TimeNs now, std::uint16_t service) {
  const std::string error = verbs_.peer_error(service);
  const bool is_lost = !survivors_ || survivors_->is_lost(service);
  const std::string cause = is_lost ? " failed or left the job" : " was excluded: connections of others with it broke";
  verbs_.notice((error.empty() ? service_text(service) + cause : error) + ": its keys move to the other services (" +
                std::to_string(services_.dead_count()) + " of at most " + std::to_string(services_.max_dead()) +
                " services gone)");
  // A message for each partition, of some 80 bytes and a bit for each segment: far below what may wait for a peer.
  for (const auto& key : keys_) {
    for (std::uint32_t i = 0; i < key->partitions.size() && !key->is_broken(); ++i) {
      if (key->partitions[i].service != service) continue;
      if (const auto failure = moves_.move(now, *key, i)) break_key(now, *key, *failure);
    }
    finish_if_over(now, *key);
  }
}

void PushPull::break_keys_of(TimeNs now, std::uint16_t service) {
  for (const auto& key : keys_) {
    const bool uses =
        std::ranges::any_of(key->partitions, [&](const Partition& partition) { return partition.service == service; });
    if (!uses) continue;
    break_key(now, *key, {CompletionStatus::kPeerFailed, service, down_text(service)});
    finish_if_over(now, *key);
  }
}

std::string PushPull::down_text(std::uint16_t service) const {
  const std::string error = verbs_.peer_error(service);
  if (error.empty() && survivors_ && !survivors_->is_lost(service)) {
    return service_text(service) + " was excluded: connections of others with it broke";
  }
  return error.empty() ? service_text(service) + " is down: its process failed or left the job"
                       : error + " (" + service_text(service) + ")";
}

void PushPull::end(TimeNs now) {
  verbs_.excluded(survivors_->out_text());
  for (const auto& key : keys_) {
    break_key(now, *key, {CompletionStatus::kPeerFailed, -1, survivors_->out_text()});
    finish_if_over(now, *key);
  }
}

}  // namespace mlt::collective
