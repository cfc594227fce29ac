// Bit operations on words: a view without storage.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace mlt::base {

constexpr std::size_t words_for_bits(std::size_t bits) { return (bits + 63) / 64; }

// A view of `bits` bits in words. The caller owns the words; one thread at a time.
class BitmapView {
 public:
  BitmapView() = default;
  BitmapView(std::uint64_t* words, std::size_t bits) : words_(words), bits_(bits) {}

  std::size_t size() const { return bits_; }
  const std::uint64_t* words() const { return words_; }
  std::uint64_t* words() { return words_; }

  bool test(std::size_t i) const { return (words_[i / 64] >> (i % 64)) & 1U; }
  void set(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
  void clear(std::size_t i) { words_[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }

  void clear_all() {
    for (std::size_t w = 0; w < words_for_bits(bits_); ++w) words_[w] = 0;
  }
  // Sets every bit below size(); bits past the end stay clear, so that searches and counts need no end mask.
  void set_all() {
    const std::size_t whole = bits_ / 64;
    for (std::size_t w = 0; w < whole; ++w) words_[w] = ~std::uint64_t{0};
    if (bits_ % 64 != 0) words_[whole] = (std::uint64_t{1} << (bits_ % 64)) - 1;
  }

  // First set bit at or after `from`, or size() if there is none.
  std::size_t find_set(std::size_t from) const { return find(from, 0); }
  // First clear bit at or after `from`, or size() if there is none.
  std::size_t find_clear(std::size_t from) const { return find(from, ~std::uint64_t{0}); }

  std::size_t count() const {
    std::size_t sum = 0;
    for (std::size_t w = 0; w < words_for_bits(bits_); ++w) sum += static_cast<std::size_t>(std::popcount(words_[w]));
    return sum;
  }

 private:
  std::size_t find(std::size_t from, std::uint64_t flip) const {
    if (from >= bits_) return bits_;
    std::size_t w = from / 64;
    std::uint64_t word = (words_[w] ^ flip) & (~std::uint64_t{0} << (from % 64));
    while (word == 0) {
      if (++w >= words_for_bits(bits_)) return bits_;
      word = words_[w] ^ flip;
    }
    const std::size_t found = w * 64 + static_cast<std::size_t>(std::countr_zero(word));
    return found < bits_ ? found : bits_;
  }

  std::uint64_t* words_ = nullptr;
  std::size_t bits_ = 0;
};

}  // namespace mlt::base
