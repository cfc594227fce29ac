#include "collective/registration.h"

#include "collective/collective.h"
#include "collective/partition_grid.h"
#include "collective/partition_sums.h"
#include "collective/verbs.h"

namespace mlt::collective {

namespace {

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

}  // namespace

std::string difference(std::uint16_t worker, const Register& shape, std::uint16_t first_worker, const Register& first) {
  if (first.tensor_elements == shape.tensor_elements && first.services == shape.services &&
      first.loss_bound == shape.loss_bound && first.average == shape.average &&
      first.segment_bytes == shape.segment_bytes && first.max_dead_services == shape.max_dead_services) {
    return {};
  }
  const auto text = [&](std::uint16_t rank, const Register& one) {
    const bool is_alike = first.max_dead_services == shape.max_dead_services;
    return described(rank, one) + (is_alike ? "" : ", max_dead_services " + std::to_string(one.max_dead_services));
  };
  return text(worker, shape) + "; " + text(first_worker, first) + ": every worker must use the same";
}

// PROTOCOL 14.1.5: A service MUST refuse a registration that is out of range, differs from another worker's, has other
//     elements than 14.1.2 or 14.1.25 gives the partition, names other segment bytes than the connection's, or exceeds
//     its limits.
std::string rejection(std::uint16_t from, const Register& shape, const ServiceLoads& loads, std::uint32_t grid_bytes,
                      const Move* move) {
  if (shape.key > kMaxKey || shape.partition >= kMaxPartitions ||
      !(shape.loss_bound >= 0.0 && shape.loss_bound < 1.0) || shape.services == 0 || shape.services > kMaxServices ||
      shape.tensor_elements > kMaxTensorElements || shape.segment_bytes == 0 ||
      shape.segment_bytes % sizeof(float) != 0) {
    return "a field of the registration is out of range";
  }
  const std::string who = "rank " + std::to_string(from) + " registers ";
  // Loads are of all services, and so are those of a worker that sends them.
  const bool has_loads = !loads.are_equal();
  if (has_loads && shape.services != loads.count()) return "the registration names another number of services";
  const PartitionGrid grid(shape.tensor_elements, has_loads ? loads : ServiceLoads(shape.services));
  if (shape.partition >= grid.count() || shape.elements != grid.elements(shape.partition)) {
    return who + std::to_string(shape.elements) + " elements as partition " + std::to_string(shape.partition) + " of " +
           std::to_string(shape.tensor_elements) + " over " + services_text(shape.services) +
           (has_loads ? " with " + loads.text() : "") +
           ", which are not cut so: install the same mlt release on every rank";
  }
  // Contributions are counted on this grid, so it must be that of this worker's segments.
  if (shape.segment_bytes != grid_bytes) {
    return who + "segments of " + std::to_string(shape.segment_bytes) + " bytes, its connection has segments of " +
           std::to_string(grid_bytes);
  }
  if (move != nullptr && !move->cells.empty() && move->cells.size() != (PartitionSums::cells_of(shape) + 7) / 8) {
    return "a takeover reports other segments than the partition has";
  }
  return {};
}

}  // namespace mlt::collective
