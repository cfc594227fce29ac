#include "support/tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace mlt::test {

std::vector<std::vector<float>> random_tensors(base::Prng& prng, std::size_t ranks, std::size_t elements) {
  std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements));
  for (auto& tensor : tensors) {
    for (float& value : tensor) value = static_cast<float>(prng.below(2'000'001)) / 1'000.0F - 1'000.0F;
  }
  return tensors;
}

std::vector<std::vector<float>> random_tensors(std::size_t ranks, std::size_t elements, std::uint64_t seed) {
  base::Prng prng(seed);
  return random_tensors(prng, ranks, elements);
}

std::vector<float> ring_sum(const std::vector<std::vector<float>>& tensors, bool average) {
  const std::size_t n = tensors.size(), elements = tensors[0].size();
  std::vector<float> result(elements);
  for (std::size_t chunk = 0; chunk < n; ++chunk) {
    const std::size_t first = elements / n * chunk + std::min(chunk, elements % n);
    const std::size_t length = elements / n + (chunk < elements % n ? 1 : 0);
    for (std::size_t i = first; i < first + length; ++i) {
      // Rank `chunk` sends its own values first; each rank after it adds what comes to what it has.
      float sum = tensors[chunk][i];
      for (std::size_t hop = 1; hop < n; ++hop) sum = tensors[(chunk + hop) % n][i] + sum;
      result[i] = average && n > 1 ? sum * (1.0F / static_cast<float>(n)) : sum;
    }
  }
  return result;
}

std::vector<float> direct_sum(const std::vector<std::vector<float>>& tensors, bool average) {
  std::vector<float> result = tensors[0];
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t rank = 1; rank < tensors.size(); ++rank) result[i] = result[i] + tensors[rank][i];
    if (average && tensors.size() > 1) result[i] = result[i] * (1.0F / static_cast<float>(tensors.size()));
  }
  return result;
}

std::vector<float> halving_sum(const std::vector<std::vector<float>>& tensors, bool average) {
  const std::size_t n = tensors.size(), core = std::bit_floor(n), outside = n - core;
  std::vector<float> result(tensors[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::size_t owner = 0, first = 0, length = result.size();
    for (std::size_t bit = 1; bit < core; bit *= 2) {
      const std::size_t half = (length + 1) / 2;
      const bool is_second = i >= first + half;
      owner += is_second ? bit : 0;
      first += is_second ? half : 0;
      length = is_second ? length - half : half;
    }
    const std::function<float(std::size_t, std::size_t)> sum = [&](std::size_t number, std::size_t stages) -> float {
      if (stages > 1) return sum(number, stages / 2) + sum(number ^ (stages / 2), stages / 2);
      if (number < outside) return tensors[2 * number][i] + tensors[2 * number + 1][i];
      return tensors[number + outside][i];
    };
    result[i] = sum(owner, core) * (average ? 1.0F / static_cast<float>(n) : 1.0F);
  }
  return result;
}

std::vector<float> two_level_sum(const std::vector<std::vector<float>>& tensors, std::size_t ranks_per_host,
                                 bool average) {
  const std::size_t n = tensors.size(), hosts = n / ranks_per_host, elements = tensors[0].size();
  const auto start = [](std::size_t i, std::size_t parts, std::size_t of) {
    return of / parts * i + std::min(i, of % parts);
  };
  const std::size_t bytes = elements * sizeof(float);
  const std::size_t slice_bytes = std::clamp<std::size_t>((bytes + 7) / 8, 512 << 10, 4 << 20);
  const std::size_t slices = std::max<std::size_t>(1, (bytes + slice_bytes - 1) / slice_bytes);
  std::vector<float> result;
  for (std::size_t slice = 0; slice < slices; ++slice) {
    const std::size_t slice_first = start(slice, slices, elements);
    const std::size_t slice_length = start(slice + 1, slices, elements) - slice_first;
    for (std::size_t local = 0; local < ranks_per_host; ++local) {
      const std::size_t first = slice_first + start(local, ranks_per_host, slice_length);
      const std::size_t end = slice_first + start(local + 1, ranks_per_host, slice_length);
      std::vector<std::vector<float>> host_sums(hosts);
      for (std::size_t host = 0; host < hosts; ++host) {
        for (std::size_t i = first; i < end; ++i) {
          float sum = tensors[host * ranks_per_host + local][i];
          for (std::size_t back = 1; back < ranks_per_host; ++back) {
            sum = sum + tensors[host * ranks_per_host + (local + ranks_per_host - back) % ranks_per_host][i];
          }
          host_sums[host].push_back(sum);
        }
      }
      for (const float sum : std::has_single_bit(hosts) ? halving_sum(host_sums, false) : ring_sum(host_sums, false)) {
        result.push_back(average ? sum * (1.0F / static_cast<float>(n)) : sum);
      }
    }
  }
  return result;
}

std::vector<float> chain_sum(const std::vector<std::vector<float>>& tensors, std::size_t root, bool average) {
  const std::size_t n = tensors.size();
  std::vector<float> result = tensors[(root + 1) % n];
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t hop = 2; hop <= n; ++hop) result[i] = tensors[(root + hop) % n][i] + result[i];
    if (average) result[i] = result[i] * (1.0F / static_cast<float>(n));
  }
  return result;
}

std::vector<float> sum_by(collective::CollectiveAlgorithm algorithm, const std::vector<std::vector<float>>& tensors,
                          bool average, std::size_t ranks_per_host) {
  switch (algorithm) {
    case collective::CollectiveAlgorithm::kRing:
      return ring_sum(tensors, average);
    case collective::CollectiveAlgorithm::kHalving:
      return halving_sum(tensors, average);
    case collective::CollectiveAlgorithm::kTwoLevel:
      return two_level_sum(tensors, ranks_per_host, average);
    default:
      return direct_sum(tensors, average);
  }
}

std::vector<float> exact_sum(const std::vector<std::vector<float>>& tensors, bool average) {
  return sum_by(collective::chosen_algorithm({tensors.size()}, tensors[0].size() * sizeof(float)), tensors, average);
}

std::vector<float> gradient(std::size_t elements, std::uint16_t worker, std::size_t iteration) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>((i * 7 + worker * 13 + iteration * 5) % 97) + 1.0F;
  }
  return values;
}

bool is_mean_of_some(const std::vector<float>& got, const std::vector<std::vector<float>>& pushed,
                     const std::set<std::uint16_t>& always) {
  std::uint32_t needed = 0;
  for (const std::uint16_t worker : always) needed |= 1U << worker;
  const auto is_mean_of = [&](std::uint32_t subset, std::size_t i) {
    if ((subset & needed) != needed || subset == 0) return false;
    float sum = 0;
    for (std::uint16_t worker = 0; worker < pushed.size(); ++worker) {
      if (((subset >> worker) & 1U) != 0) sum += pushed[worker][i];
    }
    return std::abs(got[i] - sum / static_cast<float>(std::popcount(subset))) < 1e-3F;
  };
  // Elements are lost by the segment, so that the neighbour's workers are tried first.
  std::uint32_t last = (1U << pushed.size()) - 1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (is_mean_of(last, i)) continue;
    std::uint32_t subset = 1;
    while (subset < (1U << pushed.size()) && !is_mean_of(subset, i)) ++subset;
    if (subset == 1U << pushed.size()) return false;
    last = subset;
  }
  return true;
}

}  // namespace mlt::test
