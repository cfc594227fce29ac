// How push-pull cuts a tensor into partitions: a function of its size and the services' loads alone, so that all
// workers and services agree. BytePS (OSDI'20) section 4.1 has partitions of at most 4 MB.
//
// Every service gets a part in proportion to its load, so that all of their links are used, and a large part in several
// partitions, so that results of one leave the service while pushes of the next arrive. A partition costs every worker
// two transfers, which is slower than one of 1 MiB on fast links: so small tensors are not cut, and small parts no
// further.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "collective/service_loads.h"

namespace mlt::collective {

inline constexpr std::uint32_t kMaxPartitions = 1U << 16;
inline constexpr std::uint32_t kPartitionBytes = 4U << 20;       // max
inline constexpr std::uint32_t kMinPartitionBytes = 256U << 10;  // min where services share a tensor
inline constexpr std::uint32_t kMinPipelinedBytes = 1U << 20;    // min where a service has several partitions of it
inline constexpr std::uint32_t kPartitionsPerService = 4;        // as many, unless they would be too small or too large

// Max elements of one partition.
inline constexpr std::uint32_t kPartitionElements = kPartitionBytes / sizeof(float);

class PartitionGrid {
 public:
  PartitionGrid(std::uint64_t elements, const ServiceLoads& loads) : PartitionGrid(elements, loads.loaded()) {
    if (!loads.are_equal() && elements >= loads.loaded() * (kMinPartitionBytes / sizeof(float))) cut_by(loads);
  }
  // Over services with equal loads.
  PartitionGrid(std::uint64_t elements, std::uint64_t services) : elements_(elements) {
    // PROTOCOL 14.1.2: A tensor of n elements (float32) and s services with equal loads MUST be cut into p partitions
    //     of equal size, the last one shorter. If n is below 65,536 s (256 KiB for each service), p is n / 65,536,
    //     rounded down, but at least 1. Otherwise p is s times the smaller of 4 and n / (262,144 s) (1 MiB), rounded
    //     down, but at least s times n / (1,048,576 s) (4 MiB), rounded up. The size is n / p, rounded up to a multiple
    //     of 16 elements.
    constexpr std::uint64_t kMinElements = kMinPartitionBytes / sizeof(float);
    constexpr std::uint64_t kMinPipelined = kMinPipelinedBytes / sizeof(float);
    const std::uint64_t parts =
        elements < services * kMinElements
            ? std::max<std::uint64_t>(1, elements / kMinElements)
            : services * std::max(std::min<std::uint64_t>(kPartitionsPerService, elements / (services * kMinPipelined)),
                                  divide_up(elements, services * kPartitionElements));
    size_ = std::max<std::uint64_t>(1, divide_up(divide_up(elements, parts), kUnit)) * kUnit;
  }

  std::uint64_t count() const {
    return parts_.empty() ? std::max<std::uint64_t>(1, divide_up(elements_, size_)) : parts_.back().end;
  }
  // First element of a partition, and how many it has.
  std::size_t first(std::uint64_t partition) const {
    if (parts_.empty()) return partition * size_;
    const Part& part = part_of(partition);
    return part.first_element + (partition - part.begin) * part.size;
  }
  std::size_t elements(std::uint64_t partition) const {
    const std::uint64_t end = parts_.empty() ? elements_ : part_of(partition).end_element;
    return std::min<std::size_t>(parts_.empty() ? size_ : part_of(partition).size, end - first(partition));
  }
  // The index of the service whose part of the tensor it is in. None if the tensor is cut alike for every key: then the
  // key says which service sums it.
  std::optional<std::size_t> service(std::uint64_t partition) const {
    return parts_.empty() ? std::nullopt : std::optional(part_of(partition).service);
  }
  // Its number within that part; 0 if the tensor has no such parts.
  std::uint64_t number_in_part(std::uint64_t partition) const {
    return parts_.empty() ? 0 : partition - part_of(partition).begin;
  }

 private:
  static constexpr std::uint64_t kUnit = 16;  // a cache line

  struct Part {
    std::size_t service;
    std::uint64_t begin, end;  // partitions
    std::uint64_t first_element, end_element;
    std::uint64_t size;  // of a partition
  };

  static constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

  void cut_by(const ServiceLoads& loads);
  const Part& part_of(std::uint64_t partition) const {
    return *std::ranges::upper_bound(parts_, partition, {}, &Part::end);
  }

  std::uint64_t elements_;
  std::uint64_t size_;
  std::vector<Part> parts_;  // of the services; none if partitions are equal
};

}  // namespace mlt::collective
