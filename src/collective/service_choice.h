// Which service sums a partition: the one whose part of the tensor it is, or that the key names, in proportion to the
// loads; or, where services may die, the next that is not gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective/partition_grid.h"
#include "collective/service_loads.h"

namespace mlt::collective {

class ServiceChoice {
 public:
  // `max_dead`: services that may die while their partitions move to the others. `loads`: of these services.
  ServiceChoice(std::vector<std::uint16_t> ranks, std::uint16_t max_dead, ServiceLoads loads)
      : ranks_(std::move(ranks)), max_dead_(max_dead), loads_(std::move(loads)) {}
  // Equal loads.
  ServiceChoice(const std::vector<std::uint16_t>& ranks, std::uint16_t max_dead)
      : ServiceChoice(ranks, max_dead, ServiceLoads(ranks.size())) {}

  std::size_t count() const { return ranks_.size(); }
  bool contains(std::uint16_t rank) const;
  // Services follow the workers.
  bool is_worker(std::uint64_t rank) const;
  bool may_move() const { return max_dead_ > 0 && ranks_.size() > 1; }
  std::uint16_t max_dead() const { return max_dead_; }
  const ServiceLoads& loads() const { return loads_; }

  const std::vector<std::uint16_t>& ranks() const { return ranks_; }
  void add_dead(std::uint16_t service) { dead_.insert(service); }
  void add_all_dead() { dead_.insert(ranks_.begin(), ranks_.end()); }
  bool is_dead(std::uint16_t service) const { return dead_.contains(service); }
  std::size_t dead_count() const { return dead_.size(); }
  // The others may take over, and one is left.
  bool is_within_bound() const { return dead_.size() <= max_dead_ && dead_.size() < ranks_.size(); }

  // The service that sums a partition of a key where none is gone, and the one that does.
  std::uint16_t own_service(std::uint64_t key, std::uint32_t partition, const PartitionGrid& grid) const {
    return ranks_[own_index(key, partition, grid, loads_)];
  }
  std::uint16_t service_of(std::uint64_t key, std::uint32_t partition, std::uint16_t own_service) const;

  // Index of the service that sums a partition of a tensor with this grid.
  static std::size_t own_index(std::uint64_t key, std::uint32_t partition, const PartitionGrid& grid,
                               const ServiceLoads& loads);
  // The same where loads are equal.
  static std::size_t service_index(std::uint64_t key, std::uint32_t partition, std::size_t services) {
    // PROTOCOL 14.1.13: Service (key + i) mod services MUST sum partition i of a key, if the loads are equal.
    return (key + partition) % services;
  }
  // Index of the service to ask if so many before it are gone; below `services`, if loads are equal.
  static std::size_t next_index(std::uint64_t key, std::uint32_t partition, std::size_t services, std::size_t gone) {
    // PROTOCOL 14.1.20: Where it is gone and the loads are equal, the first that is not MUST take over, of the services
    //     (key + i + 1 + r) mod services, where r is ((key + i) / services, rounded down, plus j) mod (services - 1),
    //     for j = 0, 1 and so on.
    if (gone == 0) return service_index(key, partition, services);
    const std::uint64_t sum = key + partition;
    return (sum + 1 + (sum / services + gone - 1) % (services - 1)) % services;
  }

 private:
  static constexpr std::size_t kLoadedTries = 64;

  // The one to ask if so many before it are gone.
  std::size_t candidate(std::uint64_t key, std::uint32_t partition, std::size_t gone) const;

  std::vector<std::uint16_t> ranks_;
  std::uint16_t max_dead_;
  ServiceLoads loads_;
  std::set<std::uint16_t> dead_;
};

std::string service_text(std::uint16_t service);

}  // namespace mlt::collective
