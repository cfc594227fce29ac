// Which service sums a partition: the one that the key names, or, where services may die, the next that is not gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mlt::collective {

class ServiceChoice {
 public:
  // `max_dead`: services that may die while their partitions move to the others.
  ServiceChoice(std::vector<std::uint16_t> ranks, std::uint16_t max_dead)
      : ranks_(std::move(ranks)), max_dead_(max_dead) {}

  std::size_t count() const { return ranks_.size(); }
  bool contains(std::uint16_t rank) const;
  // Services follow the workers.
  bool is_worker(std::uint64_t rank) const;
  bool may_move() const { return max_dead_ > 0 && ranks_.size() > 1; }
  std::uint16_t max_dead() const { return max_dead_; }

  const std::vector<std::uint16_t>& ranks() const { return ranks_; }
  void add_dead(std::uint16_t service) { dead_.insert(service); }
  void add_all_dead() { dead_.insert(ranks_.begin(), ranks_.end()); }
  bool is_dead(std::uint16_t service) const { return dead_.contains(service); }
  std::size_t dead_count() const { return dead_.size(); }
  // The others may take over, and one is left.
  bool is_within_bound() const { return dead_.size() <= max_dead_ && dead_.size() < ranks_.size(); }

  // The service that the key names, and the one that sums the partition.
  std::uint16_t own_service(std::uint64_t key, std::uint32_t partition) const {
    return ranks_[service_index(key, partition, ranks_.size())];
  }
  std::uint16_t service_of(std::uint64_t key, std::uint32_t partition) const;

  // Index of the service that sums partition `partition` of a key.
  static std::size_t service_index(std::uint64_t key, std::uint32_t partition, std::size_t services) {
    // PROTOCOL 14.1.13: Service (key + i) mod services MUST sum partition i of a key.
    return (key + partition) % services;
  }
  // Index of the service to ask if so many before it are gone; below `services`.
  static std::size_t next_index(std::uint64_t key, std::uint32_t partition, std::size_t services, std::size_t gone) {
    // PROTOCOL 14.1.20: Where it is gone, the first that is not MUST take over, of the services (key + i + 1 + r) mod
    //     services, where r is ((key + i) / services, rounded down, plus j) mod (services - 1), for j = 0, 1 and so on.
    if (gone == 0) return service_index(key, partition, services);
    const std::uint64_t sum = key + partition;
    return (sum + 1 + (sum / services + gone - 1) % (services - 1)) % services;
  }

 private:
  std::vector<std::uint16_t> ranks_;
  std::uint16_t max_dead_;
  std::set<std::uint16_t> dead_;
};

std::string service_text(std::uint16_t service);

}  // namespace mlt::collective
