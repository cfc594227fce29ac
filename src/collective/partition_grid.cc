#include "collective/partition_grid.h"

namespace mlt::collective {

void PartitionGrid::cut_by(const ServiceLoads& loads) {
  // PROTOCOL 14.1.25: Where the loads differ and n is at least 65,536 times the number of services whose load is not 0,
  //     a tensor MUST be cut into a part for each service, in their order. A part ends at n times the loads up to its
  //     service, over 65,536, rounded down to a multiple of 16 elements, the last at n. One of m elements has p
  //     partitions, numbered after those of the parts before: the smaller of 4 and m / 262,144, rounded down, but at
  //     least m / 1,048,576, rounded up. Their size is m / p, rounded up to a multiple of 16 elements.
  std::uint64_t begin = 0, first = 0;
  for (std::size_t service = 0; service < loads.count(); ++service) {
    const std::uint64_t units = loads.units_before(service) + loads.units()[service];
    // Elements times units: at most 2^36 times 2^16.
    const std::uint64_t end =
        units == ServiceLoads::kUnits ? elements_ : elements_ * units / loads.kUnits / kUnit * kUnit;
    if (end == first) continue;
    const std::uint64_t length = end - first;
    constexpr std::uint64_t kMinPipelined = kMinPipelinedBytes / sizeof(float);
    const std::uint64_t parts = std::max(std::min<std::uint64_t>(kPartitionsPerService, length / kMinPipelined),
                                         divide_up(length, kPartitionElements));
    const std::uint64_t size = divide_up(divide_up(length, parts), kUnit) * kUnit;
    const std::uint64_t count = divide_up(length, size);
    parts_.push_back({service, begin, begin + count, first, end, size});
    begin += count;
    first = end;
  }
}

}  // namespace mlt::collective
