#include "collective/service_choice.h"

#include <algorithm>

namespace mlt::collective {

namespace {

// 2^64 over the golden ratio: positions of successive partitions and keys are spread as evenly as possible.
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

std::uint32_t mixed_position(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) % ServiceLoads::kUnits);
}

}  // namespace

std::string service_text(std::uint16_t service) { return "summation service rank " + std::to_string(service); }

bool ServiceChoice::contains(std::uint16_t rank) const { return std::ranges::find(ranks_, rank) != ranks_.end(); }

bool ServiceChoice::is_worker(std::uint64_t rank) const {
  return !ranks_.empty() && rank < *std::ranges::min_element(ranks_);
}

std::size_t ServiceChoice::own_index(std::uint64_t key, std::uint32_t partition, const PartitionGrid& grid,
                                     const ServiceLoads& loads) {
  if (loads.are_equal()) return service_index(key, partition, loads.count());
  // PROTOCOL 14.1.26: Where the loads differ, a service MUST sum the partitions of its part of a tensor. Partition i of
  //     a tensor that has no parts belongs to the service that holds the position (key + i) times 0x9E3779B97F4A7C15,
  //     modulo 2^64, over 2^48, rounded down: the first with which the loads add up to more.
  if (const auto service = grid.service(partition)) return *service;
  return loads.service_at(static_cast<std::uint32_t>((key + partition) * kGolden >> 48));
}

std::size_t ServiceChoice::candidate(std::uint64_t key, std::uint32_t partition, std::size_t gone) const {
  if (loads_.are_equal()) return next_index(key, partition, ranks_.size(), gone);
  // PROTOCOL 14.1.27: Where it is gone and the loads differ, the first that is not MUST take over, of the services that
  //     hold the positions m(key + i + 2^48 j) mod 65,536 for j = 1 to 64, with the m of 22.9.2, and then of all in
  //     their order.
  if (gone > kLoadedTries) return gone - kLoadedTries - 1;
  return loads_.service_at(mixed_position(key + partition + (std::uint64_t{gone} << 48)));
}

std::uint16_t ServiceChoice::service_of(std::uint64_t key, std::uint32_t partition, std::uint16_t own_service) const {
  std::uint16_t service = own_service;
  const std::size_t candidates = (loads_.are_equal() ? 0 : kLoadedTries + 1) + ranks_.size();
  for (std::size_t gone = 1; gone < candidates && dead_.contains(service) && dead_.size() <= max_dead_; ++gone) {
    service = ranks_[candidate(key, partition, gone)];
  }
  return service;
}

}  // namespace mlt::collective
