#include "collective/summation.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "collective/registration.h"

namespace mlt::collective {

Summation::Summation(const SummationConfig& config, Verbs& verbs)
    : config_(config),
      verbs_(verbs),
      survivors_({std::max(config.rank, config.workers), config.workers, config.services, config.max_takeover_wait_ns},
                 verbs),
      gone_(config.workers, config.max_dead_workers, survivors_, verbs),
      loads_(config.workers, config.services),
      partitions_({config.max_bytes, config.max_registrations}, gone_),
      posts_(config.max_standing, partitions_, gone_, verbs,
             [this](TimeNs now, Partition& partition, std::uint16_t worker) {
               fail_and_announce(now, partition, worker);
             }),
      wait_limit_(config.max_wait_ns) {
  survivors_.set_limits(config.max_dead_workers, 0);
}

void Summation::on_message(TimeNs now, std::uint16_t from, const Message& message) {
  if (const auto* shape = std::get_if<Register>(&message)) on_register(now, from, *shape, nullptr);
  if (const auto* move = std::get_if<Move>(&message)) on_register(now, from, move->shape, move);
  if (const auto* ready = std::get_if<Ready>(&message)) on_ready(now, from, *ready);
  if (const auto* loads = std::get_if<Loads>(&message)) on_loads(now, from, loads->units);
  if (const auto* checksum = std::get_if<Checksum>(&message)) on_checksum(now, from, *checksum);
  if (const auto* damaged = std::get_if<Damaged>(&message)) on_damaged(now, from, *damaged);
  if (const auto* lost = std::get_if<Lost>(&message)) survivors_.on_message(now, from, *lost);
  if (const auto* excluded = std::get_if<Excluded>(&message)) survivors_.on_message(now, from, *excluded);
  apply_exclusions(now);
}

void Summation::on_ready(TimeNs now, std::uint16_t from, const Ready& ready) {
  Partition* found = partitions_.find(ready.key, ready.partition);
  if (found == nullptr) return;
  Partition& partition = *found;
  // PROTOCOL 14.1.7: The service MUST post the receive then, and not before.
  if (from >= config_.workers || !partition.on_demand[from]) return;
  if (partition.early_receives[from] > 0) {  // that of a late push, whose receive is posted
    --partition.early_receives[from];
    return;
  }
  // The worker has its whole result, and results of the round before are still in progress.
  if (partition.pushes[from] == Push::kArrived) partition.ready[from] = true;
  posts_.expect_push(now, partition, from);
}

void Summation::refuse(std::uint16_t to, const Register& shape, const std::string& text) {
  encode(Refused{shape.key, shape.partition, text}, scratch_);
  verbs_.send_message(to, scratch_);
}

bool Summation::admit(TimeNs now, std::uint16_t from, const Register& shape) {
  const auto refused = [&](const std::string& text) {
    refuse(from, shape, text);
    return false;
  };
  const auto informed = [&] {
    survivors_.inform(now, from);
    return false;
  };
  if (from >= config_.workers) return refused("rank " + std::to_string(from) + " is not a worker of this service");
  // PROTOCOL 14.2.7: ... It MUST do the same, and not send refused, where it receives register or move.
  // The worker would take a refusal for that of its tensor.
  if (survivors_.is_out_by_view()) return informed();
  if (!out_text().empty()) return refused(out_text());
  if (config_.services > 1 && survivors_.is_excluded(from)) return informed();
  if (!gone_.contains(from)) return true;
  return refused("this service sums without rank " + std::to_string(from) + ", which failed or was late");
}

void Summation::on_loads(TimeNs now, std::uint16_t from, const std::vector<std::uint32_t>& units) {
  if (from >= config_.workers || gone_.contains(from)) return;
  loads_.add(from, units);
  if (loads_.difference().empty()) return;
  // PROTOCOL 14.1.24: ... Where the loads of two workers differ, a service MUST refuse every registration, with both
  //     workers and their loads, and end all iterations with refused as in 14.1.5.
  for (const auto& partition : partitions_.all()) {
    if (partition->has_failed()) continue;
    partition->refusal = loads_.difference();
    fail_and_announce(now, *partition, from);
  }
}

void Summation::on_register(TimeNs now, std::uint16_t from, const Register& shape, const Move* move) {
  if (!admit(now, from, shape)) return;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_.contains(worker)) gone_.inform(from, worker);  // which may have gone before that rank had a push-pull
  }
  survivors_.inform(now, from);
  // PROTOCOL 14.1.24: ... A worker that has sent none has equal loads.
  if (!loads_.has(from)) on_loads(now, from, {});
  if (!loads_.difference().empty()) return refuse(from, shape, loads_.difference());
  const std::string reason = rejection(from, shape, loads_.loads(), verbs_.grid_bytes(from), move);
  if (!reason.empty()) return refuse(from, shape, reason);
  std::string refusal;
  Partition* found = partitions_.find_or_make(from, shape, move != nullptr, refusal);
  if (found == nullptr) return refuse(from, shape, refusal);
  Partition& partition = *found;
  // PROTOCOL 14.3.1: ... A service MUST refuse those of a worker that differs from it in that, as it refuses a tensor
  //     that differs from another worker's.
  std::string text = difference(from, shape, partition.first_worker, partition.shape);
  if (shape.checksums != config_.checksums) {
    const std::uint16_t own = std::max(config_.rank, config_.workers);
    text = shape.checksums ? checksums_differ_text(from, own) : checksums_differ_text(own, from);
  }
  if (!text.empty()) {
    // PROTOCOL 14.1.5: ... Where it differs from another worker's, the service MUST also send refused, with both
    //     workers and their tensors, to every worker that registered the partition and to every one that registers it
    //     later, and end its iterations as 14.1.10 says.
    refuse(from, shape, text);
    if (partition.has_failed()) return;
    partition.refusal = text;
    return fail_and_announce(now, partition, from);
  }
  if (partition.has_failed()) {
    // Results that are complete arrive before the failure is announced (14.1.10), to this worker too.
    if (partition.registered[from] && !partition.is_failure_announced) return;
    partition.encode_failure(scratch_);
    verbs_.send_message(from, scratch_);
    return;
  }
  survivors_.raise_max_dead_services(now, shape.max_dead_services);
  const bool was_registered = partition.registered[from];
  if (!was_registered) {
    partition.registered[from] = true;
    partition.sums.add_receiver(from, verbs_.segment_bytes(from) / shape.segment_bytes);
    const bool has_part = move != nullptr && (move->rounds > 0 || !move->cells.empty());
    if (partition.takeover.is_waiting()) return on_takeover_report(now, partition, from, move, has_part);
    if (has_part) {
      partition.refusal = "rank " + std::to_string(from) + " has had results of it from another service, rank " +
                          std::to_string(partition.first_worker) +
                          " registered it here at once: workers see different services as gone";
      return fail_and_announce(now, partition, from);
    }
    // Others wait for its first push from now on.
    limit_wait(now, partition);
    begin_pushes(now, partition, from);
  }
  if (partition.takeover.is_waiting()) return;  // its answer follows
  if (was_registered && reply_with_late(partition, from)) return;
  encode(Registered{shape.key, shape.partition, partition.on_demand[from], config_.checksums}, scratch_);
  verbs_.send_message(from, scratch_);
}

// PROTOCOL 14.1.28: ... A service that lacks pushes of other workers to the sum of that result MUST reply to it with
//     overdue, naming these, and goes on as before.
bool Summation::reply_with_late(Partition& partition, std::uint16_t from) {
  // Nothing lacks in the sum that it waits for: the result is on its way.
  if (partition.is_summed() || partition.sums.before().results[from].is_pending) return false;
  std::vector<std::uint16_t> late = late_workers(partition, gone_);
  std::erase(late, from);
  if (late.empty()) return false;
  encode(Overdue{partition.shape.key, partition.shape.partition, late.front(), late_text(partition, late)}, scratch_);
  verbs_.send_message(from, scratch_);
  return true;
}

void Summation::begin_pushes(TimeNs now, Partition& partition, std::uint16_t worker) {
  partition.on_demand[worker] = !posts_.take_standing();
  if (!partition.on_demand[worker]) posts_.expect_push(now, partition, worker);
}

void Summation::on_takeover_report(TimeNs now, Partition& partition, std::uint16_t from, const Move* move,
                                   bool has_part) {
  // A worker that registers has nothing of it.
  partition.takeover.report(from, move != nullptr ? move->rounds : 0,
                            move != nullptr ? move->cells : std::vector<std::byte>());
  // All others took part in those rounds: they notice soon that the service is gone.
  if (has_part && !deadlines_.has(partition.index)) {
    deadlines_.set(partition.index, base::after(now, config_.max_takeover_wait_ns));
  }
  begin_takeover(now, partition);
}

// Once every worker has reported.
void Summation::begin_takeover(TimeNs now, Partition& partition) {
  const auto outcome = partition.takeover.finish(gone_.by_worker(), PartitionSums::cells_of(partition.shape));
  if (!outcome) return;
  deadlines_.clear(partition.index);
  if (outcome->has_newer) {
    partition.overdue = partition.text() + ": its service is gone, and rank " + std::to_string(outcome->slowest) +
                        " has had " + std::to_string(outcome->rounds) + " results, rank " +
                        std::to_string(outcome->fastest) + " " + std::to_string(outcome->newest) +
                        " and parts of more: no worker has all that the others lack";
    return fail_and_announce(now, partition, outcome->slowest);
  }
  partition.sums.repeat(outcome->repetition);
  partition.sums.expect(gone_.live());
  // PROTOCOL 14.1.22: It MUST then send moved, with the smallest number of results, to all of them, and sum the
  //     iteration after these from the segments of the result that any worker has, and the pushes of the others.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_.contains(worker)) continue;
    begin_pushes(now, partition, worker);
    encode(Moved{partition.shape.key, partition.shape.partition, outcome->rounds, partition.on_demand[worker],
                 config_.checksums},
           scratch_);
    verbs_.send_message(worker, scratch_);
  }
}

// Workers that did not report that the service is gone, although others did.
void Summation::close_takeover(TimeNs now, Partition& partition) {
  std::vector<std::uint16_t> silent;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!gone_.contains(worker) && !partition.takeover.has_report(worker)) silent.push_back(worker);
  }
  if (silent.empty()) return;
  partition.overdue = partition.text() + ": its service is gone for rank " + std::to_string(partition.first_worker) +
                      ", but not for " + names_of(silent) + ", after " +
                      std::to_string(config_.max_takeover_wait_ns / base::kSecond) +
                      " s: check the network between that service and each of them";
  verbs_.notice(partition.overdue);
  fail_and_announce(now, partition, partition.first_worker);
}

void Summation::retry(TimeNs now) {
  posts_.retry_results(now);
  for (const std::uint32_t index : partitions_.take_begun()) {
    Partition& partition = partitions_[index];
    // The round may be over since.
    if (!partition.has_failed() && partition.sums.sum().begun) posts_.send_results(now, partition);
  }
  posts_.retry_pushes(now);
}

void Summation::on_completion(TimeNs now, const core::Completion& completion) {
  const auto [index, worker, buffer, is_send] = ServicePosts::Id::of(completion.operation);
  Partition& partition = partitions_[index];
  if (is_send) {
    PartitionSums::Buffer& sent = partition.sums.buffer(buffer);
    MLT_CHECK(sent.sending > 0);
    sent.end_result(worker);
  } else {
    MLT_CHECK(partition.pushes[worker] == Push::kPosted);
    partition.pushes[worker] = Push::kArrived;
  }
  const bool is_failure = core::is_failure(completion.status);
  if (is_failure && gone_.is_undecided(worker) && !partition.has_failed()) {
    if (!is_send) partition.pushes[worker] = Push::kIdle;
    return advance(now, partition);
  }
  // Of a worker that is gone, or of one whose push this service cancelled: its share counts as loss.
  const bool is_loss = gone_.contains(worker) ||
                       (!is_send && partition.late[worker] && completion.status == core::CompletionStatus::kCancelled);
  // A worker cancels a push, or the receive of a result, where its push-pull of the key has failed, as when its
  // connection with another service broke: it takes no further part, and is dead for the sums.
  const bool has_given_up =
      !is_loss && completion.status == core::CompletionStatus::kCancelled && !partition.has_failed();
  if (has_given_up && gone_.may_lose(1)) {
    if (!is_send) partition.pushes[worker] = Push::kIdle;
    lose(now, worker);
    return !partition.has_failed() ? advance(now, partition) : announce_failure(now, partition);
  }
  // Or it has left this service, which has yet to learn that it is excluded.
  if (has_given_up && config_.services > 1 && has_spare()) {
    if (!is_send) partition.pushes[worker] = Push::kIdle;
    given_up_.push_back({base::after(now, Survivors::kDecisionWaitNs), partition.index, worker});
    return;
  }
  if (is_failure && !is_loss) fail(now, partition, worker);
  if (partition.has_failed()) return announce_failure(now, partition);
  if (!is_send) {
    partition.has_push = partition.has_push || !is_failure;
    if (!is_loss) partition.missing_bytes += completion.missing_bytes;
    if (partition.checksums.are_on() && !is_failure && completion.missing_bytes == 0) {
      return check_push(now, partition, worker);
    }
    end_push_unchecked(now, partition, worker);
    limit_wait(now, partition);
  }
  advance(now, partition);
}

void Summation::end_push_unchecked(TimeNs now, Partition& partition, std::uint16_t worker) {
  if (partition.checksums.are_on()) {
    partition.checksums.skip(worker);
    ++checksum_counts_.incomplete;
  }
  end_push(now, partition, worker);
}

// PROTOCOL 14.3.3: A service MUST NOT end an iteration before it has the checksum of every push of which nothing is
//     missing, and MUST compare it with that of what arrived. Where they differ, it MUST send damaged, naming the
//     worker, to every worker that registered the partition, and end its iterations as 14.1.10 says. It does not wait
//     for that of a worker that is gone (14.1.16), nor beyond the limit of 14.1.17: then such a push counts as it
//     arrived, without a comparison.
void Summation::check_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  const auto found = partition.checksums.compare(worker);
  if (!found && (gone_.contains(worker) || partition.is_closed)) {
    // Its worker was lost, or the wait ended, after the push had arrived and before its completion was taken.
    end_push_unchecked(now, partition, worker);
    limit_wait(now, partition);
    return advance(now, partition);
  }
  if (!found) {
    partition.pushes[worker] = Push::kUnchecked;
    return limit_wait(now, partition);
  }
  ++checksum_counts_.compared;
  if (!found->is_equal()) {
    ++checksum_counts_.different;
    const std::uint16_t own = std::max(config_.rank, config_.workers);
    return give_up_damaged(
        now, partition, worker,
        damage_text(worker, own, "push of " + partition.text() + ", ", found->sent, found->received, "the result"));
  }
  end_push(now, partition, worker);
  limit_wait(now, partition);
  advance(now, partition);
}

void Summation::on_checksum(TimeNs now, std::uint16_t from, const Checksum& checksum) {
  Partition* partition = partitions_.find(checksum.key, checksum.partition);
  if (partition == nullptr || !partition->checksums.are_on()) return;
  if (from >= config_.workers || !partition->registered[from]) return;
  partition->checksums.on_sent(from, checksum.checksum);
  if (partition->pushes[from] == Push::kUnchecked && !partition->has_failed()) check_push(now, *partition, from);
}

void Summation::on_damaged(TimeNs now, std::uint16_t from, const Damaged& damaged) {
  Partition* partition = partitions_.find(damaged.key, damaged.partition);
  if (partition == nullptr || !partition->checksums.are_on() || partition->has_failed()) return;
  if (from >= config_.workers || !partition->registered[from]) return;
  give_up_damaged(now, *partition, damaged.rank, damaged.text);
}

void Summation::give_up_damaged(TimeNs now, Partition& partition, std::uint16_t rank, const std::string& text) {
  verbs_.notice(text);
  partition.damage = text;
  fail_and_announce(now, partition, rank);
}

// PROTOCOL 14.3.4: When an iteration has ended, the service MUST send checksum, that of the sum, to every worker that
//     gets the result.
void Summation::send_result_checksums(const Partition& partition) {
  if (!partition.checksums.are_on()) return;
  const auto result = std::as_bytes(partition.sums.result());
  // Workers that share memory with the service have longer segments.
  std::map<std::uint32_t, std::uint64_t> by_segment_bytes;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_.contains(worker) || !partition.sums.is_receiver(worker)) continue;
    const std::uint32_t segment_bytes = std::max(1U, verbs_.segment_bytes(worker));
    const auto [found, is_new] = by_segment_bytes.try_emplace(segment_bytes);
    if (is_new) found->second = transfer_checksum(result, segment_bytes);
    encode(Checksum{partition.shape.key, partition.shape.partition, found->second}, scratch_);
    verbs_.send_message(worker, scratch_);
  }
}

void Summation::end_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  partition.end_push(worker);
  if (partition.is_summed()) on_pushed(now, partition);
}

void Summation::on_pushed(TimeNs now, Partition& partition) {
  deadlines_.clear(partition.index);
  gone_.report();
  partition.sums.end_round();
  ++rounds_summed_;
  send_result_checksums(partition);
  posts_.send_results(now, partition);
}

void Summation::advance(TimeNs now, Partition& partition) {
  // The buffer of the round before must not be rewritten before every worker has received its result.
  // PROTOCOL 14.1.9: A service MUST end an iteration, and post the receives of the next, when the push of every worker
  //     has completed and every result of the iteration before has left.
  if (!partition.is_summed()) return;
  if (partition.sums.before().sending == 0) return begin_round(now, partition);
  // Nor may a worker that takes no result hold the others for longer than they wait for its push.
  if (!deadlines_.has(partition.index)) deadlines_.set(partition.index, wait_limit_.end(now));
}

void Summation::begin_round(TimeNs now, Partition& partition) {
  deadlines_.clear(partition.index);
  partition.begin_round(gone_);
  // A push may arrive as soon as its worker has the result of the round before.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_.contains(worker)) continue;
    if (partition.ready[worker] || !partition.on_demand[worker]) posts_.expect_push(now, partition, worker);
    partition.ready[worker] = false;
  }
}

void Summation::limit_wait(TimeNs now, Partition& partition) {
  if (deadlines_.has(partition.index) || !wait_limit_.begins(partition, gone_)) return;
  deadlines_.set(partition.index, wait_limit_.end(now));
}

void Summation::close_round(TimeNs now, Partition& partition) {
  partition.is_closed = true;
  if (end_unchecked_pushes(now, partition) && partition.is_summed()) return advance(now, partition);
  const WaitLimit::Outcome outcome = wait_limit_.decide(partition, gone_);
  if (outcome.decision == WaitLimit::Decision::kGiveUp) return give_up(now, partition, outcome.late, outcome.text);
  if (outcome.decision == WaitLimit::Decision::kSumWithout) sum_without(now, partition, outcome);
}

bool Summation::end_unchecked_pushes(TimeNs now, Partition& partition) {
  std::vector<std::uint16_t> unchecked;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (partition.pushes[worker] == Push::kUnchecked) unchecked.push_back(worker);
  }
  if (unchecked.empty()) return false;
  notice_late(now, partition.text() + ": no checksum of " + names_of(unchecked) + " within " + wait_limit_.text() +
                       " after the first push (max_wait): what arrived was summed without a comparison");
  for (const std::uint16_t worker : unchecked) end_push_unchecked(now, partition, worker);
  return true;
}

void Summation::notice_late(TimeNs now, const std::string& text) {
  if (late_notice_ns_ != base::kNever && now - late_notice_ns_ < base::kSecond) return;
  late_notice_ns_ = now;
  verbs_.notice(text);
}

void Summation::sum_without(TimeNs now, Partition& partition, const WaitLimit::Outcome& outcome) {
  notice_late(now, outcome.text + ": the sum was made without the rest");
  for (const std::uint16_t worker : outcome.late) {
    ++late_pushes_;
    partition.late[worker] = true;
    // Its push must find a receive, so that the next one meets the next receive.
    if (partition.pushes[worker] == Push::kIdle) {
      if (partition.on_demand[worker]) ++partition.early_receives[worker];
      posts_.expect_push(now, partition, worker);
    } else if (partition.pushes[worker] == Push::kPosted) {
      posts_.cancel_push(now, partition, worker);
    }
  }
  advance(now, partition);
}

void Summation::give_up(TimeNs now, Partition& partition, const std::vector<std::uint16_t>& workers,
                        const std::string& text) {
  verbs_.notice(text);
  if (!gone_.may_lose(workers.size())) {
    partition.overdue = text;
    return fail_and_announce(now, partition, workers.front());
  }
  encode(Overdue{partition.shape.key, partition.shape.partition, workers.front(), text}, scratch_);
  const std::vector<std::byte> message = scratch_;
  for (const std::uint16_t worker : workers) {
    verbs_.send_message(worker, message);
    lose(now, worker);
  }
}

void Summation::fail(TimeNs now, Partition& partition, std::uint16_t rank) {
  if (partition.has_failed()) return;
  partition.failed_rank = rank;
  deadlines_.clear(partition.index);
  // PROTOCOL 14.1.10: When more workers are gone than it may sum without, the service MUST cancel the pushes that are
  //     still coming, let the results of complete sums arrive, then send aborted to every other worker, and cancel the
  //     results of incomplete sums.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (partition.pushes[worker] == Push::kPosted) {
      posts_.cancel_push(now, partition, worker);
    }
  }
}

// Waits until the results of complete sums have arrived: a worker that leaves after the last iteration must not
// deprive the others of them.
void Summation::announce_failure(TimeNs now, Partition& partition) {
  const bool is_summed = partition.is_summed();
  // Not for a worker that came too late to its round: it may never take the result.
  if (partition.sums.before().has_due_result() || (is_summed && partition.sums.sum().has_due_result())) return;
  if (std::exchange(partition.is_failure_announced, true)) return;
  partition.encode_failure(scratch_);
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    // A late worker, or one whose data arrived changed, lives, and learns that the others did not wait.
    const bool is_reached = worker != partition.failed_rank || !partition.overdue.empty() || !partition.damage.empty();
    if (is_reached && partition.registered[worker]) verbs_.send_message(worker, scratch_);
  }
  if (is_summed || partition.sums.sum().sending == 0) return;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    posts_.cancel_result(now, partition, worker, partition.sums.current());
  }
}

void Summation::fail_and_announce(TimeNs now, Partition& partition, std::uint16_t rank) {
  fail(now, partition, rank);
  announce_failure(now, partition);
}

void Summation::on_peer_up(TimeNs now, std::uint16_t peer) { survivors_.on_peer_up(now, peer); }

void Summation::on_peer_down(TimeNs now, std::uint16_t peer) {
  // Nothing to agree on: every sum needs every worker.
  if (peer < config_.workers && !has_spare()) {
    survivors_.on_gone(now, peer);
    return on_gone(now, peer);
  }
  lose(now, peer);
}

void Summation::lose(TimeNs now, std::uint16_t peer) {
  survivors_.on_lost(now, peer);
  apply_exclusions(now);
  if (peer >= config_.workers || !gone_.is_undecided(peer)) return;
  posts_.forget(peer);
  for (const auto& partition : partitions_.all()) {
    if (partition->pushes[peer] == Push::kWaiting) partition->pushes[peer] = Push::kIdle;
    if (!partition->has_failed()) advance(now, *partition);
  }
}

void Summation::apply_exclusions(TimeNs now) {
  while (const auto rank = survivors_.poll_excluded()) {
    if (*rank < config_.workers) {
      on_gone(now, *rank);
    } else if (!out_text().empty()) {
      end(now);
    }
  }
}

// The workers have left it, or will: they know why, or learn it from each other.
void Summation::end(TimeNs now) {
  verbs_.excluded(out_text());
  for (const auto& partition : partitions_.all()) {
    partition->is_failure_announced = true;
    fail(now, *partition, std::max(config_.rank, config_.workers));
  }
}

// Every sum needs every worker, including one that has not registered for it yet, but for as many as may be dead.
void Summation::on_gone(TimeNs now, std::uint16_t peer) {
  if (gone_.contains(peer) || !out_text().empty()) return;
  if (!gone_.add(peer)) {
    for (const auto& partition : partitions_.all()) fail_and_announce(now, *partition, peer);
    return;
  }
  // PROTOCOL 14.1.16: Where it may sum without a worker that is gone, a service MUST send gone to every other worker,
  //     and again to one that registers later, and end iterations, that in progress included, without the rest of its
  //     push.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!gone_.contains(worker)) gone_.inform(worker, peer);
  }
  posts_.forget(peer);
  for (const auto& partition : partitions_.all()) lose_worker(now, *partition, peer);
}

void Summation::lose_worker(TimeNs now, Partition& partition, std::uint16_t worker) {
  partition.sums.remove_receiver(worker);
  if (partition.has_failed()) return announce_failure(now, partition);
  if (partition.sums.is_repeated() && !partition.is_summed()) {  // a result that it alone has may be missing
    return fail_and_announce(now, partition, worker);
  }
  // The worker may still be connected: what is posted to or from it ends by this at the latest, and it is told.
  if (partition.registered[worker]) {
    encode(Overdue{partition.shape.key, partition.shape.partition, worker,
                   "the sums continue without rank " + std::to_string(worker) + ", which failed or was late"},
           scratch_);
    verbs_.send_message(worker, scratch_);
  }
  if (partition.pushes[worker] == Push::kPosted) posts_.cancel_push(now, partition, worker);
  for (const std::uint8_t buffer : {std::uint8_t{0}, std::uint8_t{1}}) {
    if (!partition.sums.buffer(buffer).results[worker].is_pending) continue;
    posts_.cancel_result(now, partition, worker, buffer);
  }
  if (partition.pushes[worker] == Push::kUnchecked) {
    end_push_unchecked(now, partition, worker);
  } else if (partition.pushes[worker] == Push::kIdle || partition.pushes[worker] == Push::kWaiting) {
    end_push(now, partition, worker);
  }
  if (partition.takeover.is_waiting()) return begin_takeover(now, partition);
  limit_wait(now, partition);
  advance(now, partition);
}

TimeNs Summation::next_timeout() const {
  return std::min(
      {deadlines_.next(), given_up_.empty() ? base::kNever : given_up_.front().fails_ns, survivors_.next_timeout()});
}

void Summation::on_timeout(TimeNs now) {
  survivors_.on_timeout(now);
  apply_exclusions(now);
  while (!given_up_.empty() && given_up_.front().fails_ns <= now) {
    const GivenUp one = given_up_.front();
    given_up_.pop_front();
    if (gone_.contains(one.worker)) continue;
    fail_and_announce(now, partitions_[one.partition], one.worker);
  }
  while (const auto due = deadlines_.poll(now)) {
    Partition& partition = partitions_[*due];
    if (partition.takeover.is_waiting()) {
      close_takeover(now, partition);
    } else {
      close_round(now, partition);
    }
  }
}

}  // namespace mlt::collective
