#include "base/word_arena.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using base::WordArena;

TEST_CASE("word_arena__blocks_never_overlap_and_everything_comes_back") {
  for (const std::size_t capacity : {1UL, 8UL, 100UL, 1'024UL, 4'096UL}) {
    CAPTURE(capacity);
    WordArena arena(capacity);
    struct Block {
      std::span<std::uint64_t> words;
      std::uint64_t stamp;
    };
    std::vector<Block> taken;
    base::Prng prng(capacity);
    for (std::uint64_t step = 1; step < 4'000; ++step) {
      if (prng.chance(0.55)) {
        const std::size_t wanted = 1 + prng.below(prng.chance(0.2) ? capacity : 64);
        const auto words = arena.take(wanted);
        if (words.empty()) continue;
        REQUIRE(words.size() >= wanted);
        std::fill(words.begin(), words.end(), step);
        taken.push_back({words, step});
      } else if (!taken.empty()) {
        const std::size_t which = prng.below(taken.size());
        const Block block = taken[which];
        // No other thread wrote here meanwhile.
        REQUIRE(std::all_of(block.words.begin(), block.words.end(), [&](auto w) { return w == block.stamp; }));
        arena.give(block.words);
        taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
      }
      std::size_t used = 0;
      for (const Block& block : taken) used += block.words.size();
      REQUIRE(arena.free_words() == arena.capacity_words() - used);
    }
    for (const Block& block : taken) arena.give(block.words);
    // Merged again: the whole arena is one block.
    CHECK(arena.take(arena.capacity_words()).size() == arena.capacity_words());
  }
}

TEST_CASE("take__gives_an_empty_span_when_full_or_too_large") {
  WordArena arena(64);
  CHECK(arena.take(65).empty());
  CHECK(arena.take(~std::size_t{0} / 2).empty());
  const auto all = arena.take(64);
  REQUIRE(all.size() == 64);
  CHECK(arena.take(1).empty());
  arena.give(all);
  CHECK(arena.take(0).size() == WordArena::kMinBlockWords);
}

TEST_CASE("word_arena__fills_completely_with_smallest_blocks") {
  WordArena arena(256);
  for (int i = 0; i < 32; ++i) REQUIRE(arena.take(1).size() == 8);
  CHECK(arena.take(1).empty());
  CHECK(arena.free_words() == 0);
}
