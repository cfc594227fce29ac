#include "collective/summation.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "collective/partition_grid.h"
#include "collective/reduction.h"

namespace mlt::collective {

namespace {

// Retry only if the post failed for lack of space; other errors are a bug here or a peer that is down.
bool may_retry(core::PostStatus status) {
  return status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps;
}

std::size_t segments_of(const Register& shape) {
  const std::uint64_t bytes = std::uint64_t{shape.elements} * sizeof(float);
  return std::max<std::uint64_t>(1, (bytes + shape.segment_bytes - 1) / shape.segment_bytes);
}

const Kernel& mean_kernel() {
  static const Kernel& kernel = *kernel_of(wire::ElementType::kFloat32, Reduction::kMean);
  return kernel;
}

// The partition itself, its map entry and the allocator's overhead of its vectors.
constexpr std::uint64_t kPartitionCostBytes = 512;

// Ranks have 16 bits. Longer tensors have partitions that no tag can number.
constexpr std::uint32_t kMaxServices = 65'535;
constexpr std::uint64_t kMaxTensorElements = std::uint64_t{kMaxPartitions} * kPartitionElements;

}  // namespace

// Local id: partition, worker, direction.
OperationId Summation::operation(const Partition& partition, std::uint16_t worker, bool is_send) const {
  return machine_operation(MachineId::kSummation,
                           (std::uint64_t{partition.index} << 17) | (std::uint64_t{worker} << 1) | (is_send ? 1U : 0U));
}

void Summation::on_message(TimeNs now, std::uint16_t from, const Message& message) {
  if (const auto* shape = std::get_if<Register>(&message)) on_register(now, from, *shape);
  if (const auto* ready = std::get_if<Ready>(&message)) on_ready(now, from, *ready);
}

void Summation::on_ready(TimeNs now, std::uint16_t from, const Ready& ready) {
  const auto found = by_key_.find({ready.key, ready.partition});
  if (found == by_key_.end()) return;
  Partition& partition = *partitions_[found->second];
  // PROTOCOL 14.1.7: The service MUST post the receive then, and not before.
  if (from >= config_.workers || !partition.on_demand[from]) return;
  expect_push(now, partition, from);
}

void Summation::refuse(std::uint16_t to, const Register& shape, const std::string& text) {
  encode(Refused{shape.key, shape.partition, text}, scratch_);
  verbs_.send_message(to, scratch_);
}

std::unique_ptr<Summation::Partition> Summation::make_partition(const Register& shape) const {
  auto made = std::make_unique<Partition>();
  made->shape = shape;
  made->index = static_cast<std::uint32_t>(partitions_.size());
  made->sum.resize(shape.elements);
  made->result.resize(shape.elements);
  made->contributors.resize(segments_of(shape));
  made->registered.resize(config_.workers);
  made->pushes.resize(config_.workers);
  made->on_demand.resize(config_.workers);
  made->failed_rank = gone_worker_;
  return made;
}

// An empty partition has a cost too; otherwise registrations would be unlimited.
std::uint64_t Summation::cost_bytes(const Register& shape) const {
  return kPartitionCostBytes + 2 * std::uint64_t{shape.elements} * sizeof(float) +
         segments_of(shape) * sizeof(std::uint16_t) + 2 * std::uint64_t{config_.workers};
}

void Summation::on_register(TimeNs now, std::uint16_t from, const Register& shape) {
  if (from >= config_.workers) {
    return refuse(from, shape, "rank " + std::to_string(from) + " is not a worker of this service");
  }
  if (shape.key > kMaxKey || shape.partition >= kMaxPartitions ||
      !(shape.loss_bound >= 0.0 && shape.loss_bound < 1.0) || shape.services == 0 || shape.services > kMaxServices ||
      shape.tensor_elements > kMaxTensorElements || shape.segment_bytes == 0 ||
      shape.segment_bytes % sizeof(float) != 0) {
    return refuse(from, shape, "a field of the registration is out of range");
  }
  // PROTOCOL 14.1.5: ... has other elements than 14.1.2 gives the partition
  const PartitionGrid grid(shape.tensor_elements, shape.services);
  if (shape.partition >= grid.count() || shape.elements != grid.elements(shape.partition)) {
    return refuse(from, shape,
                  "rank " + std::to_string(from) + " registers " + std::to_string(shape.elements) +
                      " elements as partition " + std::to_string(shape.partition) + " of " +
                      std::to_string(shape.tensor_elements) + " over " + std::to_string(shape.services) +
                      " services, which are not cut so: install the same mlt release on every rank");
  }
  // Contributions are counted on this grid, so it must be that of this worker's segments.
  // PROTOCOL 14.1.5: A service MUST refuse a registration that is out of range, differs from another worker's, has
  //     other elements than 14.1.2 gives the partition, names other segment bytes than the connection's, or exceeds its
  //     limits.
  if (shape.segment_bytes != verbs_.grid_bytes(from)) {
    return refuse(from, shape,
                  "rank " + std::to_string(from) + " registers segments of " + std::to_string(shape.segment_bytes) +
                      " bytes, its connection has segments of " + std::to_string(verbs_.grid_bytes(from)));
  }
  auto found = by_key_.find({shape.key, shape.partition});
  if (found == by_key_.end()) {
    const std::uint64_t bytes = cost_bytes(shape);
    if (bytes > config_.max_bytes - bytes_held_) {
      return refuse(from, shape,
                    "the service's memory limit of " + std::to_string(config_.max_bytes) +
                        " bytes is reached: start more services or raise the limit");
    }
    if ((partitions_.size() + 1) * config_.workers > config_.max_registrations) {
      return refuse(from, shape,
                    "the service's limit of " + std::to_string(config_.max_registrations / config_.workers) +
                        " partitions is reached: start more services or use fewer keys");
    }
    const std::size_t count = partitions_.size();
    try {
      partitions_.push_back(make_partition(shape));
      found = by_key_.emplace(std::pair{shape.key, shape.partition}, static_cast<std::uint32_t>(count)).first;
    } catch (
        const std::bad_alloc&) {  // the limit exceeds the host's memory: report it to the job; the service continues
      partitions_.resize(count);
      return refuse(from, shape, "the service's host is out of memory: start more services");
    }
    bytes_held_ += bytes;
  }
  Partition& partition = *partitions_[found->second];
  const Register& first = partition.shape;
  if (first.tensor_elements != shape.tensor_elements || first.services != shape.services ||
      first.loss_bound != shape.loss_bound || first.average != shape.average ||
      first.segment_bytes != shape.segment_bytes) {
    return refuse(from, shape,
                  "rank " + std::to_string(from) + " has " + std::to_string(shape.tensor_elements) + " elements over " +
                      std::to_string(shape.services) + " services, bound " + std::to_string(shape.loss_bound) +
                      ", segments of " + std::to_string(shape.segment_bytes) + " bytes; another worker has " +
                      std::to_string(first.tensor_elements) + " over " + std::to_string(first.services) + ", " +
                      std::to_string(first.loss_bound) + ", " + std::to_string(first.segment_bytes) +
                      ": every worker must use the same");
  }
  if (partition.failed_rank >= 0) {
    encode(Aborted{shape.key, shape.partition, static_cast<std::uint16_t>(partition.failed_rank)}, scratch_);
    verbs_.send_message(from, scratch_);
    return;
  }
  if (!partition.registered[from]) {
    partition.registered[from] = true;
    partition.on_demand[from] = standing_ >= config_.max_standing;
    if (!partition.on_demand[from]) {
      ++standing_;
      expect_push(now, partition, from);
    }
  }
  encode(Registered{shape.key, shape.partition, partition.on_demand[from]}, scratch_);
  verbs_.send_message(from, scratch_);
}

void Summation::add_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  auto& partition = *static_cast<Partition*>(context);
  const std::uint32_t cell_bytes = partition.shape.segment_bytes;
  MLT_CHECK(offset_bytes % cell_bytes == 0);
  std::size_t cell = offset_bytes / cell_bytes;
  // One cell, or as many as a longer segment covers; an empty segment also counts in one.
  do {
    const std::span<const std::byte> part = payload.first(std::min<std::size_t>(cell_bytes, payload.size()));
    add_cell(partition, cell, part);
    payload = payload.subspan(part.size());
    ++cell;
  } while (!payload.empty());
}

// One pass: the first push of a round replaces the contents of two rounds ago, the last one completes the mean.
void Summation::add_cell(Partition& partition, std::size_t cell, std::span<const std::byte> terms) {
  const std::uint16_t before = partition.contributors[cell]++;
  if (terms.empty()) return;
  const std::size_t first = cell * partition.shape.segment_bytes / sizeof(float);
  const std::size_t elements = terms.size() / sizeof(float);
  const std::span<std::byte> sum = std::as_writable_bytes(std::span(partition.sum).subspan(first, elements));
  const std::size_t workers = partition.pushes.size();
  if (before == 0) {
    std::memcpy(sum.data(), terms.data(), terms.size());
  } else if (partition.shape.average && before + std::size_t{1} == workers) {
    mean_kernel().combine_last(sum.data(), terms.data(), elements, static_cast<std::uint32_t>(workers));
  } else {
    mean_kernel().combine(sum.data(), terms.data(), elements);
  }
}

void Summation::expect_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  if (partition.failed_rank >= 0 || partition.pushes[worker] != Push::kIdle) return;
  partition.pushes[worker] = Push::kWaiting;
  if (!unposted_pushes_.empty() || !post_push(now, partition, worker)) {
    unposted_pushes_.push_back({partition.index, worker});
  }
}

void Summation::send_result(TimeNs now, Partition& partition, std::uint16_t worker) {
  if (!unposted_results_.empty() || !post_result(now, partition, worker)) {
    unposted_results_.push_back({partition.index, worker});
  }
}

bool Summation::post_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  core::ReceiveRequest request;
  request.operation = operation(partition, worker, false);
  request.peer = worker;
  request.tag = partition_tag(partition.shape.key, partition.shape.partition);
  request.data = std::as_writable_bytes(std::span(partition.sum));
  request.element = wire::ElementType::kFloat32;
  // PROTOCOL 14.1.8: A push MAY lose up to the bound.
  request.loss_bound = partition.shape.loss_bound;
  request.place = &Summation::add_segment;
  request.place_context = &partition;
  // A worker may take any time between two iterations; its connection reports its death.
  request.timeout_ns = base::kNever;
  const core::PostStatus status = verbs_.post_recv(now, request);
  if (may_retry(status)) return false;
  if (status == core::PostStatus::kPosted) {
    partition.pushes[worker] = Push::kPosted;
  } else {
    fail(now, partition, worker);
  }
  return true;
}

bool Summation::post_result(TimeNs now, Partition& partition, std::uint16_t worker) {
  core::SendRequest request;
  request.operation = operation(partition, worker, true);
  request.peer = worker;
  request.tag = partition_tag(partition.shape.key, partition.shape.partition);
  request.data = std::as_bytes(std::span(partition.result));
  request.element = wire::ElementType::kFloat32;
  request.order = partition.shape.order;
  request.uniform_tag = core::SegmentTag::important(partition.shape.traffic_class & core::SegmentTag::kClassMask);
  request.timeout_ns = base::kNever;
  const core::PostStatus status = verbs_.post_send(now, request);
  if (may_retry(status)) return false;
  if (status != core::PostStatus::kPosted) {
    --partition.sending;
    if (partition.failed_rank < 0) {
      fail(now, partition, worker);
    } else if (partition.sending == 0) {
      announce_failure(partition);
    }
  }
  return true;
}

// Results first: workers wait for them, and each one sent frees space.
void Summation::retry(TimeNs now) {
  while (!unposted_results_.empty()) {
    const Unposted& first = unposted_results_.front();
    if (!post_result(now, *partitions_[first.partition], first.worker)) break;
    unposted_results_.pop_front();
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
  Partition& partition = *partitions_[local >> 17];
  const auto worker = static_cast<std::uint16_t>((local >> 1) & 0xFFFF);
  if ((local & 1U) != 0) {
    MLT_CHECK(partition.sending > 0);
    --partition.sending;
    if (partition.sending == 0 && partition.failed_rank >= 0) announce_failure(partition);
  } else {
    MLT_CHECK(partition.pushes[worker] == Push::kPosted);
    partition.pushes[worker] = Push::kArrived;
  }
  if (core::is_failure(completion.status)) return fail(now, partition, worker);
  if (partition.failed_rank >= 0) return;
  if ((local & 1U) == 0) ++partition.arrived;
  // The result buffer must not be rewritten before every worker has received it.
  // PROTOCOL 14.1.9: A service MUST sum a round when the push of every worker has completed and every result of the
  //     round before has left.
  if (partition.arrived == config_.workers && partition.sending == 0) finish_round(now, partition);
}

void Summation::finish_round(TimeNs now, Partition& partition) {
  const std::size_t cell_elements = partition.shape.segment_bytes / sizeof(float);
  const std::span<float> sum(partition.sum);
  for (std::size_t cell = 0; cell < partition.contributors.size(); ++cell) {
    const std::uint16_t contributors = std::exchange(partition.contributors[cell], 0);
    if (contributors == config_.workers) continue;  // add_cell() completed it
    const std::size_t at = cell * cell_elements;
    const std::span<float> values = sum.subspan(at, std::min(cell_elements, sum.size() - at));
    // PROTOCOL 14.1.9: It divides each segment by the number of workers whose segment arrived (paper, appendix A), or
    //     not at all if the average was not asked for.
    // Appendix A: the mean of the pushes that arrived. A segment missing from every push is zero, like no gradient.
    if (contributors == 0) {
      std::ranges::fill(values, 0.0F);
    } else if (partition.shape.average) {
      mean_kernel().scale(std::as_writable_bytes(values).data(), values.size(), 1, contributors);
    }
  }
  // No push is posted now, and every result of the round before has left: neither buffer is in use.
  std::swap(partition.sum, partition.result);
  ++rounds_summed_;
  partition.arrived = 0;
  partition.sending = config_.workers;
  // A push of the next round may arrive as soon as its worker has the result, so the receive is posted first.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    partition.pushes[worker] = Push::kIdle;
    if (!partition.on_demand[worker]) expect_push(now, partition, worker);
  }
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) send_result(now, partition, worker);
}

void Summation::fail(TimeNs now, Partition& partition, std::uint16_t rank) {
  if (partition.failed_rank >= 0) return;
  partition.failed_rank = rank;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (partition.pushes[worker] == Push::kPosted) {
      verbs_.cancel(now, operation(partition, worker, false), core::CompletionKind::kReceive);
    }
  }
  // PROTOCOL 14.1.10: When a worker is gone no sum can be made: the service MUST cancel the pushes that are still
  //     coming, let the results on their way arrive, and then send aborted to every other worker.
  if (partition.sending == 0) announce_failure(partition);
}

// Waits until the results still in progress have arrived: a worker that leaves after the last iteration must not
// deprive the others of them.
void Summation::announce_failure(Partition& partition) {
  const auto rank = static_cast<std::uint16_t>(partition.failed_rank);
  encode(Aborted{partition.shape.key, partition.shape.partition, rank}, scratch_);
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (worker != rank && partition.registered[worker]) verbs_.send_message(worker, scratch_);
  }
}

// Every sum needs every worker, including one that has not registered for it yet.
void Summation::on_peer_down(TimeNs now, std::uint16_t peer) {
  if (peer >= config_.workers) return;
  if (gone_worker_ < 0) gone_worker_ = peer;
  for (const auto& partition : partitions_) fail(now, *partition, peer);
}

}  // namespace mlt::collective
