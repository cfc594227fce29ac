#include "support/tensors.h"

#include <algorithm>

#include "collective/direct_allreduce.h"

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

std::vector<float> exact_sum(const std::vector<std::vector<float>>& tensors, bool average) {
  const bool is_direct = collective::DirectAllReduce::fits(tensors.size(), tensors[0].size() * sizeof(float), 0);
  return is_direct ? direct_sum(tensors, average) : ring_sum(tensors, average);
}

}  // namespace mlt::test
