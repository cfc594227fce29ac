#include "collective/summation.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "collective/collective.h"
#include "collective/partition_grid.h"
#include "collective/reduction.h"

namespace mlt::collective {

namespace {

// Retry only if the post failed for lack of space; other errors are a bug here or a peer that is down.
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

std::string services_text(std::uint32_t count) {
  return std::to_string(count) + (count == 1 ? " service" : " services");
}

std::string described(std::uint16_t worker, const Register& shape) {
  return "rank " + std::to_string(worker) + " has " + std::to_string(shape.tensor_elements) + " elements over " +
         services_text(shape.services) + ", loss bound " + in_short(shape.loss_bound) +
         (shape.average ? ", average" : ", sum") + ", segments of " + std::to_string(shape.segment_bytes) + " bytes";
}

// How a worker's tensor differs from that of the first worker of this partition; empty if it does not.
std::string difference(std::uint16_t worker, const Register& shape, std::uint16_t first_worker, const Register& first) {
  if (first.tensor_elements == shape.tensor_elements && first.services == shape.services &&
      first.loss_bound == shape.loss_bound && first.average == shape.average &&
      first.segment_bytes == shape.segment_bytes) {
    return {};
  }
  return described(worker, shape) + "; " + described(first_worker, first) + ": every worker must use the same";
}

}  // namespace

// Local id: partition, worker, buffer, direction.
OperationId Summation::operation(const Partition& partition, std::uint16_t worker, std::uint8_t buffer,
                                 bool is_send) const {
  return machine_operation(MachineId::kSummation, (std::uint64_t{partition.index} << 18) |
                                                      (std::uint64_t{worker} << 2) | (std::uint64_t{buffer} << 1) |
                                                      (is_send ? 1U : 0U));
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
  // The worker has its whole result, and results of the round before are still in progress.
  if (partition.pushes[from] == Push::kArrived) partition.ready[from] = true;
  expect_push(now, partition, from);
}

void Summation::refuse(std::uint16_t to, const Register& shape, const std::string& text) {
  encode(Refused{shape.key, shape.partition, text}, scratch_);
  verbs_.send_message(to, scratch_);
}

std::unique_ptr<Summation::Partition> Summation::make_partition(const Register& shape) {
  auto made = std::make_unique<Partition>();
  made->owner = this;
  made->shape = shape;
  made->index = static_cast<std::uint32_t>(partitions_.size());
  for (Buffer& buffer : made->buffers) {
    buffer.values.resize(shape.elements);
    buffer.results.resize(config_.workers);
    for (Result& result : buffer.results) result.words.resize(base::words_for_bits(segments_of(shape)));
  }
  made->cells.resize(segments_of(shape));
  made->registered.resize(config_.workers);
  made->pushes.resize(config_.workers);
  made->on_demand.resize(config_.workers);
  made->ready.resize(config_.workers);
  made->failed_rank = gone_worker_;
  return made;
}

// An empty partition has a cost too; otherwise registrations would be unlimited.
std::uint64_t Summation::cost_bytes(const Register& shape) const {
  const std::uint64_t result_bytes = sizeof(Result) + base::words_for_bits(segments_of(shape)) * sizeof(std::uint64_t);
  return kPartitionCostBytes + 2 * std::uint64_t{shape.elements} * sizeof(float) + segments_of(shape) * sizeof(Cell) +
         std::uint64_t{config_.workers} * (2 + 2 * result_bytes);
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
                      std::to_string(shape.tensor_elements) + " over " + services_text(shape.services) +
                      ", which are not cut so: install the same mlt release on every rank");
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
      partitions_.back()->first_worker = from;
      found = by_key_.emplace(std::pair{shape.key, shape.partition}, static_cast<std::uint32_t>(count)).first;
    } catch (
        const std::bad_alloc&) {  // the limit exceeds the host's memory: report it to the job; the service continues
      partitions_.resize(count);
      return refuse(from, shape, "the service's host is out of memory: start more services");
    }
    bytes_held_ += bytes;
  }
  Partition& partition = *partitions_[found->second];
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
  if (!partition.registered[from]) {
    partition.registered[from] = true;
    const std::uint32_t cells = verbs_.segment_bytes(from) / shape.segment_bytes;
    for (Buffer& buffer : partition.buffers) {
      Result& result = buffer.results[from];
      result.cells_per_segment = cells;
      result.feed = {0, base::BitmapView(result.words.data(), (partition.cells.size() + cells - 1) / cells)};
    }
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
    partition.owner->add_cell(partition, cell, part);
    payload = payload.subspan(part.size());
    ++cell;
  } while (!payload.empty());
}

std::span<float> Summation::values_of(Partition& partition, std::size_t cell) {
  const std::size_t elements = partition.shape.segment_bytes / sizeof(float);
  const std::span<float> values(partition.sum().values);
  return values.subspan(cell * elements, std::min(elements, values.size() - cell * elements));
}

// One pass: the first push of a round replaces the contents of two rounds ago, the last one completes the mean.
void Summation::add_cell(Partition& partition, std::size_t cell, std::span<const std::byte> terms) {
  const std::uint16_t before = partition.cells[cell].contributors++;
  const std::size_t workers = partition.pushes.size();
  if (!terms.empty()) {
    const std::size_t elements = terms.size() / sizeof(float);
    const std::span<std::byte> sum = std::as_writable_bytes(values_of(partition, cell).first(elements));
    if (before == 0) {
      std::memcpy(sum.data(), terms.data(), terms.size());
    } else if (partition.shape.average && before + std::size_t{1} == workers) {
      mean_kernel().combine_last(sum.data(), terms.data(), elements, static_cast<std::uint32_t>(workers));
    } else {
      mean_kernel().combine(sum.data(), terms.data(), elements);
    }
  }
  // PROTOCOL 14.1.14: A service MAY send a segment of the result as soon as every worker's segment of it has arrived
  //     (6.5.11).
  if (before + std::size_t{1} == workers) complete_cell(partition, cell);
}

// Nothing is added to it any more: it may leave, to each worker once the other cells of its segment are complete.
void Summation::complete_cell(Partition& partition, std::size_t cell) {
  partition.cells[cell].complete = true;
  const std::span<const Cell> cells(partition.cells);
  for (Result& result : partition.sum().results) {
    const std::size_t segment = cell / result.cells_per_segment;
    const std::size_t first = segment * result.cells_per_segment;
    const auto covered = cells.subspan(first, std::min<std::size_t>(result.cells_per_segment, cells.size() - first));
    // From the end: cells mostly arrive in order.
    if (std::all_of(covered.rbegin(), covered.rend(), [](const Cell& one) { return one.complete; })) {
      result.feed.add(static_cast<std::uint32_t>(segment));
    }
  }
  if (partition.sum().begun) return;
  // This may be called in the middle of the endpoint's work, where nothing can be posted: retry() posts.
  partition.sum().begun = true;
  begun_results_.push_back(partition.index);
}

void Summation::expect_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  if (partition.failed_rank >= 0 || partition.pushes[worker] != Push::kIdle) return;
  partition.pushes[worker] = Push::kWaiting;
  if (!unposted_pushes_.empty() || !post_push(now, partition, worker)) {
    unposted_pushes_.push_back({partition.index, worker, partition.current});
  }
}

void Summation::send_results(TimeNs now, Partition& partition) {
  if (std::exchange(partition.sum().posting, true)) return;
  const std::uint8_t buffer = partition.current;
  partition.sum().sending = config_.workers;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (!unposted_results_.empty() || !post_result(now, partition, worker, buffer)) {
      unposted_results_.push_back({partition.index, worker, buffer});
    }
  }
}

bool Summation::post_push(TimeNs now, Partition& partition, std::uint16_t worker) {
  core::ReceiveRequest request;
  request.operation = operation(partition, worker, partition.current, false);
  request.peer = worker;
  request.tag = partition_tag(partition.shape.key, partition.shape.partition);
  request.data = std::as_writable_bytes(std::span(partition.sum().values));
  request.element = wire::ElementType::kFloat32;
  // PROTOCOL 14.1.8: A push MAY lose up to the bound.
  request.loss_bound = partition.shape.loss_bound;
  request.place = &Summation::add_segment;
  request.place_context = &partition;
  // A worker may take any time between two iterations; its connection reports its death.
  request.timeout_ns = base::kNever;
  const core::PostStatus status = verbs_.post_recv(now, request);
  if (core::may_retry(status)) return false;
  if (status == core::PostStatus::kPosted) {
    partition.pushes[worker] = Push::kPosted;
  } else {
    fail(now, partition, worker);
    announce_failure(now, partition);
  }
  return true;
}

bool Summation::post_result(TimeNs now, Partition& partition, std::uint16_t worker, std::uint8_t buffer) {
  Buffer& sent = partition.buffers[buffer];
  // A sum that will never be complete.
  if (partition.failed_rank >= 0 && buffer == partition.current && !partition.is_summed()) {
    --sent.sending;
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
    --sent.sending;
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
    if (partition.failed_rank < 0 && partition.sum().begun) send_results(now, partition);
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
    Buffer& sent = partition.buffers[(local >> 1) & 1U];
    MLT_CHECK(sent.sending > 0);
    --sent.sending;
  } else {
    MLT_CHECK(partition.pushes[worker] == Push::kPosted);
    partition.pushes[worker] = Push::kArrived;
  }
  if (core::is_failure(completion.status)) fail(now, partition, worker);
  if (partition.failed_rank >= 0) return announce_failure(now, partition);
  if (!is_send && ++partition.arrived == config_.workers) on_pushed(now, partition);
  // The buffer of the round before must not be rewritten before every worker has received its result.
  // PROTOCOL 14.1.9: A service MUST end an iteration, and post the receives of the next, when the push of every worker
  //     has completed and every result of the iteration before has left.
  if (partition.is_summed() && partition.before().sending == 0) begin_round(now, partition);
}

// PROTOCOL 14.1.14: It sends a segment that is missing from a push when every push has completed.
void Summation::on_pushed(TimeNs now, Partition& partition) {
  for (std::size_t cell = 0; cell < partition.cells.size(); ++cell) {
    if (partition.cells[cell].complete) continue;
    const std::uint16_t contributors = partition.cells[cell].contributors;
    const std::span<float> values = values_of(partition, cell);
    // PROTOCOL 14.1.9: It divides each segment of the sum by the number of workers whose segment arrived (paper,
    //     appendix A), or not at all if the average was not asked for.
    // Appendix A: the mean of the pushes that arrived. A segment missing from every push is zero, like no gradient.
    if (contributors == 0) {
      std::ranges::fill(values, 0.0F);
    } else if (partition.shape.average) {
      mean_kernel().scale(std::as_writable_bytes(values).data(), values.size(), 1, contributors);
    }
    complete_cell(partition, cell);
  }
  ++rounds_summed_;
  send_results(now, partition);
}

// No push is posted now, and every result of the round before has left: its buffer is not in use.
void Summation::begin_round(TimeNs now, Partition& partition) {
  partition.current ^= 1U;
  std::ranges::fill(partition.cells, Cell{});
  partition.sum().begun = partition.sum().posting = false;
  partition.arrived = 0;
  // A push may arrive as soon as its worker has the result of the round before.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    partition.pushes[worker] = Push::kIdle;
    if (partition.ready[worker] || !partition.on_demand[worker]) expect_push(now, partition, worker);
    partition.ready[worker] = false;
  }
}

void Summation::fail(TimeNs now, Partition& partition, std::uint16_t rank) {
  if (partition.failed_rank >= 0) return;
  partition.failed_rank = rank;
  // PROTOCOL 14.1.10: When a worker is gone no sum can be made: the service MUST cancel the pushes that are still
  //     coming, let the results of complete sums arrive, then send aborted to every other worker, and cancel the
  //     results of incomplete sums.
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (partition.pushes[worker] == Push::kPosted) {
      verbs_.cancel(now, operation(partition, worker, partition.current, false), core::CompletionKind::kReceive);
    }
  }
}

std::span<const std::byte> Summation::failure_of(const Partition& partition) {
  const Register& shape = partition.shape;
  if (!partition.refusal.empty()) {
    encode(Refused{shape.key, shape.partition, partition.refusal}, scratch_);
  } else {
    encode(Aborted{shape.key, shape.partition, static_cast<std::uint16_t>(partition.failed_rank)}, scratch_);
  }
  return scratch_;
}

// Waits until the results of complete sums have arrived: a worker that leaves after the last iteration must not
// deprive the others of them.
void Summation::announce_failure(TimeNs now, Partition& partition) {
  const bool is_summed = partition.is_summed();
  if (partition.before().sending > 0 || (is_summed && partition.sum().sending > 0)) return;
  if (std::exchange(partition.is_failure_announced, true)) return;
  const std::span<const std::byte> message = failure_of(partition);
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    if (worker != partition.failed_rank && partition.registered[worker]) verbs_.send_message(worker, message);
  }
  if (is_summed || partition.sum().sending == 0) return;
  for (std::uint16_t worker = 0; worker < config_.workers; ++worker) {
    verbs_.cancel(now, operation(partition, worker, partition.current, true), core::CompletionKind::kSend);
  }
}

// Every sum needs every worker, including one that has not registered for it yet.
void Summation::on_peer_down(TimeNs now, std::uint16_t peer) {
  if (peer >= config_.workers) return;
  if (gone_worker_ < 0) gone_worker_ = peer;
  for (const auto& partition : partitions_) {
    fail(now, *partition, peer);
    announce_failure(now, *partition);
  }
}

}  // namespace mlt::collective
