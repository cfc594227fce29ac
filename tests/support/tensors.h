// Tensors of all ranks, and what collectives make of them, one element at a time. Not in the tests' own files, which
// are compiled without optimization where a sanitizer slows every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "base/prng.h"
#include "collective/algorithm.h"

namespace mlt::test {

std::vector<std::vector<float>> random_tensors(base::Prng& prng, std::size_t ranks, std::size_t elements);
std::vector<std::vector<float>> random_tensors(std::size_t ranks, std::size_t elements, std::uint64_t seed);

// What a ring of `ranks` gives: every chunk summed in the order of the ring, from the rank after its owner's on.
std::vector<float> ring_sum(const std::vector<std::vector<float>>& tensors, bool average);
// What every rank sends to every other and sums in the group's order.
std::vector<float> direct_sum(const std::vector<std::vector<float>>& tensors, bool average);
// What recursive halving gives: each element at the one rank whose halves it stays in, the sums of stage j made of two
// of the stage before.
std::vector<float> halving_sum(const std::vector<std::vector<float>>& tensors, bool average);
// What two levels give in groups of hosts of `ranks_per_host` adjacent ranks: slice by slice, each rank's share summed
// within its host, from the rank on to those before it, then between the hosts by halving, or around a ring.
std::vector<float> two_level_sum(const std::vector<std::vector<float>>& tensors, std::size_t ranks_per_host,
                                 bool average);
// What a reduce along a chain gives: summed from the rank after the root on, in the order of the ranks, the root last.
std::vector<float> chain_sum(const std::vector<std::vector<float>>& tensors, std::size_t root, bool average);
std::vector<float> sum_by(collective::CollectiveAlgorithm algorithm, const std::vector<std::vector<float>>& tensors,
                          bool average, std::size_t ranks_per_host = 0);
// What an all-reduce without a loss bound gives.
std::vector<float> exact_sum(const std::vector<std::vector<float>>& tensors, bool average);

// Small integers: their sums and halves are exact, whatever the order.
std::vector<float> gradient(std::size_t elements, std::uint16_t worker, std::size_t iteration);
// Whether each element is the mean of some workers' pushes, of those in `always` at least.
bool is_mean_of_some(const std::vector<float>& got, const std::vector<std::vector<float>>& pushed,
                     const std::set<std::uint16_t>& always);

}  // namespace mlt::test
