// The partitions of a service, by key and by index, and how many of them it has memory and tags for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective/gone_workers.h"
#include "collective/service_partition.h"

namespace mlt::collective {

class PartitionTable {
 public:
  struct Limits {
    std::uint64_t max_bytes = 0;          // of all partitions together
    std::uint32_t max_registrations = 0;  // partitions times workers
  };

  PartitionTable(const Limits& limits, const GoneWorkers& gone) : limits_(limits), gone_(gone) {}
  PartitionTable(const PartitionTable&) = delete;  // its partitions refer to it
  PartitionTable& operator=(const PartitionTable&) = delete;

  // Null if no worker has registered it.
  ServicePartition* find(std::uint64_t key, std::uint32_t partition) const;
  // Made if it is new. Null if there is no space for it, with the reason in `refusal`.
  ServicePartition* find_or_make(std::uint16_t from, const Register& shape, bool is_takeover, std::string& refusal);
  ServicePartition& operator[](std::uint32_t index) const { return *partitions_[index]; }
  const std::vector<std::unique_ptr<ServicePartition>>& all() const { return partitions_; }
  std::uint64_t bytes_held() const { return bytes_held_; }
  // Partitions of which the first segment of a round is summed, since the last call: their results may be sent.
  std::vector<std::uint32_t> take_begun() { return std::exchange(begun_, {}); }
  bool has_begun() const { return !begun_.empty(); }

 private:
  Limits limits_;
  const GoneWorkers& gone_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> by_key_;
  std::vector<std::uint32_t> begun_;  // the partitions refer to it
  std::vector<std::unique_ptr<ServicePartition>> partitions_;
  std::uint64_t bytes_held_ = 0;
};

}  // namespace mlt::collective
