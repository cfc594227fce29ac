// How push-pull cuts a tensor into partitions: a function of its size and the number of services alone, so that all
// workers and services agree. BytePS (OSDI'20) section 4.1 has partitions of at most 4 MB.
//
// Every service gets the same share, so that all of their links are used, and a large share in several partitions, so
// that results of one leave the service while pushes of the next arrive. A partition costs every worker two transfers,
// which is slower than one of 1 MiB on fast links: so small tensors are not cut, and small shares no further.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

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
  PartitionGrid(std::uint64_t elements, std::uint64_t services) : elements_(elements) {
    // PROTOCOL 14.1.2: A tensor of n elements (float32) and s services MUST be cut into p partitions of equal size, the
    //     last one shorter. If n is below 65,536 s (256 KiB for each service), p is n / 65,536, rounded down, but at
    //     least 1. Otherwise p is s times the smaller of 4 and n / (262,144 s) (1 MiB), rounded down, but at least s
    //     times n / (1,048,576 s) (4 MiB), rounded up. The size is n / p, rounded up to a multiple of 16 elements.
    constexpr std::uint64_t kMinElements = kMinPartitionBytes / sizeof(float);
    constexpr std::uint64_t kMinPipelined = kMinPipelinedBytes / sizeof(float);
    const std::uint64_t parts =
        elements < services * kMinElements
            ? std::max<std::uint64_t>(1, elements / kMinElements)
            : services * std::max(std::min<std::uint64_t>(kPartitionsPerService, elements / (services * kMinPipelined)),
                                  divide_up(elements, services * kPartitionElements));
    size_ = std::max<std::uint64_t>(1, divide_up(divide_up(elements, parts), kUnit)) * kUnit;
  }

  std::uint64_t count() const { return std::max<std::uint64_t>(1, divide_up(elements_, size_)); }
  // First element of a partition, and how many it has.
  std::size_t first(std::uint64_t partition) const { return partition * size_; }
  std::size_t elements(std::uint64_t partition) const { return std::min(size_, elements_ - partition * size_); }

 private:
  static constexpr std::uint64_t kUnit = 16;  // a cache line

  static constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

  std::uint64_t elements_;
  std::uint64_t size_;
};

}  // namespace mlt::collective
