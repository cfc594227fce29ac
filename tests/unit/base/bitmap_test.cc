#include "base/bitmap.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

using namespace mlt;

TEST_CASE("bitmap_view__agrees_with_a_vector_of_bool") {
  base::Prng prng(3);
  for (const std::size_t bits : {1UL, 2UL, 63UL, 64UL, 65UL, 127UL, 128UL, 129UL, 1'000UL}) {
    CAPTURE(bits);
    // Garbage behind the end must not matter to a view, except that counts read whole words: those start clear.
    std::vector<std::uint64_t> words(base::words_for_bits(bits));
    base::BitmapView view(words.data(), bits);
    std::vector<bool> model(bits);
    for (int step = 0; step < 2'000; ++step) {
      const std::size_t at = prng.below(bits);
      switch (prng.below(40)) {
        case 0:
          view.set_all();
          std::fill(model.begin(), model.end(), true);
          break;
        case 1:
          view.clear_all();
          std::fill(model.begin(), model.end(), false);
          break;
        default:
          if (prng.chance(0.5)) {
            view.set(at);
            model[at] = true;
          } else {
            view.clear(at);
            model[at] = false;
          }
      }
      REQUIRE(view.count() == static_cast<std::size_t>(std::count(model.begin(), model.end(), true)));
      const std::size_t from = prng.below(bits + 3);
      std::size_t set = from < bits ? from : bits;
      while (set < bits && !model[set]) ++set;
      std::size_t clear = from < bits ? from : bits;
      while (clear < bits && model[clear]) ++clear;
      REQUIRE(view.find_set(from) == set);
      REQUIRE(view.find_clear(from) == clear);
      REQUIRE(view.test(at) == model[at]);
    }
  }
}

TEST_CASE("bitmap_view__set_all_leaves_bits_past_the_end_clear") {
  std::uint64_t words[2] = {};
  base::BitmapView view(words, 70);
  view.set_all();
  CHECK(words[1] == 0x3F);
  CHECK(view.find_clear(0) == 70);
}

TEST_CASE("bitmap_view__of_no_bits_finds_nothing") {
  base::BitmapView view;
  CHECK(view.size() == 0);
  CHECK(view.count() == 0);
  CHECK(view.find_set(0) == 0);
  CHECK(view.find_clear(0) == 0);
}

TEST_CASE("words_for_bits__rounds_up") {
  CHECK(base::words_for_bits(0) == 0);
  CHECK(base::words_for_bits(1) == 1);
  CHECK(base::words_for_bits(64) == 1);
  CHECK(base::words_for_bits(65) == 2);
}
