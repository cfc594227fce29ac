#include "collective/service_posts.h"

#include <utility>

namespace mlt::collective {

// Partition, worker, buffer, direction.
OperationId ServicePosts::Id::operation() const {
  return machine_operation(MachineId::kSummation, (std::uint64_t{partition} << 18) | (std::uint64_t{worker} << 2) |
                                                      (std::uint64_t{buffer} << 1) | (is_send ? 1U : 0U));
}

ServicePosts::Id ServicePosts::Id::of(OperationId operation) {
  const std::uint64_t local = local_of(operation);
  return {static_cast<std::uint32_t>(local >> 18), static_cast<std::uint16_t>((local >> 2) & 0xFFFF),
          static_cast<std::uint8_t>((local >> 1) & 1U), (local & 1U) != 0};
}

bool ServicePosts::take_standing() {
  if (standing_ >= max_standing_) return false;
  ++standing_;
  return true;
}

void ServicePosts::expect_push(TimeNs now, ServicePartition& partition, std::uint16_t worker) {
  // One whose connection is lost has no push until the survivors have decided about it.
  if (partition.has_failed() || partition.pushes[worker] != Push::kIdle || gone_.is_undecided(worker)) return;
  partition.pushes[worker] = Push::kWaiting;
  if (!unposted_pushes_.empty() || !post_push(now, partition, worker)) {
    unposted_pushes_.push_back({partition.index, worker, partition.sums.current(), false});
  }
}

void ServicePosts::send_results(TimeNs now, ServicePartition& partition) {
  PartitionSums::Buffer& sum = partition.sums.sum();
  if (std::exchange(sum.posting, true)) return;
  const std::uint8_t buffer = partition.sums.current();
  const auto is_receiver = [&](std::uint16_t worker) {
    return !gone_.contains(worker) && !partition.sums.has_result(worker);
  };
  sum.sending = 0;
  for (std::uint16_t worker = 0; worker < gone_.workers(); ++worker) {
    PartitionSums::Result& result = sum.results[worker];
    result.is_pending = is_receiver(worker);
    result.is_late = partition.late[worker];
    if (result.is_pending) ++sum.sending;
  }
  for (std::uint16_t worker = 0; worker < gone_.workers(); ++worker) {
    if (!is_receiver(worker)) continue;
    if (!unposted_results_.empty() || !post_result(now, partition, worker, buffer)) {
      unposted_results_.push_back({partition.index, worker, buffer, true});
    }
  }
}

bool ServicePosts::post_push(TimeNs now, ServicePartition& partition, std::uint16_t worker) {
  core::ReceiveRequest request;
  request.operation = Id{partition.index, worker, partition.sums.current(), false}.operation();
  request.peer = worker;
  request.tag = partition_tag(partition.shape.key, partition.shape.partition);
  request.element = wire::ElementType::kFloat32;
  // PROTOCOL 14.1.8: A push MAY lose up to the bound.
  request.loss_bound = partition.shape.loss_bound;
  partition.sums.receive(request, worker);
  if (partition.checksums.are_on()) partition.checksums.watch(worker, request);
  // A worker may take any time between two iterations; its connection reports its death.
  request.timeout_ns = base::kNever;
  const core::PostStatus status = verbs_.post_recv(now, request);
  if (core::may_retry(status)) return false;
  if (status == core::PostStatus::kPosted) {
    partition.pushes[worker] = Push::kPosted;
    if (partition.late[worker]) cancel_push(now, partition, worker);
  } else {
    on_rejected_(now, partition, worker);
  }
  return true;
}

bool ServicePosts::post_result(TimeNs now, ServicePartition& partition, std::uint16_t worker, std::uint8_t buffer) {
  PartitionSums::Buffer& sent = partition.sums.buffer(buffer);
  const bool is_never_complete = partition.has_failed() && buffer == partition.sums.current() && !partition.is_summed();
  if (is_never_complete || gone_.is_undecided(worker)) {
    sent.end_result(worker);
    return true;
  }
  core::SendRequest request;
  request.operation = Id{partition.index, worker, buffer, true}.operation();
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
    sent.end_result(worker);
    on_rejected_(now, partition, worker);
  }
  return true;
}

void ServicePosts::retry_results(TimeNs now) {
  while (!unposted_results_.empty()) {
    const Id first = unposted_results_.front();
    if (!post_result(now, partitions_[first.partition], first.worker, first.buffer)) break;
    unposted_results_.pop_front();
  }
}

void ServicePosts::retry_pushes(TimeNs now) {
  while (!unposted_pushes_.empty()) {
    const Id first = unposted_pushes_.front();
    ServicePartition& partition = partitions_[first.partition];
    if (!partition.has_failed() && !post_push(now, partition, first.worker)) break;
    unposted_pushes_.pop_front();
  }
}

void ServicePosts::forget(std::uint16_t worker) {
  for (const Id& one : unposted_results_) {
    if (one.worker == worker) partitions_[one.partition].sums.buffer(one.buffer).end_result(worker);
  }
  const auto is_of_worker = [&](const Id& one) { return one.worker == worker; };
  std::erase_if(unposted_results_, is_of_worker);
  std::erase_if(unposted_pushes_, is_of_worker);
}

void ServicePosts::cancel_push(TimeNs now, const ServicePartition& partition, std::uint16_t worker) {
  verbs_.cancel(now, Id{partition.index, worker, partition.sums.current(), false}.operation(),
                core::CompletionKind::kReceive);
}

void ServicePosts::cancel_result(TimeNs now, const ServicePartition& partition, std::uint16_t worker,
                                 std::uint8_t buffer) {
  verbs_.cancel(now, Id{partition.index, worker, buffer, true}.operation(), core::CompletionKind::kSend);
}

}  // namespace mlt::collective
