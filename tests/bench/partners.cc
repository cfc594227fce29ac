// What the partner cache saves a post where ranks connect on first use: the time to find a rank's partners in an
// all-reduce, by a plan and from the cache. bench_partners [ROUNDS] prints one line per algorithm and group.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "collective/collective.h"
#include "engine/partner_cache.h"

int main(int argc, char** argv) {
  using namespace mlt;
  using Clock = std::chrono::steady_clock;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2'000;
  struct Case {
    const char* name;
    collective::CollectiveAlgorithm algorithm;
    std::size_t bytes;
  };
  const Case cases[] = {{"central, 4 B", collective::CollectiveAlgorithm::kCentral, 4},
                        {"halving, 64 KiB", collective::CollectiveAlgorithm::kHalving, 64U << 10},
                        {"ring, 1 MiB", collective::CollectiveAlgorithm::kRing, 1U << 20}};
  for (const std::uint16_t ranks : {std::uint16_t{16}, std::uint16_t{256}, std::uint16_t{1'024}}) {
    for (const Case& one : cases) {
      std::vector<std::byte> tensor(one.bytes);
      collective::CollectiveRequest request;
      request.ranks.resize(ranks);
      std::iota(request.ranks.begin(), request.ranks.end(), std::uint16_t{0});
      request.output = tensor;
      request.algorithm = one.algorithm;
      engine::PartnerCache cache(1);
      std::size_t found = cache.partners(request).size();
      double microseconds[2] = {0, 0};
      for (int way = 0; way < 2; ++way) {
        const auto began = Clock::now();
        for (int i = 0; i < rounds; ++i)
          found += way == 0 ? collective::partners(request, 1).size() : cache.partners(request).size();
        microseconds[way] = std::chrono::duration<double, std::micro>(Clock::now() - began).count() / rounds;
      }
      if (found == 0) return 1;
      std::printf("%u ranks, %s: plan %.2f us, cache %.2f us\n", ranks, one.name, microseconds[0], microseconds[1]);
    }
  }
  return 0;
}
