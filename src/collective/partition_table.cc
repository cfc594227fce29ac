#include "collective/partition_table.h"

#include <new>

namespace mlt::collective {

ServicePartition* PartitionTable::find(std::uint64_t key, std::uint32_t partition) const {
  const auto found = by_key_.find({key, partition});
  return found == by_key_.end() ? nullptr : partitions_[found->second].get();
}

ServicePartition* PartitionTable::find_or_make(std::uint16_t from, const Register& shape, bool is_takeover,
                                               std::string& refusal) {
  if (ServicePartition* found = find(shape.key, shape.partition); found != nullptr) return found;
  const std::uint16_t workers = gone_.workers();
  const std::uint64_t bytes = PartitionSums::cost_bytes(shape, workers) +
                              (is_takeover ? Takeover::cost_bytes(PartitionSums::cells_of(shape), workers) : 0);
  if (bytes > limits_.max_bytes - bytes_held_) {
    refusal = "the service's memory limit of " + std::to_string(limits_.max_bytes) +
              " bytes is reached: start more services or raise the limit";
    return nullptr;
  }
  if ((partitions_.size() + 1) * workers > limits_.max_registrations) {
    refusal = "the service's limit of " + std::to_string(limits_.max_registrations / workers) +
              " partitions is reached: start more services or use fewer keys";
    return nullptr;
  }
  const std::size_t count = partitions_.size();
  try {
    const auto index = static_cast<std::uint32_t>(count);
    partitions_.push_back(std::make_unique<ServicePartition>(shape, from, index, gone_, begun_));
    by_key_.emplace(std::pair{shape.key, shape.partition}, index);
  } catch (const std::bad_alloc&) {  // the limit exceeds the host's memory: report it to the job; the service continues
    partitions_.resize(count);
    refusal = "the service's host is out of memory: start more services";
    return nullptr;
  }
  bytes_held_ += bytes;
  if (is_takeover) partitions_.back()->takeover = Takeover(workers);
  return partitions_.back().get();
}

}  // namespace mlt::collective
