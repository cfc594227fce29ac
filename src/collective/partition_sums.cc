#include "collective/partition_sums.h"

#include <algorithm>
#include <cstring>

#include "base/bitmap.h"
#include "base/check.h"
#include "collective/push_checksums.h"
#include "collective/reduction.h"

namespace mlt::collective {

namespace {

const Kernel& mean_kernel() {
  static const Kernel& kernel = *kernel_of(wire::ElementType::kFloat32, Reduction::kMean);
  return kernel;
}

// The partition itself, its map entry and the allocator's overhead of its vectors.
constexpr std::uint64_t kPartitionCostBytes = 512;

}  // namespace

std::size_t PartitionSums::cells_of(const Register& shape) {
  const std::uint64_t bytes = std::uint64_t{shape.elements} * sizeof(float);
  return std::max<std::uint64_t>(1, (bytes + shape.segment_bytes - 1) / shape.segment_bytes);
}

std::uint64_t PartitionSums::cost_bytes(const Register& shape, std::uint16_t workers) {
  const std::uint64_t cells = cells_of(shape);
  const std::uint64_t result_bytes = sizeof(Result) + base::words_for_bits(cells) * sizeof(std::uint64_t);
  return kPartitionCostBytes + 2 * std::uint64_t{shape.elements} * sizeof(float) + cells * sizeof(Cell) +
         std::uint64_t{workers} * (2 + 2 * result_bytes + (shape.checksums ? PushChecksums::cost_bytes() : 0));
}

void PartitionSums::Buffer::end_result(std::uint16_t worker) {
  results[worker].is_pending = false;
  --sending;
}

bool PartitionSums::Buffer::has_due_result() const {
  return std::ranges::any_of(results, [](const Result& result) { return result.is_pending && !result.is_late; });
}

PartitionSums::PartitionSums(const Register& shape, std::uint32_t index, std::uint16_t workers,
                             std::vector<std::uint32_t>& begun)
    : segment_bytes_(shape.segment_bytes),
      average_(shape.average),
      index_(index),
      begun_(begun),
      cells_(cells_of(shape)),
      receives_(workers) {
  for (Buffer& buffer : buffers_) {
    buffer.values.resize(shape.elements);
    buffer.results.resize(workers);
    for (Result& result : buffer.results) result.words.resize(base::words_for_bits(cells_.size()));
  }
}

void PartitionSums::add_receiver(std::uint16_t worker, std::uint32_t cells_per_segment) {
  receives_[worker] = true;
  for (Buffer& buffer : buffers_) {
    Result& result = buffer.results[worker];
    result.cells_per_segment = cells_per_segment;
    const std::size_t segments = (cells_.size() + cells_per_segment - 1) / cells_per_segment;
    result.feed = {0, base::BitmapView(result.words.data(), segments)};
  }
}

void PartitionSums::remove_receiver(std::uint16_t worker) { receives_[worker] = false; }

// No push is posted now, and every result of the round before has left: its buffer is not in use.
void PartitionSums::begin_round(std::uint16_t expected) {
  current_ ^= 1U;
  std::ranges::fill(cells_, Cell{});
  sum().begun = sum().posting = false;
  expected_ = expected;
  repetition_.sources.clear();
}

void PartitionSums::repeat(const Repetition& repetition) {
  repetition_ = repetition;
  contexts_.resize(receives_.size());
  for (std::uint16_t worker = 0; worker < contexts_.size(); ++worker) contexts_[worker] = {this, worker};
}

void PartitionSums::receive(core::ReceiveRequest& request, std::uint16_t worker) {
  request.data = std::as_writable_bytes(std::span(sum().values));
  request.place = &PartitionSums::add_segment;
  request.place_context = this;
  if (!is_repeated()) return;
  request.loss_bound = 0;
  request.place = &PartitionSums::add_repeated;
  request.place_context = &contexts_[worker];
}

void PartitionSums::add_repeated(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  const auto& [sums_of_push, worker] = *static_cast<PushContext*>(context);
  PartitionSums& sums = *sums_of_push;
  const std::uint32_t cell_bytes = sums.segment_bytes_;
  MLT_CHECK(offset_bytes % cell_bytes == 0);
  std::size_t cell = offset_bytes / cell_bytes;
  do {
    const std::span<const std::byte> part = payload.first(std::min<std::size_t>(cell_bytes, payload.size()));
    const int source = sums.repetition_.sources[cell];
    if (source < 0) {
      sums.add_cell(cell, part);
    } else if (source == worker) {
      const std::span<std::byte> result = std::as_writable_bytes(sums.values_of(cell));
      if (!part.empty()) std::memcpy(result.data(), part.data(), part.size());
      sums.complete_cell(cell);
    }
    payload = payload.subspan(part.size());
    ++cell;
  } while (!payload.empty());
}

void PartitionSums::add_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  auto& sums = *static_cast<PartitionSums*>(context);
  const std::uint32_t cell_bytes = sums.segment_bytes_;
  MLT_CHECK(offset_bytes % cell_bytes == 0);
  std::size_t cell = offset_bytes / cell_bytes;
  // One cell, or as many as a longer segment covers; an empty segment also counts in one.
  do {
    const std::span<const std::byte> part = payload.first(std::min<std::size_t>(cell_bytes, payload.size()));
    sums.add_cell(cell, part);
    payload = payload.subspan(part.size());
    ++cell;
  } while (!payload.empty());
}

std::span<float> PartitionSums::values_of(std::size_t cell) {
  const std::size_t elements = segment_bytes_ / sizeof(float);
  const std::span<float> values(sum().values);
  return values.subspan(cell * elements, std::min(elements, values.size() - cell * elements));
}

// One pass: the first push of a round replaces the contents of two rounds ago, the last one completes the mean.
void PartitionSums::add_cell(std::size_t cell, std::span<const std::byte> terms) {
  const std::uint16_t before = cells_[cell].contributors++;
  const std::size_t workers = expected_;
  if (!terms.empty()) {
    const std::size_t elements = terms.size() / sizeof(float);
    const std::span<std::byte> sum = std::as_writable_bytes(values_of(cell).first(elements));
    if (before == 0) {
      std::memcpy(sum.data(), terms.data(), terms.size());
    } else if (average_ && before + std::size_t{1} == workers) {
      mean_kernel().combine_last(sum.data(), terms.data(), elements, static_cast<std::uint32_t>(workers));
    } else {
      mean_kernel().combine(sum.data(), terms.data(), elements);
    }
  }
  // PROTOCOL 14.1.14: A service MAY send a segment of the result as soon as every worker's segment of it has arrived
  //     (6.5.11).
  if (before + std::size_t{1} == workers) complete_cell(cell);
}

// Nothing is added to it any more: it may leave, to each worker once the other cells of its segment are complete.
void PartitionSums::complete_cell(std::size_t cell) {
  cells_[cell].complete = true;
  const std::span<const Cell> cells(cells_);
  for (std::uint16_t worker = 0; worker < receives_.size(); ++worker) {
    if (!is_receiver(worker)) continue;
    Result& result = sum().results[worker];
    const std::size_t segment = cell / result.cells_per_segment;
    const std::size_t first = segment * result.cells_per_segment;
    const auto covered = cells.subspan(first, std::min<std::size_t>(result.cells_per_segment, cells.size() - first));
    // From the end: cells mostly arrive in order.
    if (std::all_of(covered.rbegin(), covered.rend(), [](const Cell& one) { return one.complete; })) {
      result.feed.add(static_cast<std::uint32_t>(segment));
    }
  }
  if (sum().begun) return;
  sum().begun = true;
  begun_.push_back(index_);
}

// PROTOCOL 14.1.14: ... It sends a segment that is missing from a push when every push has completed.
void PartitionSums::end_round() {
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    if (cells_[cell].complete) continue;
    const std::uint16_t contributors = cells_[cell].contributors;
    const std::span<float> values = values_of(cell);
    // PROTOCOL 14.1.9: ... It divides each segment of the sum by the number of workers whose segment arrived (paper,
    //     appendix A), or not at all if the average was not asked for.
    // Appendix A: the mean of the pushes that arrived. A segment missing from every push is zero, like no gradient.
    if (contributors == 0) {
      std::ranges::fill(values, 0.0F);
    } else if (average_) {
      mean_kernel().scale(std::as_writable_bytes(values).data(), values.size(), 1, contributors);
    }
    complete_cell(cell);
  }
}

std::uint64_t PartitionSums::missing_elements(std::size_t workers) {
  std::uint64_t missing = 0;
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    missing += std::uint64_t{values_of(cell).size()} * (workers - cells_[cell].contributors);
  }
  return missing;
}

}  // namespace mlt::collective
