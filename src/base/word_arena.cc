#include "base/word_arena.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace mlt::base {

WordArena::WordArena(std::size_t words)
    : capacity_(std::bit_ceil(std::max(words, kMinBlockWords))),
      storage_(std::make_unique_for_overwrite<std::uint64_t[]>(capacity_)),
      free_words_(capacity_),
      free_order_(capacity_ / kMinBlockWords) {
  const std::size_t blocks = capacity_ / kMinBlockWords;
  orders_ = static_cast<std::size_t>(std::countr_zero(blocks)) + 1;
  heads_.assign(orders_, kNone);
  next_ = std::make_unique_for_overwrite<std::uint32_t[]>(blocks);
  prev_ = std::make_unique_for_overwrite<std::uint32_t[]>(blocks);
  push(orders_ - 1, 0);
}

void WordArena::push(std::size_t order, std::uint32_t block) {
  next_[block] = heads_[order];
  prev_[block] = kNone;
  if (heads_[order] != kNone) prev_[heads_[order]] = block;
  heads_[order] = block;
  free_order_[block] = static_cast<std::uint8_t>(order + 1);
}

void WordArena::unlink(std::size_t order, std::uint32_t block) {
  if (prev_[block] != kNone) {
    next_[prev_[block]] = next_[block];
  } else {
    heads_[order] = next_[block];
  }
  if (next_[block] != kNone) prev_[next_[block]] = prev_[block];
  free_order_[block] = kTaken;
}

std::span<std::uint64_t> WordArena::take(std::size_t words) {
  const std::size_t size = std::bit_ceil(std::max(words, kMinBlockWords));
  if (size > capacity_) return {};
  const auto wanted = static_cast<std::size_t>(std::countr_zero(size / kMinBlockWords));
  std::size_t order = wanted;
  while (order < orders_ && heads_[order] == kNone) ++order;
  if (order == orders_) return {};
  const std::uint32_t block = heads_[order];
  unlink(order, block);
  while (order > wanted) {  // split: keep the lower half, free the upper
    --order;
    push(order, block + (std::uint32_t{1} << order));
  }
  free_words_ -= size;
  return {storage_.get() + std::size_t{block} * kMinBlockWords, size};
}

void WordArena::give(std::span<std::uint64_t> block_words) {
  MLT_CHECK(std::has_single_bit(block_words.size()) && block_words.size() >= kMinBlockWords);
  const auto at = static_cast<std::size_t>(block_words.data() - storage_.get());
  MLT_CHECK(at + block_words.size() <= capacity_ && at % kMinBlockWords == 0);
  auto block = static_cast<std::uint32_t>(at / kMinBlockWords);
  MLT_CHECK(free_order_[block] == kTaken);
  auto order = static_cast<std::size_t>(std::countr_zero(block_words.size() / kMinBlockWords));
  while (order + 1 < orders_) {  // merge with the buddy while it is free and whole
    const std::uint32_t buddy = block ^ (std::uint32_t{1} << order);
    if (free_order_[buddy] != order + 1) break;
    unlink(order, buddy);
    block = std::min(block, buddy);
    ++order;
  }
  push(order, block);
  free_words_ += block_words.size();
}

}  // namespace mlt::base
