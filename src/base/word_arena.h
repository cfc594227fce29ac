// Allocates 64-bit words in power-of-two blocks from one fixed allocation (a buddy allocator), for bitmaps of transfers
// of very different sizes without heap use. Memory is touched as blocks are used. Owned by one thread.
// Source: Knuth, TAOCP vol. 1, section 2.5, algorithms R and S.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/lazy_array.h"

namespace mlt::base {

class WordArena {
 public:
  static constexpr std::size_t kMinBlockWords = 8;

  // `words` is rounded up to a power of two, at least kMinBlockWords.
  explicit WordArena(std::size_t words);

  // A block of at least `words` words (contents undefined), or an empty span if none is free.
  std::span<std::uint64_t> take(std::size_t words);
  // Returns a whole block from take().
  void give(std::span<std::uint64_t> block);

  std::size_t capacity_words() const { return capacity_; }
  std::size_t free_words() const { return free_words_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::uint8_t kTaken = 0;

  void push(std::size_t order, std::uint32_t block);
  void unlink(std::size_t order, std::uint32_t block);

  std::size_t capacity_;
  std::unique_ptr<std::uint64_t[]> storage_;
  std::size_t free_words_ = 0;
  std::size_t orders_ = 0;
  std::vector<std::uint32_t> heads_;              // per order: first free block
  std::unique_ptr<std::uint32_t[]> next_, prev_;  // per minimum block
  ZeroedArray<std::uint8_t> free_order_;  // per minimum block: 1 + order if a free block starts here, kTaken otherwise
};

}  // namespace mlt::base
