// Hash index of slots: look-up, insertion and removal in constant time. The keys stay in the slots; the caller compares
// keys of equal hash. Fixed size; memory is touched as it is used. Owned by one thread.
#pragma once

#include <bit>
#include <cstdint>

#include "base/lazy_array.h"

namespace mlt::core {

inline constexpr std::uint32_t kNil = ~std::uint32_t{0};

class SlotIndex {
 public:
  explicit SlotIndex(std::uint32_t slots) : chains_(std::bit_ceil(std::uint64_t{slots} + 1)), next_(slots) {}

  // The newest slot of this hash; kNil if none.
  std::uint32_t first(std::uint64_t hash) const { return chains_[hash & (chains_.size() - 1)] - 1; }
  std::uint32_t next(std::uint32_t slot) const { return next_[slot] - 1; }

  void insert(std::uint64_t hash, std::uint32_t slot) {
    std::uint32_t& chain = chains_[hash & (chains_.size() - 1)];
    next_[slot] = chain;
    chain = slot + 1;
  }
  void erase(std::uint64_t hash, std::uint32_t slot) {
    std::uint32_t* link = &chains_[hash & (chains_.size() - 1)];
    while (*link != slot + 1) link = &next_[*link - 1];
    *link = next_[slot];
  }

 private:
  // Slot numbers plus 1: 0 ends a chain.
  base::ZeroedArray<std::uint32_t> chains_;
  base::ZeroedArray<std::uint32_t> next_;
};

}  // namespace mlt::core
