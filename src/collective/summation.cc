#include "collective/summation.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "collective/collective.h"
#include "collective/registration.h"
#include "core/loss_bound.h"

namespace mlt::collective {

namespace {

// Of the ranks that an error names; the rest is counted, so that what follows them is not cut off.
constexpr std::size_t kMaxNames = 16;

std::string names_of(const std::vector<std::uint16_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMaxNames); ++i) {
    text += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]);
  }
  return ranks.size() <= kMaxNames ? text : text + " and " + std::to_string(ranks.size() - kMaxNames) + " more";
}

}  // namespace

Summation::Summation(const SummationConfig& config, Verbs& verbs)
    : config_(config),
      verbs_(verbs),
      survivors_({std::max(config.rank, config.workers), config.workers, config.services, config.max_takeover_wait_ns},
                 verbs),
      gone_(config.workers) {
  survivors_.set_limits(config.max_dead_workers, 0);
}

// Local id: partition, worker, buffer, direction.
OperationId Summation::operation(const Partition& partition, std::uint16_t worker, std::uint8_t buffer,
                                 bool is_send) const {
  return machine_operation(MachineId::kSummation, (std::uint64_t{partition.index} << 18) |
                                                      (std::uint64_t{worker} << 2) | (std::uint64_t{buffer} << 1) |
                                                      (is_send ? 1U : 0U));
}

void Summation::on_message(TimeNs now, std::uint16_t from, const Message& message) {
  if (const auto* shape = std::get_if<Register>(&message)) on_register(now, from, *shape, nullptr);
  if (const auto* move = std::get_if<Move>(&message)) on_register(now, from, move->shape, move);
  if (const auto* ready = std::get_if<Ready>(&message)) on_ready(now, from, *ready);
  if (const auto* lost = std::get_if<Lost>(&message)) survivors_.on_message(now, from, *lost);
  if (const auto* excluded = std::get_if<Excluded>(&message)) survivors_.on_message(now, from, *excluded);
  apply_exclusions(now);
}

void Summation::on_ready(TimeNs now, std::uint16_t from, const Ready& ready) {
  const auto found = by_key_.find({ready.key, ready.partition});
  if (found == by_key_.end()) return;
  Partition& partition = *partitions_[found->second];
  // PROTOCOL 14.1.7: The service MUST post the receive then, and not before.
  if (from >= config_.workers || !partition.on_demand[from]) return;
  if (partition.early_receives[from] > 0) {  // that of a late push, whose receive is posted
    --partition.early_receives[from];
    return;
  }
  // The worker has its whole result, and results of the round before are still in progress.
  if (partition.pushes[from] == Push::kArrived) partition.ready[from] = true;
  expect_push(now, partition, from);
}

void Summation::refuse(std::uint16_t to, const Register& shape, const std::string& text) {
  encode(Refused{shape.key, shape.partition, text}, scratch_);
  verbs_.send_message(to, scratch_);
}

std::unique_ptr<Summation::Partition> Summation::make_partition(const Register& shape) {
  auto made = std::make_unique<Partition>(shape, static_cast<std::uint32_t>(partitions_.size()), config_.workers,
                                          begun_results_);
  made->failed_rank = gone_worker_;
  made->sums.expect(static_cast<std::uint16_t>(config_.workers - gone_count_));
  made->arrived = gone_count_;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_[worker]) made->pushes[worker] = Push::kArrived;
  }
  return made;
}

Summation::Partition* Summation::find_or_make(std::uint16_t from, const Register& shape, bool is_takeover) {
  const auto found = by_key_.find({shape.key, shape.partition});
  if (found != by_key_.end()) return partitions_[found->second].get();
  const auto refused = [&](const std::string& text) {
    refuse(from, shape, text);
    return nullptr;
  };
  const std::uint64_t bytes = PartitionSums::cost_bytes(shape, config_.workers) +
                              (is_takeover ? Takeover::cost_bytes(PartitionSums::cells_of(shape), config_.workers) : 0);
  if (bytes > config_.max_bytes - bytes_held_) {
    return refused("the service's memory limit of " + std::to_string(config_.max_bytes) +
                   " bytes is reached: start more services or raise the limit");
  }
  if ((partitions_.size() + 1) * config_.workers > config_.max_registrations) {
    return refused("the service's limit of " + std::to_string(config_.max_registrations / config_.workers) +
                   " partitions is reached: start more services or use fewer keys");
  }
  const std::size_t count = partitions_.size();
  try {
    partitions_.push_back(make_partition(shape));
    partitions_.back()->first_worker = from;
    by_key_.emplace(std::pair{shape.key, shape.partition}, static_cast<std::uint32_t>(count));
  } catch (const std::bad_alloc&) {  // the limit exceeds the host's memory: report it to the job; the service continues
    partitions_.resize(count);
    return refused("the service's host is out of memory: start more services");
  }
  bytes_held_ += bytes;
  if (is_takeover) partitions_.back()->takeover = Takeover(config_.workers);
  return partitions_.back().get();
}

void Summation::on_register(TimeNs now, std::uint16_t from, const Register& shape, const Move* move) {
  if (from >= config_.workers) {
    return refuse(from, shape, "rank " + std::to_string(from) + " is not a worker of this service");
  }
  // PROTOCOL 14.2.7: ... It MUST do the same, and not send refused, where it receives register or move.
  // The worker would take a refusal for that of its tensor.
  if (survivors_.is_out_by_view()) return survivors_.inform(now, from);
  if (!out_text().empty()) return refuse(from, shape, out_text());
  if (config_.services > 1 && survivors_.is_excluded(from)) return survivors_.inform(now, from);
  if (gone_[from]) {
    return refuse(from, shape, "this service sums without rank " + std::to_string(from) + ", which failed or was late");
  }
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_[worker]) send_gone(from, worker);  // which may have gone before that rank had a push-pull
  }
  survivors_.inform(now, from);
  if (const std::string text = rejection(from, shape, verbs_.grid_bytes(from), move); !text.empty()) {
    return refuse(from, shape, text);
  }
  Partition* found = find_or_make(from, shape, move != nullptr);
  if (found == nullptr) return;
  Partition& partition = *found;
  if (const std::string text = difference(from, shape, partition.first_worker, partition.shape); !text.empty()) {
    // PROTOCOL 14.1.5: ... Where it differs from another worker's, the service MUST also send refused, with both
    //     workers and their tensors, to every worker that registered the partition and to every one that registers it
    //     later, and end its iterations as 14.1.10 says.
    refuse(from, shape, text);
    if (partition.failed_rank >= 0) return;
    partition.refusal = text;
    fail(now, partition, from);
    return announce_failure(now, partition);
  }
  if (partition.failed_rank >= 0) {
    verbs_.send_message(from, failure_of(partition));
    return;
  }
  survivors_.raise_max_dead_services(now, shape.max_dead_services);
  if (!partition.registered[from]) {
    partition.registered[from] = true;
    partition.sums.add_receiver(from, verbs_.segment_bytes(from) / shape.segment_bytes);
    const bool has_part = move != nullptr && (move->rounds > 0 || !move->cells.empty());
    if (partition.takeover.is_waiting()) {
      // A worker that registers has nothing of it.
      partition.takeover.report(from, move != nullptr ? move->rounds : 0,
                                move != nullptr ? move->cells : std::vector<std::byte>());
      // All others took part in those rounds: they notice soon that the service is gone.
      if (has_part && partition.closes_ns == base::kNever) {
        partition.closes_ns = base::after(now, config_.max_takeover_wait_ns);
        timers_.emplace(partition.closes_ns, partition.index);
      }
      return begin_takeover(now, partition);
    }
    if (has_part) {
      const std::string text = "rank " + std::to_string(from) + " has had results of it from another service, rank " +
                               std::to_string(partition.first_worker) +
                               " registered it here at once: workers see different services as gone";
      partition.refusal = text;
      fail(now, partition, from);
      return announce_failure(now, partition);
    }
    // Others wait for its first push from now on.
    limit_wait(now, partition);
    partition.on_demand[from] = standing_ >= config_.max_standing;
    if (!partition.on_demand[from]) {
      ++standing_;
      expect_push(now, partition, from);
    }
  }
  if (partition.takeover.is_waiting()) return;  // its answer follows
  encode(Registered{shape.key, shape.partition, partition.on_demand[from]}, scratch_);
  verbs_.send_message(from, scratch_);
}

// Once every worker has reported.
void Summation::begin_takeover(TimeNs now, Partition& partition) {
  const auto outcome = partition.takeover.finish(gone_, PartitionSums::cells_of(partition.shape));
  if (!outcome) return;
  stop_waiting(partition);
  if (outcome->has_newer) {
    partition.overdue = "key " + std::to_string(partition.shape.key) + ", partition " +
                        std::to_string(partition.shape.partition) + ": its service is gone, and rank " +
                        std::to_string(outcome->slowest) + " has had " + std::to_string(outcome->rounds) +
                        " results, rank " + std::to_string(outcome->fastest) + " " + std::to_string(outcome->newest) +
                        " and parts of more: no worker has all that the others lack";
    fail(now, partition, outcome->slowest);
    return announce_failure(now, partition);
  }
  partition.sums.repeat(outcome->repetition);
  partition.sums.expect(static_cast<std::uint16_t>(config_.workers - gone_count_));
  // PROTOCOL 14.1.22: It MUST then send moved, with the smallest number of results, to all of them, and sum the
  //     iteration after these from the segments of the result that any worker has, and the pushes of the others.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (gone_[worker]) continue;
    partition.on_demand[worker] = standing_ >= config_.max_standing;
    if (!partition.on_demand[worker]) {
      ++standing_;
      expect_push(now, partition, worker);
    }
    encode(Moved{partition.shape.key, partition.shape.partition, outcome->rounds, partition.on_demand[worker]},
           scratch_);
    verbs_.send_message(worker, scratch_);
  }
}

void Summation::expect_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  // One whose connection is lost has no push until the survivors have decided about it.
  if (partition.failed_rank >= 0 || partition.pushes[worker] != Push::kIdle || is_undecided(worker)) return;
  partition.pushes[worker] = Push::kWaiting;
  if (!unposted_pushes_.empty() || !post_push(now, partition, worker)) {
    unposted_pushes_.push_back({partition.index, worker, partition.sums.current()});
  }
}

void Summation::send_results(TimeNs now, Partition& partition) {
  Buffer& sum = partition.sums.sum();
  if (std::exchange(sum.posting, true)) return;
  const std::uint8_t buffer = partition.sums.current();
  const auto is_receiver = [&](std::uint16_t worker) { return !gone_[worker] && !partition.sums.has_result(worker); };
  sum.sending = 0;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    PartitionSums::Result& result = sum.results[worker];
    result.is_pending = is_receiver(worker);
    result.is_late = partition.late[worker];
    if (result.is_pending) ++sum.sending;
  }
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!is_receiver(worker)) continue;
    if (!unposted_results_.empty() || !post_result(now, partition, worker, buffer)) {
      unposted_results_.push_back({partition.index, worker, buffer});
    }
  }
}

bool Summation::post_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  core::ReceiveRequest request;
  request.operation = operation(partition, worker, partition.sums.current(), false);
  request.peer = worker;
  request.tag = partition_tag(partition.shape.key, partition.shape.partition);
  request.element = wire::ElementType::kFloat32;
  // PROTOCOL 14.1.8: A push MAY lose up to the bound.
  request.loss_bound = partition.shape.loss_bound;
  partition.sums.receive(request, worker);
  // A worker may take any time between two iterations; its connection reports its death.
  request.timeout_ns = base::kNever;
  const core::PostStatus status = verbs_.post_recv(now, request);
  if (core::may_retry(status)) return false;
  if (status == core::PostStatus::kPosted) {
    partition.pushes[worker] = Push::kPosted;
    if (partition.late[worker]) cancel_late(now, partition, worker);
  } else {
    fail(now, partition, worker);
    announce_failure(now, partition);
  }
  return true;
}

bool Summation::post_result(TimeNs now, Partition& partition, std::uint16_t worker, std::uint8_t buffer) {
  Buffer& sent = partition.sums.buffer(buffer);
  // A sum that will never be complete.
  if ((partition.failed_rank >= 0 && buffer == partition.sums.current() && !partition.is_summed()) ||
      is_undecided(worker)) {
    end_result(sent, worker);
    return true;
  }
  core::SendRequest request;
  request.operation = operation(partition, worker, buffer, true);
  request.peer = worker;
  request.tag = partition_tag(partition.shape.key, partition.shape.partition);
  request.data = std::as_bytes(std::span(sent.values));
  request.element = wire::ElementType::kFloat32;
  request.order = partition.shape.order;
  request.uniform_priority =
      core::SegmentPriority::important(partition.shape.traffic_class & core::SegmentPriority::kClassMask);
  request.feed = &sent.results[worker].feed;
  request.may_have_parity = true;
  request.timeout_ns = base::kNever;
  const core::PostStatus status = verbs_.post_send(now, request);
  if (core::may_retry(status)) return false;
  if (status != core::PostStatus::kPosted) {
    end_result(sent, worker);
    fail(now, partition, worker);
    announce_failure(now, partition);
  }
  return true;
}

// Results first: workers wait for them, and each one sent frees space.
void Summation::retry(TimeNs now) {
  while (!unposted_results_.empty()) {
    const Unposted first = unposted_results_.front();
    if (!post_result(now, *partitions_[first.partition], first.worker, first.buffer)) break;
    unposted_results_.pop_front();
  }
  for (const std::uint32_t index : std::exchange(begun_results_, {})) {
    Partition& partition = *partitions_[index];
    // The round may be over since.
    if (partition.failed_rank < 0 && partition.sums.sum().begun) send_results(now, partition);
  }
  while (!unposted_pushes_.empty()) {
    const Unposted& first = unposted_pushes_.front();
    Partition& partition = *partitions_[first.partition];
    if (partition.failed_rank < 0 && !post_push(now, partition, first.worker)) break;
    unposted_pushes_.pop_front();
  }
}

void Summation::on_completion(TimeNs now, const core::Completion& completion) {
  const std::uint64_t local = local_of(completion.operation);
  Partition& partition = *partitions_[local >> 18];
  const auto worker = static_cast<std::uint16_t>((local >> 2) & 0xFFFF);
  const bool is_send = (local & 1U) != 0;
  if (is_send) {
    Buffer& sent = partition.sums.buffer((local >> 1) & 1U);
    MLT_CHECK(sent.sending > 0);
    end_result(sent, worker);
  } else {
    MLT_CHECK(partition.pushes[worker] == Push::kPosted);
    partition.pushes[worker] = Push::kArrived;
  }
  const bool is_failure = core::is_failure(completion.status);
  if (is_failure && is_undecided(worker) && partition.failed_rank < 0) {
    if (!is_send) partition.pushes[worker] = Push::kIdle;
    return advance(now, partition);
  }
  // Of a worker that is gone, or of one whose push this service cancelled: its share counts as loss.
  const bool is_loss =
      gone_[worker] || (!is_send && partition.late[worker] && completion.status == core::CompletionStatus::kCancelled);
  // A worker cancels a push, or the receive of a result, where its push-pull of the key has failed, as when its
  // connection with another service broke: it takes no further part, and is dead for the sums.
  const bool has_given_up =
      !is_loss && completion.status == core::CompletionStatus::kCancelled && partition.failed_rank < 0;
  if (has_given_up && may_lose(1)) {
    if (!is_send) partition.pushes[worker] = Push::kIdle;
    lose(now, worker);
    return partition.failed_rank < 0 ? advance(now, partition) : announce_failure(now, partition);
  }
  // Or it has left this service, which has yet to learn that it is excluded.
  if (has_given_up && config_.services > 1 && has_spare()) {
    if (!is_send) partition.pushes[worker] = Push::kIdle;
    given_up_.push_back({base::after(now, Survivors::kDecisionWaitNs), partition.index, worker});
    return;
  }
  if (is_failure && !is_loss) fail(now, partition, worker);
  if (partition.failed_rank >= 0) return announce_failure(now, partition);
  if (!is_send) {
    partition.has_push = partition.has_push || !is_failure;
    if (!is_loss) partition.missing_bytes += completion.missing_bytes;
    end_push(now, partition, worker);
    limit_wait(now, partition);
  }
  advance(now, partition);
}

void Summation::end_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  partition.pushes[worker] = Push::kArrived;
  if (++partition.arrived == config_.workers) on_pushed(now, partition);
}

void Summation::advance(TimeNs now, Partition& partition) {
  // The buffer of the round before must not be rewritten before every worker has received its result.
  // PROTOCOL 14.1.9: A service MUST end an iteration, and post the receives of the next, when the push of every worker
  //     has completed and every result of the iteration before has left.
  if (partition.is_summed() && partition.sums.before().sending == 0) return begin_round(now, partition);
  // Nor may a worker that takes no result hold the others for longer than they wait for its push.
  if (partition.is_summed() && config_.max_wait_ns > 0 && partition.closes_ns == base::kNever) {
    partition.closes_ns = base::after(now, config_.max_wait_ns);
    timers_.emplace(partition.closes_ns, partition.index);
  }
}

void Summation::on_pushed(TimeNs now, Partition& partition) {
  stop_waiting(partition);
  report_gone();
  partition.sums.end_round();
  ++rounds_summed_;
  send_results(now, partition);
}

void Summation::begin_round(TimeNs now, Partition& partition) {
  stop_waiting(partition);
  partition.sums.begin_round(static_cast<std::uint16_t>(config_.workers - gone_count_));
  partition.arrived = gone_count_;
  partition.has_push = partition.is_closed = false;
  partition.missing_bytes = 0;
  // A push may arrive as soon as its worker has the result of the round before.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    partition.late[worker] = false;
    if (gone_[worker]) continue;
    partition.pushes[worker] = Push::kIdle;
    if (partition.ready[worker] || !partition.on_demand[worker]) expect_push(now, partition, worker);
    partition.ready[worker] = false;
  }
}

void Summation::fail(TimeNs now, Partition& partition, std::uint16_t rank) {
  if (partition.failed_rank >= 0) return;
  partition.failed_rank = rank;
  stop_waiting(partition);
  // PROTOCOL 14.1.10: When more workers are gone than it may sum without, the service MUST cancel the pushes that are
  //     still coming, let the results of complete sums arrive, then send aborted to every other worker, and cancel the
  //     results of incomplete sums.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (partition.pushes[worker] == Push::kPosted) {
      verbs_.cancel(now, operation(partition, worker, partition.sums.current(), false), core::CompletionKind::kReceive);
    }
  }
}

std::span<const std::byte> Summation::failure_of(const Partition& partition) {
  const Register& shape = partition.shape;
  if (!partition.refusal.empty()) {
    encode(Refused{shape.key, shape.partition, partition.refusal}, scratch_);
  } else if (!partition.overdue.empty()) {
    encode(Overdue{shape.key, shape.partition, static_cast<std::uint16_t>(partition.failed_rank), partition.overdue},
           scratch_);
  } else {
    encode(Aborted{shape.key, shape.partition, static_cast<std::uint16_t>(partition.failed_rank)}, scratch_);
  }
  return scratch_;
}

// Waits until the results of complete sums have arrived: a worker that leaves after the last iteration must not
// deprive the others of them.
void Summation::announce_failure(TimeNs now, Partition& partition) {
  const bool is_summed = partition.is_summed();
  // Not for a worker that came too late to its round: it may never take the result.
  if (has_due_result(partition.sums.before()) || (is_summed && has_due_result(partition.sums.sum()))) return;
  if (std::exchange(partition.is_failure_announced, true)) return;
  const std::span<const std::byte> message = failure_of(partition);
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    // A late worker lives, and learns that the others did not wait.
    const bool is_reached = worker != partition.failed_rank || !partition.overdue.empty();
    if (is_reached && partition.registered[worker]) verbs_.send_message(worker, message);
  }
  if (is_summed || partition.sums.sum().sending == 0) return;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    verbs_.cancel(now, operation(partition, worker, partition.sums.current(), true), core::CompletionKind::kSend);
  }
}

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
  if (peer >= config_.workers || !is_undecided(peer)) return;
  forget_posts(peer);
  for (const auto& partition : partitions_) {
    if (partition->pushes[peer] == Push::kWaiting) partition->pushes[peer] = Push::kIdle;
    if (partition->failed_rank < 0) advance(now, *partition);
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
  for (const auto& partition : partitions_) {
    partition->is_failure_announced = true;
    fail(now, *partition, std::max(config_.rank, config_.workers));
  }
}

// Every sum needs every worker, including one that has not registered for it yet, but for as many as may be dead.
void Summation::on_gone(TimeNs now, std::uint16_t peer) {
  if (gone_[peer] || !out_text().empty()) return;
  gone_[peer] = true;
  ++gone_count_;
  if (gone_count_ > config_.max_dead_workers || gone_count_ == config_.workers) {
    if (gone_worker_ < 0) gone_worker_ = peer;
    for (const auto& partition : partitions_) {
      fail(now, *partition, peer);
      announce_failure(now, *partition);
    }
    return;
  }
  unreported_.push_back(peer);
  // PROTOCOL 14.1.16: Where it may sum without a worker that is gone, a service MUST send gone to every other worker,
  //     and again to one that registers later, and end iterations, that in progress included, without the rest of its
  //     push.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!gone_[worker]) send_gone(worker, peer);
  }
  forget_posts(peer);
  for (const auto& partition : partitions_) lose_worker(now, *partition, peer);
}

void Summation::send_gone(std::uint16_t worker, std::uint16_t gone) {
  encode(Gone{gone, config_.max_dead_workers}, scratch_);
  verbs_.send_message(worker, scratch_);
}

void Summation::end_result(Buffer& buffer, std::uint16_t worker) {
  buffer.results[worker].is_pending = false;
  --buffer.sending;
}

bool Summation::has_due_result(const Buffer& buffer) {
  return std::ranges::any_of(buffer.results,
                             [](const PartitionSums::Result& result) { return result.is_pending && !result.is_late; });
}

// Only when a sum lacks their share: all workers leave at the end of a job.
void Summation::report_gone() {
  for (const std::uint16_t worker : std::exchange(unreported_, {})) {
    const std::string error = verbs_.peer_error(worker);
    const std::string cause = survivors_.is_lost(worker) ? " failed or left the job" : " was left behind by the others";
    verbs_.notice((error.empty() ? "worker rank " + std::to_string(worker) + cause : error) +
                  ": the sums continue without it (" + std::to_string(gone_count_) + " of at most " +
                  std::to_string(config_.max_dead_workers) + " workers gone)");
  }
}

// Posts that wait for space; results for it are no longer due.
void Summation::forget_posts(std::uint16_t worker) {
  for (const Unposted& one : unposted_results_) {
    if (one.worker == worker) end_result(partitions_[one.partition]->sums.buffer(one.buffer), worker);
  }
  const auto is_of_worker = [&](const Unposted& one) { return one.worker == worker; };
  std::erase_if(unposted_results_, is_of_worker);
  std::erase_if(unposted_pushes_, is_of_worker);
}

void Summation::lose_worker(TimeNs now, Partition& partition, std::uint16_t worker) {
  partition.sums.remove_receiver(worker);
  if (partition.failed_rank >= 0) return announce_failure(now, partition);
  if (partition.sums.is_repeated() && !partition.is_summed()) {  // a result that it alone has may be missing
    fail(now, partition, worker);
    return announce_failure(now, partition);
  }
  // The worker may still be connected: what is posted to or from it ends by this at the latest, and it is told.
  if (partition.registered[worker]) {
    encode(Overdue{partition.shape.key, partition.shape.partition, worker,
                   "the sums continue without rank " + std::to_string(worker) + ", which failed or was late"},
           scratch_);
    verbs_.send_message(worker, scratch_);
  }
  if (partition.pushes[worker] == Push::kPosted) cancel_late(now, partition, worker);
  for (const std::uint8_t buffer : {std::uint8_t{0}, std::uint8_t{1}}) {
    if (!partition.sums.buffer(buffer).results[worker].is_pending) continue;
    verbs_.cancel(now, operation(partition, worker, buffer, true), core::CompletionKind::kSend);
  }
  if (partition.pushes[worker] == Push::kIdle || partition.pushes[worker] == Push::kWaiting) {
    end_push(now, partition, worker);
  }
  if (partition.takeover.is_waiting()) return begin_takeover(now, partition);
  limit_wait(now, partition);
  advance(now, partition);
}

void Summation::limit_wait(TimeNs now, Partition& partition) {
  if (config_.max_wait_ns <= 0 || partition.closes_ns != base::kNever || partition.is_closed || !partition.has_push ||
      partition.failed_rank >= 0 || partition.is_summed()) {
    return;
  }
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!gone_[worker] && !partition.registered[worker]) return;
  }
  partition.closes_ns = base::after(now, config_.max_wait_ns);
  timers_.emplace(partition.closes_ns, partition.index);
}

void Summation::stop_waiting(Partition& partition) {
  if (partition.closes_ns == base::kNever) return;
  timers_.erase({partition.closes_ns, partition.index});
  partition.closes_ns = base::kNever;
}

TimeNs Summation::next_timeout() const {
  return std::min({timers_.empty() ? base::kNever : timers_.begin()->first,
                   given_up_.empty() ? base::kNever : given_up_.front().fails_ns, survivors_.next_timeout()});
}

void Summation::on_timeout(TimeNs now) {
  survivors_.on_timeout(now);
  apply_exclusions(now);
  while (!given_up_.empty() && given_up_.front().fails_ns <= now) {
    const GivenUp one = given_up_.front();
    given_up_.pop_front();
    if (gone_[one.worker]) continue;
    fail(now, *partitions_[one.partition], one.worker);
    announce_failure(now, *partitions_[one.partition]);
  }
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Partition& partition = *partitions_[timers_.begin()->second];
    stop_waiting(partition);
    if (partition.takeover.is_waiting()) {
      close_takeover(now, partition);
    } else {
      close_round(now, partition);
    }
  }
}

// Of the terms of the workers that are not gone, where the pushes of so many are not complete.
std::uint64_t Summation::missing_elements(Partition& partition, std::size_t late) const {
  const std::size_t live = static_cast<std::size_t>(config_.workers - gone_count_);
  // What of a worker that died in this round is in which segment is not known: take the late ones' shares whole.
  if (partition.sums.expected() != live) {
    return late * partition.shape.elements + partition.missing_bytes / sizeof(float);
  }
  return partition.sums.missing_elements(live);
}

// PROTOCOL 14.1.17: A service that limits how long it waits for pushes MUST then end the iteration without the rest of
//     the late ones, if no more of all workers' terms is missing than the bound, or else sum without their workers as
//     if these were gone, where it may, or else send overdue to every worker that registered the partition, and end its
//     iterations as 14.1.10 says.
void Summation::close_round(TimeNs now, Partition& partition) {
  const bool waits_for_results = partition.is_summed();
  std::vector<std::uint16_t> late;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    const bool is_over = waits_for_results ? !partition.sums.before().results[worker].is_pending
                                           : partition.pushes[worker] == Push::kArrived;
    if (!is_over && !gone_[worker]) late.push_back(worker);
  }
  const std::string names = names_of(late);
  partition.is_closed = true;
  if (late.empty()) return;  // the transfers with workers that are gone are about to end
  const Register& shape = partition.shape;
  const std::string what = "key " + std::to_string(shape.key) + ", partition " + std::to_string(shape.partition);
  const std::string limit = std::to_string(config_.max_wait_ns / base::kMillisecond) + " ms";
  if (waits_for_results) {
    return give_up(now, partition, late, what + ": " + names + " did not take a result for " + limit + " (max_wait)");
  }
  const std::uint64_t missing = missing_elements(partition, late.size());
  if (missing == 0 && shape.elements > 0) return;  // all has arrived, and the receives are about to end
  const std::uint64_t terms = std::uint64_t{shape.elements} * (config_.workers - gone_count_);
  const std::string text = what + ": no push of " + names + " within " + limit + " after the first (max_wait)";
  if (partition.sums.is_repeated()) return give_up(now, partition, late, text + ", of a round that is repeated");
  if (!core::is_within_bound(missing, terms, shape.loss_bound)) {
    return give_up(now, partition, late,
                   text + "; " + std::to_string(missing) + " of the " + std::to_string(terms) +
                       " terms are missing, more than the loss bound " + in_short(shape.loss_bound) + " allows");
  }
  if (late_notice_ns_ == base::kNever || now - late_notice_ns_ >= base::kSecond) {
    late_notice_ns_ = now;
    verbs_.notice(text + ": the sum was made without the rest");
  }
  for (const std::uint16_t worker : late) {
    ++late_pushes_;
    partition.late[worker] = true;
    // Its push must find a receive, so that the next one meets the next receive.
    if (partition.pushes[worker] == Push::kIdle) {
      if (partition.on_demand[worker]) ++partition.early_receives[worker];
      expect_push(now, partition, worker);
    } else if (partition.pushes[worker] == Push::kPosted) {
      cancel_late(now, partition, worker);
    }
  }
}

// Workers that did not report that the service is gone, although others did.
void Summation::close_takeover(TimeNs now, Partition& partition) {
  std::vector<std::uint16_t> silent;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!gone_[worker] && !partition.takeover.has_report(worker)) silent.push_back(worker);
  }
  if (silent.empty()) return;
  partition.overdue = "key " + std::to_string(partition.shape.key) + ", partition " +
                      std::to_string(partition.shape.partition) + ": its service is gone for rank " +
                      std::to_string(partition.first_worker) + ", but not for " + names_of(silent) + ", after " +
                      std::to_string(config_.max_takeover_wait_ns / base::kSecond) +
                      " s: check the network between that service and each of them";
  verbs_.notice(partition.overdue);
  fail(now, partition, partition.first_worker);
  announce_failure(now, partition);
}

void Summation::give_up(TimeNs now, Partition& partition, const std::vector<std::uint16_t>& workers,
                        const std::string& text) {
  verbs_.notice(text);
  if (!may_lose(workers.size())) {
    partition.overdue = text;
    fail(now, partition, workers.front());
    return announce_failure(now, partition);
  }
  encode(Overdue{partition.shape.key, partition.shape.partition, workers.front(), text}, scratch_);
  const std::vector<std::byte> message = scratch_;
  for (const std::uint16_t worker : workers) {
    verbs_.send_message(worker, message);
    lose(now, worker);
  }
}

void Summation::cancel_late(TimeNs now, Partition& partition, std::uint16_t worker) {
  verbs_.cancel(now, operation(partition, worker, partition.sums.current(), false), core::CompletionKind::kReceive);
}

}  // namespace mlt::collective
