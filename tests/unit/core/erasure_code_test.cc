#include "core/erasure_code.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using core::kMaxBlockParities;
using core::kMaxBlockSegments;

namespace {

using Bytes = std::vector<std::byte>;

struct Block {
  Block(base::Prng& prng, std::size_t segments, std::size_t parity_count, std::size_t bytes) {
    for (std::size_t i = 0; i < segments; ++i) {
      Bytes& made = data.emplace_back(bytes);
      for (std::byte& byte : made) byte = static_cast<std::byte>(prng.below(256));
    }
    for (std::uint32_t j = 0; j < parity_count; ++j) {
      Bytes& sum = parities.emplace_back(bytes);
      for (std::uint32_t i = 0; i < segments; ++i) core::add_to_parity(sum.data(), j, i, data[i]);
    }
  }
  // The segments at `missing`, made from the others and the parities at `used`.
  std::vector<Bytes> restored(const std::vector<std::uint8_t>& missing, const std::vector<std::uint8_t>& used) const {
    std::vector<Bytes> sums;
    std::vector<std::byte*> at;
    for (const std::uint8_t j : used) {
      Bytes& sum = sums.emplace_back(parities[j]);
      for (std::uint32_t i = 0; i < data.size(); ++i) {
        if (std::ranges::count(missing, i) == 0) core::add_to_parity(sum.data(), j, i, data[i]);
      }
    }
    for (Bytes& sum : sums) at.push_back(sum.data());
    core::restore_segments(missing, used, at, sums.empty() ? 0 : sums.front().size());
    return sums;
  }

  std::vector<Bytes> data;
  std::vector<Bytes> parities;
};

std::vector<std::uint8_t> drawn(base::Prng& prng, std::size_t of, std::size_t count) {
  std::vector<std::uint8_t> all(of);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) std::swap(all[i], all[i + prng.below(of - i)]);
  all.resize(count);
  std::ranges::sort(all);
  return all;
}

}  // namespace

TEST_CASE("erasure_code__restores_any_segments_from_as_many_parities") {
  base::Prng prng(21);
  for (int round = 0; round < 300; ++round) {
    const std::size_t segments = 1 + prng.below(kMaxBlockSegments);
    const std::size_t parities = 1 + prng.below(kMaxBlockParities);
    const Block block(prng, segments, parities, 1 + prng.below(60));
    const std::size_t missing = 1 + prng.below(std::min(segments, parities));
    const std::vector<std::uint8_t> positions = drawn(prng, segments, missing);
    const std::vector<Bytes> restored = block.restored(positions, drawn(prng, parities, missing));
    for (std::size_t i = 0; i < missing; ++i) REQUIRE(restored[i] == block.data[positions[i]]);
  }
}

TEST_CASE("erasure_code__restores_as_much_as_a_block_may_miss") {
  base::Prng prng(22);
  const Block block(prng, kMaxBlockSegments, kMaxBlockParities, 40);
  std::vector<std::uint8_t> all(kMaxBlockParities);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::uint8_t> positions = drawn(prng, kMaxBlockSegments, kMaxBlockParities);
    const std::vector<Bytes> restored = block.restored(positions, all);
    for (std::size_t i = 0; i < positions.size(); ++i) REQUIRE(restored[i] == block.data[positions[i]]);
  }
}

TEST_CASE("erasure_code__pairs_of_segments_and_of_parities_are_all_independent") {
  for (std::uint32_t i = 0; i < kMaxBlockSegments; ++i) {
    for (std::uint32_t j = 0; j + 1 < kMaxBlockParities; ++j) {
      CHECK(core::parity_coefficient(j, i) != 0);
      if (i + 1 == kMaxBlockSegments) continue;
      const auto product = [](std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
        return base::galois::multiply(core::parity_coefficient(a, b), core::parity_coefficient(c, d));
      };
      CHECK(product(j, i, j + 1, i + 1) != product(j, i + 1, j + 1, i));
    }
  }
}

TEST_CASE("restore_segments__of_none_restores_none") {
  base::Prng prng(23);
  CHECK(Block(prng, 5, 2, 40).restored({}, {}).empty());
}
