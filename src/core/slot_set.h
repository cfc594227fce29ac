// A set of slots with its minimum in a few steps at any capacity. It is a hierarchy of bitmaps: each layer marks the
// nonzero words of the layer below. Fixed size. Owned by one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace mlt::core {

class SlotSet {
 public:
  explicit SlotSet(std::uint32_t slots) {
    std::size_t bits = slots;
    do {
      bits = (bits + 63) / 64;
      layers_.emplace_back(bits, 0);
    } while (bits > 1);
  }

  void set(std::uint32_t slot) {
    for (auto& layer : layers_) {
      std::uint64_t& word = layer[slot / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << (slot % 64);
      if (!was_empty) return;
      slot /= 64;
    }
  }
  void clear(std::uint32_t slot) {
    for (auto& layer : layers_) {
      std::uint64_t& word = layer[slot / 64];
      word &= ~(std::uint64_t{1} << (slot % 64));
      if (word != 0) return;
      slot /= 64;
    }
  }
  bool contains(std::uint32_t slot) const { return ((layers_[0][slot / 64] >> (slot % 64)) & 1U) != 0; }
  bool empty() const { return layers_.back()[0] == 0; }
  // The smallest slot; the set must not be empty.
  std::uint32_t first() const {
    std::uint32_t at = 0;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      at = at * 64 + static_cast<std::uint32_t>(std::countr_zero((*layer)[at]));
    }
    return at;
  }

 private:
  std::vector<std::vector<std::uint64_t>> layers_;  // the slots' bits first
};

}  // namespace mlt::core
